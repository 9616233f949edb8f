"""The lab model's training trees and held-out sets, built from bfcl-eval's own questions.

    python -m bench.lab.data [--seed N] [--when2call FILE] [--out DIR]

Splits are made over source conversations, joined wherever two share a question or a whole tool
definition, so that no held-out prompt has a twin in training. A training *tree* is one tool list
with several conversations under it: the question as asked, with a required value cut out, with a
harmless cut, with a question that belongs to other tools. Trees teach by contrast and let the
trainer compute the tool list once.
"""

import argparse
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import yaml

from bench.decisions import source
from bench.decisions.source import Call, Item, Json, tool_name
from bench.decisions.split import joined
from bench.lab.cuts import Cut, control_cut, cuttable, missing_cuts, without, words
from bench.lab.packages import BFCL, PackageError, fetch

SHARES = {"train": 0.60, "validation": 0.13, "test": 0.27}
PASSES = 2
MAX_TOOLS = 3
# With the compact template's signatures this keeps nearly all prompts under 400 tokens.
MAX_QUESTION, MAX_TOOL, MAX_PROMPT = 600, 700, 1500
# Families of this size can't be spread over splits, and held out they'd rule the figures.
LARGEST_HELD_OUT = 40
CAPS = {
    "validation": {"call": 90, "refuse": 80, "ask": 14, "pairs": 60},
    "test": {"call": 220, "refuse": 220, "ask": 36, "pairs": 110},
}
PAIRED = ("swapped", "tool_removed", "parameter_removed", "harmless_cut")
# Grammatical cuts weigh more than vague phrases, which betray themselves.
STYLE_WEIGHTS = {"drop": 0.45, "clause": 0.25, "vague": 0.30}
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Example:
    """A held-out prompt. `pair` names the call item that a paired negative was made from."""

    id: str
    sets: list[str]
    source: str
    group: str
    label: str
    question: str
    tools: list[Json]
    gold: list[Json]
    pair: str = ""
    style: str = ""

    def record(self) -> Json:
        """One JSONL line: an OpenAI request with its label."""
        return {
            "id": self.id,
            "sets": self.sets,
            "source": self.source,
            "group": self.group,
            "label": self.label,
            "should_call": self.label == "call",
            "pair": self.pair,
            "style": self.style,
            "messages": [{"role": "user", "content": self.question}],
            "tools": self.tools,
            "gold": self.gold,
        }


def build(items: Sequence[Item], seed: int, extra: Sequence[Item] = ()) -> dict[str, list[Json]]:
    """Trees under `train`, held-out examples under `validation` and `test`, ids under `splits`.

    `extra` items (When2Call) are grouped with the conversations they were made from; they join
    the trees of the training split and stand as a set of their own in the others.
    """
    kept = [item for item in (*items, *extra) if len(item.question) <= MAX_QUESTION]
    family = families(kept)
    split = assign(kept, family, seed)
    parts: dict[str, list[Item]] = {name: [] for name in SHARES}
    for item in kept:
        parts[split[family[item.id]]].append(item)
    result = {"train": Forest(parts["train"], family, seed).trees()}
    for name in ("validation", "test"):
        result[name] = [e.record() for e in HeldOut(parts[name], family, seed, name).examples()]
    seen = {tool_name(tool) for tree in result["train"] for tool in tree["tools"]}
    for name in ("validation", "test"):
        for record in result[name]:
            record["unseen_tools"] = not seen & {tool_name(tool) for tool in record["tools"]}
    result["splits"] = [{name: sorted(item.id for item in part) for name, part in parts.items()}]
    return result


def families(items: Iterable[Item]) -> dict[str, str]:
    """Item id -> family: connected by source conversation, question or whole tool definition."""
    links = {}
    for item in items:
        asked = re.sub(r"\W+", " ", item.question.lower()).strip()
        links[item.id] = [f"origin {item.origin}", f"asks {asked}"]
        links[item.id] += ["tool " + json.dumps(tool, sort_keys=True) for tool in item.tools]
    return joined(links)


def assign(items: Iterable[Item], family: dict[str, str], seed: int) -> dict[str, str]:
    """Family -> split, so that each source's labels come near SHARES in every split.

    The missing-parameter items need no stratum of their own: they are cut from call items of the
    same split.
    """
    members: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for item in items:
        members[family[item.id]][item.source, item.label] += 1
    total: Counter[tuple[str, str]] = Counter()
    for counts in members.values():
        total.update(counts)
    have: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in SHARES}
    order = sorted(members)
    Random(f"{seed}:split").shuffle(order)
    order.sort(key=lambda name: -members[name].total())
    split = {}
    for name in order:
        counts = members[name]

        def lack(part: str, counts: Counter[tuple[str, str]] = counts) -> float:
            wanted = SHARES[part]
            return sum(
                n * (1 - have[part][stratum] / (wanted * total[stratum])) for stratum, n in counts.items()
            )

        large = counts.total() > LARGEST_HELD_OUT
        part = "train" if large else max(SHARES, key=lack)
        split[name] = part
        have[part].update(counts)
    return split


class _Bench:
    """What trees and held-out sets share: one split's items and how tool lists are drawn."""

    def __init__(self, items: Sequence[Item], family: dict[str, str], seed: int) -> None:
        self.items = [item for item in items if not item.gold or self._golden(item)]
        self.family = family
        self.seed = seed
        self.calls = [item for item in self.items if item.gold]
        self.pool = [(item, tool) for item in self.items for tool in item.tools if _fits(tool)]

    @staticmethod
    def _golden(item: Item) -> bool:
        """All gold tools are offered, and short enough to be shown."""
        names = {call.name for call in item.gold}
        shown = [tool for tool in item.tools if tool_name(tool) in names and _fits(tool)]
        return len(names) == len(shown) <= MAX_TOOLS

    def offer(self, item: Item, random: Random) -> list[Json]:
        """One to MAX_TOOLS of the item's tools: all gold ones and some of the others."""
        names = {call.name for call in item.gold}
        gold = [tool for tool in item.tools if tool_name(tool) in names]
        rest = [tool for tool in item.tools if tool_name(tool) not in names and _fits(tool)]
        random.shuffle(rest)
        room = MAX_TOOLS - len(gold)
        wanted = random.randint(0 if gold else 1, room) if room else 0
        return self._fill(gold, rest[:wanted], random)

    def foreign(self, item: Item, random: Random) -> Item:
        """A call item from another family that has no tool name in common with `item`."""
        own = {tool_name(tool) for tool in item.tools}
        while True:
            other = random.choice(self.calls)
            names = {tool_name(tool) for tool in other.tools}
            if self.family[other.id] != self.family[item.id] and not own & names:
                return other

    @staticmethod
    def _fill(tools: list[Json], more: Iterable[Json], random: Random) -> list[Json]:
        chosen = list(tools)
        for tool in more:
            if sum(map(_width, chosen)) + _width(tool) <= MAX_PROMPT:
                chosen.append(tool)
        random.shuffle(chosen)
        return chosen


class Forest(_Bench):
    """Training trees: one tool list, several conversations with opposite decisions."""

    def __init__(self, items: Sequence[Item], family: dict[str, str], seed: int) -> None:
        super().__init__(items, family, seed)
        self.replies = yaml.safe_load((HERE / "replies.yaml").read_text(encoding="utf-8"))
        self.cuts = {item.id: missing_cuts(item) for item in self.calls}
        self.users: dict[str, list[Item]] = defaultdict(list)
        for item in self.calls:
            if len(item.gold) == 1:
                self.users[item.gold[0].name].append(item)

    def trees(self) -> list[Json]:
        """PASSES over the split, each with fresh draws of tools, cuts and wordings."""
        trees = []
        for number in range(PASSES):
            for item in self.items:
                random = Random(f"{self.seed}:{number}:{item.id}")
                grow = self._call_tree if item.gold else self._respond_tree
                tools, branches = grow(item, random)
                if tools:
                    trees.append({"id": item.id, "pass": number, "tools": tools, "branches": branches})
        return trees

    def _call_tree(self, item: Item, random: Random) -> tuple[list[Json], list[Json]]:
        tools = self.offer(item, random)
        names = {tool_name(tool) for tool in tools}
        gold = {call.name for call in item.gold}
        others = [t for t in item.tools if tool_name(t) not in gold and _fits(t)]
        if len(gold) == 1 and others and random.random() < 0.3:
            # The needed tool is taken away; where another item needs one of the rest, that
            # question stands beside it as the call.
            tools = self._fill([], random.sample(others, min(len(others), 2)), random)
            branches = [self._refuse(item.question, tools, random, "tool_removed")]
            rivals = [i for tool in tools for i in self.users[tool_name(tool)]]
            if rivals:
                branches += self._contrast(random.choice(rivals), random)
            return tools, branches
        if len(tools) < MAX_TOOLS and random.random() < 0.25:
            other, tool = random.choice(self.pool)
            if self.family[other.id] != self.family[item.id] and tool_name(tool) not in names:
                tools = self._fill(tools, [tool], random)
        branches = self._contrast(item, random)
        rivals = [i for name in sorted(names) for i in self.users[name] if i.id != item.id]
        if rivals and random.random() < 0.6:
            branches += self._contrast(random.choice(rivals), random)
        if random.random() < 0.45:
            stranger = self.foreign(item, random)
            branches.append(self._refuse(stranger.question, tools, random, "swapped"))
        return tools, branches

    def _contrast(self, item: Item, random: Random) -> list[Json]:
        """The question as asked beside the same question with a required value missing."""
        branches = [self._call(item.question, item.gold, random, "asked")]
        cuts = self.cuts[item.id] if cuttable(item) else []
        if cuts:
            cut = pick_cut(cuts, random)
            branches.append(self._ask(cut.question, cut.parameter, random))
            control = control_cut(item, random) if random.random() < 0.5 else None
            if control is not None:
                gold = [without(item.gold[0], control.parameter)]
                branches.append(self._call(control.question, gold, random, "harmless_cut"))
        return branches

    def _respond_tree(self, item: Item, random: Random) -> tuple[list[Json], list[Json]]:
        tools = self.offer(item, random)
        if not tools:
            return [], []
        if item.reply:
            branches = [_branch(item.question, item.reply, item.label, "natural")]
        else:
            branches = [self._refuse(item.question, tools, random, "natural")]
        if len(tools) < MAX_TOOLS and random.random() < 0.5:
            caller = self.foreign(item, random)
            gold = [t for t in caller.tools if tool_name(t) in {c.name for c in caller.gold}]
            both = self._fill(tools, gold, random)
            if len(both) == len(tools) + len(gold) <= MAX_TOOLS:
                tools = both
                branches += self._contrast(caller, random)
        return tools, branches

    def _call(self, question: str, gold: Sequence[Call], random: Random, kind: str) -> Json:
        calls = [
            {"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in gold[:2]
        ]
        branch = _branch(question, None, "call", kind)
        branch["messages"][-1]["tool_calls"] = calls
        # Most calls teach the decision and the name only: arguments cost the most tokens.
        branch["whole"] = kind == "asked" and random.random() < 0.3
        if branch["whole"] and len(gold) == 1 and random.random() < 0.4:
            # After a result the model must also learn to halt.
            result = {"role": "tool", "content": random.choice(self.replies["results"])}
            said = random.choice(self.replies["confirm"]).format(tool=gold[0].name)
            branch["messages"] += [result, {"role": "assistant", "content": said}]
        return branch

    def _ask(self, question: str, parameter: str, random: Random) -> Json:
        text = random.choice(self.replies["ask"]).format(parameter=words(parameter))
        return _branch(question, text, "ask", "parameter_removed")

    def _refuse(self, question: str, tools: list[Json], random: Random, kind: str) -> Json:
        text = random.choice(self.replies["refuse"])
        names = " and ".join(tool_name(tool) for tool in tools)
        return _branch(question, text.format(tool=names), "refuse", kind)


class HeldOut(_Bench):
    """One held-out split: natural decisions, cut-out asks among them, and the paired sets."""

    def __init__(self, items: Sequence[Item], family: dict[str, str], seed: int, split: str) -> None:
        super().__init__(items, family, seed)
        self.caps = CAPS[split]
        self.random = Random(f"{seed}:{split}")
        self.tools = {item.id: self.offer(item, Random(f"{seed}:{item.id}")) for item in self.items}
        self.items = [item for item in self.items if self.tools[item.id]]
        self.shown = [item for item in self.calls if self.tools[item.id]]

    def examples(self) -> list[Example]:
        """Every prompt once; a call item may serve several sets."""
        chosen: dict[str, Example] = {}
        natural = [item for item in self.items if item.source != "when2call"]
        respond = [item for item in natural if item.label == "refuse"]
        for items, cap in (
            ([item for item in self.shown if item in natural], self.caps["call"]),
            (respond, self.caps["refuse"]),
        ):
            for item in self._sample(items, cap):
                self._keep(chosen, item, "decisions")
        for item in self.items:
            if item.source == "when2call":
                self._keep(chosen, item, "when2call")
        # Pairs are made from the decisions' own call items, which are scored anyway.
        singles = [item for item in self.shown if len(item.gold) == 1 and item.id in chosen]
        cut = {item.id: missing_cuts(item) for item in singles}
        withheld = [item for item in singles if cut[item.id]]
        for item in self._sample(withheld, self.caps["ask"]):
            self._missing(chosen, item, cut[item.id], "decisions")
        for item in self._sample(withheld, self.caps["pairs"]):
            self._missing(chosen, item, cut[item.id], "parameter_removed")
            control = control_cut(item, self.random)
            if control is not None:
                gold = [without(item.gold[0], control.parameter)]
                self._pair(
                    chosen,
                    replace(item, question=control.question, gold=gold),
                    "harmless_cut",
                    "call",
                    style=control.style,
                )
        for item in self._sample(singles, self.caps["pairs"]):
            tools = self.tools[self.foreign(item, self.random).id]
            self._pair(chosen, item, "swapped", "refuse", tools=tools)
        several = [item for item in singles if self._rest(item)]
        for item in self._sample(several, self.caps["pairs"]):
            self._pair(chosen, item, "tool_removed", "refuse", tools=self._rest(item))
        return list(chosen.values())

    def _sample(self, items: Sequence[Item], cap: int) -> list[Item]:
        return self.random.sample(list(items), min(cap, len(items)))

    def _rest(self, item: Item) -> list[Json]:
        """The item's other tools without the needed one and without a version of it."""
        gold = item.gold[0].name
        stem = re.sub(r"\d+", "", gold)
        rest = [t for t in item.tools if _fits(t) and re.sub(r"\d+", "", tool_name(t)) != stem]
        return self._fill([], rest[: MAX_TOOLS - 1], Random(f"{self.seed}:{item.id}:rest"))

    def _keep(self, chosen: dict[str, Example], item: Item, name: str) -> None:
        example = chosen.setdefault(item.id, self._example(item))
        if name not in example.sets:
            example.sets.append(name)

    def _missing(self, chosen: dict[str, Example], item: Item, cuts: list[Cut], name: str) -> None:
        cut = pick_cut(cuts, self.random)
        changed = replace(item, question=cut.question, gold=[])
        self._pair(chosen, changed, name, "ask", style=cut.style)

    def _pair(
        self,
        chosen: dict[str, Example],
        changed: Item,
        name: str,
        label: str,
        tools: list[Json] | None = None,
        style: str = "",
    ) -> None:
        """Add the changed item, and its original as the positive of the same paired set."""
        if name != "decisions":
            original = next(item for item in self.items if item.id == changed.id)
            self._keep(chosen, original, name)
        example = replace(
            self._example(changed),
            id=f"{changed.id}~{name}",
            sets=[name],
            label=label,
            pair=changed.id,
            style=style,
        )
        chosen[example.id] = replace(example, tools=tools) if tools else example

    def _example(self, item: Item) -> Example:
        gold = [{"name": call.name, "arguments": call.arguments} for call in item.gold]
        return Example(
            id=item.id,
            sets=[],
            source=item.source,
            group=self.family[item.id],
            label=item.label,
            question=item.question,
            tools=self.tools[item.id],
            gold=gold,
        )


def pick_cut(cuts: Sequence[Cut], random: Random) -> Cut:
    """One cut: the parameter first, evenly, then the style by STYLE_WEIGHTS."""
    parameter = random.choice(sorted({cut.parameter for cut in cuts}))
    own = [cut for cut in cuts if cut.parameter == parameter]
    styles = sorted({cut.style for cut in own})
    style = random.choices(styles, [STYLE_WEIGHTS[s] for s in styles])[0]
    return random.choice([cut for cut in own if cut.style == style])


def write(out: Path, built: dict[str, list[Json]]) -> dict[str, str]:
    """One JSONL file a part; returns each file's SHA-256."""
    out.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for name, rows in built.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (out / f"{name}.jsonl").write_text(text, encoding="utf-8")
        hashes[name] = hashlib.sha256(text.encode()).hexdigest()
    return hashes


def summary(built: dict[str, list[Json]]) -> Json:
    """Counts of branches by kind and of held-out examples by set and label."""
    kinds = Counter(b["kind"] for tree in built["train"] for b in tree["branches"])
    counts: Json = {"train": {"trees": len(built["train"]), **dict(sorted(kinds.items()))}}
    for name in ("validation", "test"):
        sets = Counter(f"{s}/{row['label']}" for row in built[name] for s in row["sets"])
        counts[name] = dict(sorted(sets.items()))
    return counts


def _fits(tool: Json) -> bool:
    return _width(tool) <= MAX_TOOL


def _width(tool: Json) -> int:
    """Characters of the tool's signature line in the chat template, near enough."""
    function: Json = tool["function"]
    properties: Json = function["parameters"].get("properties", {})
    return len(function["description"]) + sum(len(name) + 10 for name in properties) + 20


def _branch(question: str, reply: str | None, label: str, kind: str) -> Json:
    answer: dict[str, Any] = {"role": "assistant", "content": reply}
    messages = [{"role": "user", "content": question}, answer]
    return {"label": label, "kind": kind, "whole": True, "messages": messages}


def main() -> None:
    """Build the data and print what is in it."""
    parser = argparse.ArgumentParser(prog="bench.lab.data", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--when2call", type=Path, help="a When2Call JSONL file; default: none")
    parser.add_argument("--cache", type=Path, default=Path(".cache/lab"))
    parser.add_argument("--out", type=Path, default=None, help="default: CACHE/data")
    options = parser.parse_args()
    try:
        items = source.bfcl_items(fetch(BFCL, options.cache / "packages"))
        extra = source.when2call_items(options.when2call) if options.when2call else []
    except (source.SourceError, PackageError, OSError) as error:
        raise SystemExit(f"lab data: {error}") from None
    built = build(items, options.seed, extra)
    out = options.out or options.cache / "data"
    used = hashlib.sha256(options.when2call.read_bytes()).hexdigest() if options.when2call else None
    manifest = {"seed": options.seed, "bfcl_eval": BFCL.version, "when2call": used}
    manifest |= {**summary(built), "sha256": write(out, built)}
    text = json.dumps(manifest, indent=2)
    (out / "manifest.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
