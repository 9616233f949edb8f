"""The logits processor that vLLM loads: adds a bias to the tokens that open a tool call.

    --logits-processors calibrators.processor:ToolEntryBias

One class serves both of vLLM's model runners, whose processor interfaces differ; it asks for
nothing but vLLM, so this file can also be mounted alone (`--logits-processors processor:...`).
Load it by that flag only: as an entry point too, it would apply each bias twice.

A request sets its calibration in `vllm_xargs`:

| key          | value                                                                          |
| ------------ | ------------------------------------------------------------------------------ |
| `seam_bias`  | number from -100 to 100, added to each entry token's logit                     |
| `seam_entry` | 1 to 128 token ids that may open a call; ids outside the vocabulary are unused |
| `seam_scope` | `decision` (default) or `everywhere`                                           |
| `seam_after` | up to 16 token ids that close the reasoning, where the decision comes after it |
| `seam_space` | up to 128 ids of whitespace tokens, which leave the decision open              |
| `seam_hello` | anything: refused with this module's name, version, interfaces, and the runner |

The *decision position* opens with the reply or, given `seam_after`, once the reasoning has
closed, in the reply or at the end of the prompt. It stays open over at most 16 whitespace tokens
and closes at the first other token; the bias acts wherever it is open. With `everywhere` the bias
acts at every position from the first opening on.

The bias is finite, so a token that a grammar has masked stays masked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor
from vllm.v1.sample.logits_processor import process_dict_updates

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2LogitsProcessor
except ImportError:  # a vLLM whose second model runner takes no custom processors
    V2LogitsProcessor = object

NAME = "seam-processor"
VERSION = "1.0"
INTERFACES = ["v1"] if V2LogitsProcessor is object else ["v1", "v2"]

MAX_BIAS = 100.0  # vLLM's own bound for logit_bias; far larger ones overflow fp32
MAX_IDS = 128
MAX_AFTER = 16
MAX_SPACE = 16

# Which runner a server has shows nowhere outside, but each has a front end of its own that validates.
_RUNNERS = {
    "vllm.v1.sample.logits_processor": "v1",
    "vllm.v1.worker.gpu.sample.logits_processor.loader": "v2",
}

_KEYS = ("seam_bias", "seam_entry", "seam_scope", "seam_after", "seam_space", "seam_hello")


class ToolEntryBias(V1LogitsProcessor, V2LogitsProcessor):  # type: ignore[misc]
    """Adds each request's bias to its entry tokens, under either model runner.

    V1 hands over a device and whether to pin memory, and tells of every change of the batch. V2
    hands over the state of its request slots, and describes the batch with each call.
    """

    def __init__(self, vllm_config: Any, *placement: Any) -> None:  # noqa: ARG002
        if len(placement) == 1:
            (requests,) = placement
            self._slots = _Slots(requests)
        else:
            device, pin_memory = placement
            self._batch = _Batch(device, pin_memory)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse bad values, and answer the handshake; runs when the server admits a request.

        Raises:
            ValueError: the server answers 400 with its text.
        """
        arguments = sampling_params.extra_args or {}
        if "seam_hello" in arguments:
            runner = _RUNNERS.get(sys._getframe(1).f_globals.get("__name__", ""))
            about = {"name": NAME, "version": VERSION, "interfaces": INTERFACES, "runner": runner}
            raise ValueError(f"{NAME} {json.dumps(about, separators=(',', ':'))}")
        _read(arguments)

    def is_argmax_invariant(self) -> bool:
        """Tell V1 to run this for greedy requests too, and before temperature."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow V1's batch; runs before each forward pass."""
        self._batch.update(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take over a V2 slot; tell whether its request has a bias."""
        return self._slots.add(req_idx, _read(sampling_params.extra_args or {}))

    def apply_staged_writes(self) -> None:
        """Send V2 slots that changed to the device; runs before each forward pass."""
        self._slots.flush()

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Add the biases in place; V2 passes the context of the step."""
        return self._batch.apply(logits) if ctx is None else self._slots.apply(logits, ctx)


# What a request asks for ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Spec:
    """One request's calibration, checked; a request with bias 0 has none."""

    bias: float
    entry: tuple[int, ...]
    everywhere: bool
    after: tuple[int, ...]
    space: frozenset[int]

    @property
    def reads_tokens(self) -> bool:
        """Whether token values, and not lengths alone, tell where the bias acts."""
        return bool(self.after) or (bool(self.space) and not self.everywhere)


def _read(arguments: Mapping[str, Any]) -> _Spec | None:
    """Check the `seam_` keys of a request's extra arguments; others aren't ours."""
    given = [key for key in arguments if key.startswith("seam_")]
    if not given:
        return None
    if unknown := [key for key in given if key not in _KEYS]:
        raise ValueError(f"vllm_xargs.{unknown[0]} is unknown to {NAME} {VERSION}")
    bias = arguments.get("seam_bias")
    # Also false for NaN, which JSON parsers let through.
    if not isinstance(bias, int | float) or not -MAX_BIAS <= bias <= MAX_BIAS:
        raise _bad("seam_bias", f"a number from {-MAX_BIAS:g} to {MAX_BIAS:g}", bias)
    scope = arguments.get("seam_scope", "decision")
    if scope not in ("decision", "everywhere"):
        raise _bad("seam_scope", "'decision' or 'everywhere'", scope)
    entry = _ids(arguments, "seam_entry", 1, MAX_IDS)
    after = _ids(arguments, "seam_after", 0, MAX_AFTER)
    space = frozenset(_ids(arguments, "seam_space", 0, MAX_IDS))
    if shared := space.intersection(entry):
        raise ValueError(f"vllm_xargs.seam_space holds {min(shared)}, which is in seam_entry")
    if bias == 0:
        return None
    # A repeated id would have its bias added twice.
    unique = tuple(dict.fromkeys(entry))
    return _Spec(float(bias), unique, scope == "everywhere", after, space)


def _ids(arguments: Mapping[str, Any], key: str, least: int, most: int) -> tuple[int, ...]:
    value = arguments.get(key, [])
    good = isinstance(value, list | tuple) and least <= len(value) <= most
    # The device holds ids in 32 bits.
    if not good or not all(isinstance(item, int) and 0 <= item < 2**31 for item in value):
        raise _bad(key, f"a list of {least} to {most} token ids", value)
    return tuple(value)


def _bad(key: str, wanted: str, value: object) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ValueError(f"vllm_xargs.{key} must be {wanted}, not {shown}")


# Model Runner V1: rows of the batch, on the host ----------------------------------------------


class _Position(Enum):
    OPEN = "the bias acts"
    SHUT = "the bias doesn't act here, but may later"
    PASSED = "the bias will never act again"


@dataclass
class _Row:
    """A request in V1's batch.

    `output` is the batch's own list. Before the forward pass its last items may be -1, which
    stand for tokens that are still on the device; they are real by the time of `apply`.
    """

    spec: _Spec
    output: list[int]
    tail: list[int]  # the prompt's last tokens, as far as they can matter
    closed: bool = field(default=False)  # for `everywhere`: the reasoning has closed
    scanned: int = field(default=0)  # output tokens that were searched for its end

    @classmethod
    def admit(cls, params: Any, prompt: Sequence[int] | None, output: list[int]) -> _Row | None:
        """Make a row, unless the request has no bias or is resumed past its decision."""
        spec = _read(params.extra_args or {})
        if spec is None:
            return None
        reach = len(spec.after) + MAX_SPACE
        row = cls(spec, output, list(prompt[-reach:]) if spec.after and prompt else [])
        row.closed = bool(spec.after) and _just_closed(row.tail, spec)
        return None if row.has_passed() else row

    def has_passed(self) -> bool:
        """Tell by length alone whether the decision is over; safe before the forward pass."""
        if self.spec.everywhere or self.spec.after:
            return False
        return len(self.output) > (MAX_SPACE if self.spec.space else 0)

    def position(self) -> _Position:
        """Tell how the bias stands at the token about to be sampled; `output` must be real."""
        spec = self.spec
        if not spec.reads_tokens:
            return _Position.OPEN
        if spec.everywhere:
            return _Position.OPEN if self._has_closed() else _Position.SHUT
        if spec.after:
            recent = self._recent(len(spec.after) + MAX_SPACE)
            return _Position.OPEN if _just_closed(recent, spec) else _Position.SHUT
        return _Position.OPEN if spec.space.issuperset(self.output) else _Position.PASSED

    def _has_closed(self) -> bool:
        fresh = len(self.output) - self.scanned
        if not self.closed and fresh > 0:
            # The end may have begun before the fresh tokens, or in the prompt.
            recent = self._recent(len(self.spec.after) - 1 + fresh)
            self.closed = _holds(recent, self.spec.after)
        self.scanned = len(self.output)
        return self.closed

    def _recent(self, count: int) -> list[int]:
        missing = count - len(self.output)
        return self.output[-count:] if missing <= 0 else [*self.tail[-missing:], *self.output]


def _just_closed(tokens: Sequence[int], spec: _Spec) -> bool:
    """Tell whether tokens end with the reasoning's end and whitespace only."""
    for end in range(len(tokens), max(len(tokens) - MAX_SPACE, len(spec.after)) - 1, -1):
        if tuple(tokens[end - len(spec.after) : end]) == spec.after:
            return True
        if tokens[end - 1] not in spec.space:
            return False
    return False


def _holds(tokens: Sequence[int], part: tuple[int, ...]) -> bool:
    starts = range(len(tokens) - len(part) + 1)
    return any(tuple(tokens[start : start + len(part)]) == part for start in starts)


class _Batch:
    """V1: the rows that may still need a bias, and index tensors that change only when they do."""

    def __init__(self, device: torch.device, pin_memory: bool) -> None:
        self._device = device
        self._pin_memory = pin_memory
        self._rows: dict[int, _Row] = {}
        self._biased: list[int] = []  # row numbers that the tensors stand for
        self._stale = False
        self._where: tuple[torch.Tensor, torch.Tensor]
        self._values: torch.Tensor

    def update(self, batch_update: Any) -> None:
        changed = process_dict_updates(self._rows, batch_update, _Row.admit)
        passed = [index for index, row in self._rows.items() if row.has_passed()]
        for index in passed:
            del self._rows[index]
        self._stale |= changed or bool(passed)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._rows:
            return logits
        biased = self._positions()
        if self._stale or biased != self._biased:
            self._rebuild(biased, vocabulary=logits.shape[-1])
        if biased:
            logits[self._where] += self._values
        return logits

    def _positions(self) -> list[int]:
        positions = {index: row.position() for index, row in self._rows.items()}
        for index, position in positions.items():
            if position is _Position.PASSED:
                del self._rows[index]
        return [index for index, position in positions.items() if position is _Position.OPEN]

    def _rebuild(self, biased: list[int], vocabulary: int) -> None:
        items = [
            (index, token, self._rows[index].spec.bias)
            for index in biased
            for token in self._rows[index].spec.entry
            if token < vocabulary
        ]
        self._where = (
            self._tensor([item[0] for item in items], torch.int64),
            self._tensor([item[1] for item in items], torch.int64),
        )
        self._values = self._tensor([item[2] for item in items], torch.float32)
        self._biased = biased
        self._stale = False

    def _tensor(self, data: list[Any], dtype: torch.dtype) -> torch.Tensor:
        return _upload(data, dtype, self._device, self._pin_memory)


def _upload(data: Any, dtype: torch.dtype, device: torch.device, pin: bool) -> torch.Tensor:
    """Copy to the device without waiting for it, which only pinned memory allows."""
    host = torch.tensor(data, dtype=dtype, pin_memory=pin)
    return host.to(device, non_blocking=True)


# Model Runner V2: slots of requests, on the device --------------------------------------------

# Columns of a slot's row of integers. `after` is aligned to the right.
_EVERYWHERE = 0
_AFTER = slice(1, 1 + MAX_AFTER)
_SPACE = slice(_AFTER.stop, _AFTER.stop + MAX_IDS)
_ENTRY = slice(_SPACE.stop, _SPACE.stop + MAX_IDS)
_NO_TOKEN = -1  # before the sequence's start
_UNUSED = -2  # an unused column: equals no token

# Tokens that `apply` looks back on: the reasoning's end, whitespace, and what one step commits.
_WINDOW = 64


# How far behind the prompt a slot may need the device's work, in tokens.
_NEVER = -1
_AT_FIRST = 0
_NEAR = _WINDOW  # the decision's whitespace, and a bound that counts drafts not yet rejected
_ALWAYS = 2**40


class _Slots:
    """V2: each slot's calibration in device tables, read without waiting for the device."""

    def __init__(self, requests: Any) -> None:
        self._requests = requests
        count, device = requests.max_num_reqs, requests.device
        self._reach = np.full(count, _NEVER, dtype=np.int64)
        self._reads = np.zeros(count, dtype=np.bool_)
        self._specs: list[_Spec | None] = [None] * count
        self._staged: set[int] = set()
        self._bias = torch.zeros(count, dtype=torch.float32, device=device)
        self._table = torch.full((count, _ENTRY.stop), _UNUSED, dtype=torch.int32, device=device)
        # One more than there are slots: where writes go that must not happen.
        self._closed = torch.zeros(count + 1, dtype=torch.bool, device=device)

    def add(self, slot: int, spec: _Spec | None) -> bool:
        # Nothing tells when a request leaves, so a slot's last bias is undone by its next one.
        if spec is not None or self._specs[slot] is not None:
            self._staged.add(slot)
        self._specs[slot] = spec
        self._reach[slot] = _reach(spec)
        self._reads[slot] = spec is not None and spec.reads_tokens
        return spec is not None

    def flush(self) -> None:
        if not self._staged:
            return
        slots = sorted(self._staged)
        self._staged.clear()
        specs = [self._specs[slot] for slot in slots]
        where = self._tensor(slots, torch.int64)
        self._bias[where] = self._tensor([s.bias if s else 0.0 for s in specs], torch.float32)
        self._table[where] = self._tensor(
            np.stack([_columns(spec, self._requests.vocab_size) for spec in specs]), torch.int32
        )
        self._closed[where] = False
        for slot, spec in zip(slots, specs, strict=True):
            if spec is not None and spec.everywhere and spec.after:
                self._recall(slot)

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        due = self._due(ctx)
        if not due.any():
            return logits
        slots = ctx.expanded_idx_mapping.long()
        biased = self._biased(slots, ctx, reads=bool(self._reads[ctx.idx_mapping_np[due]].any()))
        entry = self._table[slots, _ENTRY].long()
        values = torch.where(biased, self._bias[slots], 0.0).unsqueeze(1)
        values = torch.where(entry >= 0, values, 0.0)
        return logits.scatter_add_(1, entry.clamp(min=0), values)

    def _due(self, ctx: Any) -> np.ndarray[Any, Any]:
        """Tell on the host which of the step's requests may have their bias act: bool [requests].

        The bound on lengths is exact at the first output position, where nothing is drafted.
        """
        slots = ctx.idx_mapping_np
        output = ctx.seq_lens_upper_bound_np[: len(slots)] - self._requests.prompt_len.np[slots]
        due: np.ndarray[Any, Any] = (output >= 0) & (output <= self._reach[slots])
        return due

    def _biased(self, slots: torch.Tensor, ctx: Any, reads: bool) -> torch.Tensor:
        """Tell for each row of logits whether its slot's bias acts there: bool [rows]."""
        everywhere = self._table[slots, _EVERYWHERE] == 1
        if not reads:
            return everywhere | (ctx.pos + 1 == self._requests.prompt_len.gpu[slots])
        open_, closed = self._inspect(slots, *self._history(slots, ctx))
        closed |= self._closed[slots]
        # A row behind drafts may not remember what it saw: the drafts may be rejected.
        keeps = ctx.expanded_local_pos == 0
        self._closed[torch.where(keeps, slots, len(self._closed) - 1)] = closed
        at_once = self._table[slots, _AFTER.stop - 1] == _UNUSED
        return torch.where(everywhere, closed | at_once, open_)

    def _history(self, slots: torch.Tensor, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last tokens up to each row's own and their positions: int [rows, window].

        Committed tokens are in the slot's history, this step's drafts only in the rows before.
        """
        back = torch.arange(_WINDOW - 1, -1, -1, device=slots.device)
        positions = ctx.pos.long().unsqueeze(1) - back
        history = self._requests.all_token_ids.gpu
        known = history[slots.unsqueeze(1), positions.clamp(0, history.shape[1] - 1)]
        rows = torch.arange(len(slots), device=slots.device).unsqueeze(1) - back
        drafted = ctx.input_ids[rows.clamp(min=0)].to(known.dtype)
        is_known = positions < self._requests.total_len.gpu[slots].unsqueeze(1)
        tokens = torch.where(is_known, known, drafted)
        return torch.where(positions >= 0, tokens, _NO_TOKEN), positions

    def _inspect(
        self, slots: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tell for each row of tokens whether the decision is open after them, and whether it
        has ever opened within them: two bool [rows].

        A *mark* is the last token before an opening: the reasoning's last or, without
        `seam_after`, the prompt's.
        """
        after, space = self._table[slots, _AFTER], self._table[slots, _SPACE]
        prompt_end = self._requests.prompt_len.gpu[slots].unsqueeze(1) - 1
        lead = torch.nn.functional.pad(tokens, (MAX_AFTER - 1, 0), value=_NO_TOKEN)
        spans = lead.unfold(1, MAX_AFTER, 1)
        wanted = after.unsqueeze(1)
        ends = ((spans == wanted) | (wanted == _UNUSED)).all(-1)
        marks = torch.where(after[:, -1:] == _UNUSED, positions == prompt_end, ends)

        other = ~(tokens.unsqueeze(2) == space.unsqueeze(1)).any(-1)
        distance = positions[:, -1:] - positions
        open_ = marks & (_count_after(other) == 0) & (distance <= MAX_SPACE)
        # In the prompt, a mark counts only at its end: older replies may have reasoned too.
        in_prompt = _count_after(other & (positions <= prompt_end))
        closed = marks & (in_prompt == 0) & (prompt_end - positions <= MAX_SPACE)
        # The chunks of a long prompt give rows too, whose samples are thrown away.
        ready = positions[:, -1] >= prompt_end[:, 0]
        return open_.any(1) & ready, closed.any(1) & ready

    def _recall(self, slot: int) -> None:
        """Search a resumed request's output, which it had before it was preempted."""
        prompt, known = (
            int(lengths.np[slot]) for lengths in (self._requests.prompt_len, self._requests.prefill_len)
        )
        if known == prompt:
            return
        start = max(prompt - MAX_AFTER - MAX_SPACE, 0)
        tokens = self._requests.all_token_ids.gpu[slot, start:known].unsqueeze(0)
        positions = torch.arange(start, known, device=tokens.device).unsqueeze(0)
        where = torch.full((1,), slot, device=tokens.device)
        self._closed[where] = self._inspect(where, tokens, positions)[1]

    def _tensor(self, data: Any, dtype: torch.dtype) -> torch.Tensor:
        device = self._requests.device
        return _upload(data, dtype, device, pin=device.type == "cuda")


def _reach(spec: _Spec | None) -> int:
    if spec is None:
        return _NEVER
    if spec.everywhere or spec.after:
        return _ALWAYS
    return _NEAR if spec.space else _AT_FIRST


def _columns(spec: _Spec | None, vocabulary: int) -> np.ndarray[Any, Any]:
    columns = np.full(_ENTRY.stop, _UNUSED, dtype=np.int32)
    if spec is not None:
        entry = [token for token in spec.entry if token < vocabulary]
        columns[_EVERYWHERE] = spec.everywhere
        columns[_AFTER.stop - len(spec.after) : _AFTER.stop] = spec.after
        columns[_SPACE.start : _SPACE.start + len(spec.space)] = sorted(spec.space)
        columns[_ENTRY.start : _ENTRY.start + len(entry)] = entry
    return columns


def _count_after(flags: torch.Tensor) -> torch.Tensor:
    """Count the flags behind each place of a row: int [rows, places]."""
    return flags.flip(1).cumsum(1).flip(1) - flags.long()
