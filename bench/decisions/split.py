"""Validation and test: split by source conversation, seeded, half and half in each kind of conversation."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

from bench.decisions.example import Example


def joined(links: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Names that share a link, directly or through others, get one root: the smallest name of all.

    The result doesn't depend on the order of names or links.
    """
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for name, own in links.items():
        for link in own:
            one, other = sorted((root(name), root(link)))
            parent[other] = one
    return {name: root(name) for name in links}


def grouped(examples: Sequence[Example]) -> list[Example]:
    """The examples with the groups joined that hold the same conversation.

    BFCL asks some questions in several categories, and When2Call asks BFCL's: one conversation, as far as
    the tools differ only.
    """
    links = {example.id: [f"group {example.group}", *_asked(example)] for example in examples}
    root = joined(links)
    name: dict[str, str] = {}
    for example in examples:
        name[root[example.id]] = min(name.get(root[example.id], example.group), example.group)
    return [replace(example, group=name[root[example.id]]) for example in examples]


def split(examples: Sequence[Example], seed: int, share: float = 0.5) -> list[Example]:
    """The examples, each with its split; what a set says itself stands.

    Whole groups go to one side, `share` of them to validation, in each kind of group by source and label.
    """
    groups: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        groups[example.group].append(example)
    kinds: dict[tuple[tuple[str, bool], ...], list[str]] = defaultdict(list)
    side: dict[str, str] = {}
    for name in sorted(groups):
        told = {example.split for example in groups[name]} - {None}
        if told:
            # Of a conversation that a set puts on both sides, all is test: choosing must not see it.
            side[name] = "test" if "test" in told else "validation"
        else:
            kinds[tuple(sorted({(e.source, e.should_call) for e in groups[name]}))].append(name)
    carried = 0.0
    for kind in sorted(kinds):
        names = kinds[kind]
        Random(f"{seed}:{kind}").shuffle(names)
        # What rounding leaves over goes to the next kind, or kinds of one group would all go to one side.
        wanted = len(names) * share + carried
        count = round(wanted)
        carried = wanted - count
        side |= {name: "validation" if i < count else "test" for i, name in enumerate(names)}
    return [replace(e, split="validation" if side[e.group] == "validation" else "test") for e in examples]


def sampled(examples: Sequence[Example], limit: int | None, seed: int) -> list[Example]:
    """At most `limit` examples, half of them should-call where there are so many; in their order."""
    if limit is None or len(examples) <= limit:
        return list(examples)
    due, other = ([e.id for e in examples if e.should_call is label] for label in (True, False))
    for ids in (due, other):
        Random(f"{seed}:sample").shuffle(ids)
    first = min(len(due), max(limit // 2, limit - len(other)))
    kept = {*due[:first], *other[: limit - first]}
    return [example for example in examples if example.id in kept]


def _asked(example: Example) -> list[str]:
    """The conversation as a link, without case and punctuation; none where the example has no request."""
    messages = example.request.get("messages") or ()
    said = " ".join(f"{message.get('role')} {message.get('content')}" for message in messages)
    return ["says " + re.sub(r"\W+", " ", said.lower()).strip()] if said else []
