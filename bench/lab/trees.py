"""Conversations that share a tool list, packed so that the shared part is computed once.

A tree is a token prefix with branches. Packed into one row, each branch sees the prefix and
itself, at the positions that it would have alone; scores equal those of separate prompts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from bench.decisions.source import Json

TURN_END = "<|im_end|>"
ENTRY = "<tool_call>"


@dataclass(frozen=True)
class Branch:
    """Token ids of one conversation and the (start, end) of each assistant reply in them.

    A span that is empty (start == end) marks a decision position whose reply isn't given.
    """

    ids: list[int]
    replies: list[tuple[int, int]]


@dataclass(frozen=True)
class Tree:
    """Branches of one tool list; `labels` say per branch whether a call is due."""

    branches: list[Branch]
    labels: list[bool]

    @property
    def shared(self) -> int:
        """Length of the common prefix; a decision position is never inside it."""
        limit = min(branch.replies[0][0] for branch in self.branches) - 1
        first, *others = (branch.ids for branch in self.branches)
        for index in range(limit):
            if any(ids[index] != first[index] for ids in others):
                return index
        return limit

    @property
    def length(self) -> int:
        """Tokens in packed form."""
        shared = self.shared
        return shared + sum(len(branch.ids) - shared for branch in self.branches)


def encode(tokenizer: Any, messages: Sequence[Json], tools: Sequence[Json]) -> Branch:
    """A conversation as the server would see it, with the spans of the assistant's replies.

    Prompt and reply are tokenized apart, since that is where generation begins. A conversation
    that ends with the user is given a decision position.
    """
    ids: list[int] = []
    replies = []
    done = 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = _render(tokenizer, messages[:index], tools, prompt=True)
        whole = _render(tokenizer, messages[: index + 1], tools, prompt=False)
        end = whole.rindex(TURN_END) + len(TURN_END)
        ids += _tokens(tokenizer, prompt[done:])
        reply = _tokens(tokenizer, whole[len(prompt) : end])
        replies.append((len(ids), len(ids) + len(reply)))
        ids += reply
        done = end
    if messages[-1]["role"] != "assistant":
        ids += _tokens(tokenizer, _render(tokenizer, messages, tools, prompt=True)[done:])
        replies.append((len(ids), len(ids)))
    return Branch(ids, replies)


def batches(trees: Sequence[Tree], budget: int) -> Iterator[list[int]]:
    """Indices of trees in groups of similar length, each of at most `budget` padded tokens."""
    group: list[int] = []
    longest = 0
    for index in sorted(range(len(trees)), key=lambda i: trees[i].length):
        longest = trees[index].length
        if group and longest * (len(group) + 1) > budget:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


class Rows:
    """Trees packed into a padded batch, one row a tree.

    `sources` and `targets` pair each position that predicts a reply token with that token;
    `decisions` are the positions (row, column) that predict each branch's first reply token.
    """

    def __init__(self, trees: Sequence[Tree], pad: int) -> None:
        width = max(tree.length for tree in trees)
        self.ids = torch.full((len(trees), width), pad)
        self.positions = torch.zeros((len(trees), width), dtype=torch.long)
        # Padding has a segment per column, so that it attends to itself only.
        segments = torch.arange(width).repeat(len(trees), 1) + 1000
        self.decisions: list[tuple[int, int]] = []
        self.sources: list[tuple[int, int]] = []
        self.targets: list[int] = []
        self.first: list[bool] = []
        for row, tree in enumerate(trees):
            self._place(row, tree, segments)
        same = segments[:, :, None] == segments[:, None, :]
        shared = (segments == 0)[:, None, :]
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        self.mask = ((same | shared) & causal)[:, None]

    def _place(self, row: int, tree: Tree, segments: torch.Tensor) -> None:
        shared = tree.shared
        self.ids[row, :shared] = torch.tensor(tree.branches[0].ids[:shared])
        self.positions[row, :shared] = torch.arange(shared)
        segments[row, :shared] = 0
        start = shared
        for number, branch in enumerate(tree.branches, 1):
            end = start + len(branch.ids) - shared
            self.ids[row, start:end] = torch.tensor(branch.ids[shared:])
            self.positions[row, start:end] = torch.arange(shared, len(branch.ids))
            segments[row, start:end] = number
            offset = start - shared
            self.decisions.append((row, offset + branch.replies[0][0] - 1))
            for order, (begin, stop) in enumerate(branch.replies):
                for index in range(begin, stop):
                    self.sources.append((row, offset + index - 1))
                    self.targets.append(branch.ids[index])
                    self.first.append(order == 0 and index == begin)
            start = end

    def hidden(self, model: Any) -> torch.Tensor:
        """The last hidden state of every position, (rows, width, features)."""
        bias = torch.zeros(self.mask.shape).masked_fill(~self.mask, torch.finfo(torch.float32).min)
        output = model(input_ids=self.ids, position_ids=self.positions, attention_mask=bias, use_cache=False)
        state: torch.Tensor = output.last_hidden_state
        return state


def logits(hidden: torch.Tensor, places: Sequence[tuple[int, int]], head: torch.Tensor) -> Any:
    """Vocabulary logits at the given (row, column) places, (places, vocabulary)."""
    rows, columns = zip(*places, strict=True)
    return linear(hidden[list(rows), list(columns)], head)


def margins(scores: torch.Tensor, entry: int) -> torch.Tensor:
    """logit(p(E)): the entry token's logit against the logsumexp of all others."""
    others = scores.clone()
    others[:, entry] = float("-inf")
    return scores[:, entry] - torch.logsumexp(others, dim=-1)


def _render(tokenizer: Any, messages: Sequence[Json], tools: Sequence[Json], prompt: bool) -> str:
    return str(
        tokenizer.apply_chat_template(
            list(messages), tools=list(tools), tokenize=False, add_generation_prompt=prompt
        )
    )


def _tokens(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
