"""Small engines that drive the processor as vLLM's two model runners do, and what to expect.

`V1Engine` keeps its batch in vLLM's own InputBatch, so that adds, removals, moves and swaps reach
the processor as in production. V2's request state needs a GPU, so `V2Engine` has a stand-in for
it; loader, interface and context are vLLM's own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    build_custom_logits_processors,
)
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from calibrators.processor import MAX_SPACE, ToolEntryBias

PROCESSOR = "calibrators.processor:ToolEntryBias"
VOCABULARY = 24
SLOTS = 6
CONTEXT = 256


def acts(prompt: list[int], output: list[int], arguments: dict[str, Any]) -> bool:
    """Tell by definition whether the bias acts on the token that follows the output."""
    history = prompt + output
    after, space = arguments.get("seam_after", []), arguments.get("seam_space", [])

    def is_open(length: int) -> bool:
        for blanks in range(min(MAX_SPACE, length) + 1):
            end = length - blanks
            marked = history[max(end - len(after), 0) : end] == after
            if marked if after else end == len(prompt):
                return True
            if end == 0 or history[end - 1] not in space:
                return False
        return False

    if arguments.get("seam_scope") == "everywhere":
        return any(is_open(length) for length in range(len(prompt), len(history) + 1))
    return is_open(len(history))


def expected(logits: torch.Tensor, arguments: dict[str, Any], does_act: bool) -> torch.Tensor:
    """Return one row of logits as it should leave the processor."""
    logits = logits.clone()
    if does_act and "seam_bias" in arguments:
        entry = {token for token in arguments["seam_entry"] if token < VOCABULARY}
        logits[sorted(entry)] += arguments["seam_bias"]
    return logits


@dataclass
class Request:
    """One request, with the tokens that its model will say whatever the logits are."""

    name: str
    prompt: list[int]
    script: list[int]
    arguments: dict[str, Any]
    output: list[int] = field(default_factory=list)
    unfilled: int = 0  # tokens of prompt and earlier output that later chunks will feed

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(extra_args=dict(self.arguments) or None)

    @property
    def is_done(self) -> bool:
        return len(self.output) == len(self.script)


class V1Engine:
    """Model Runner V1: row i of the logits is request i of the batch."""

    def __init__(self, rng: random.Random, asynchronous: bool = False) -> None:
        self.rng = rng
        self.asynchronous = asynchronous
        self.running: dict[str, Request] = {}
        self._lists: dict[str, list[int]] = {}
        device = torch.device("cpu")
        self.processor = ToolEntryBias(None, device, False)
        self.batch = InputBatch(
            max_num_reqs=SLOTS,
            max_model_len=CONTEXT,
            max_num_batched_tokens=CONTEXT,
            device=device,
            vocab_size=VOCABULARY,
            block_sizes=[16],
            max_num_blocks_per_req=[CONTEXT // 16],
            logitsprocs=LogitsProcessors([self.processor]),
            logitsprocs_need_output_token_ids=True,
        )

    def admit(self, request: Request) -> None:
        self.running[request.name] = request
        # A resumed request comes back with a new list, as under async scheduling.
        self._lists[request.name] = list(request.output)
        self.batch.add_request(
            CachedRequestState(
                req_id=request.name,
                prompt_token_ids=request.prompt,
                mm_features=[],
                sampling_params=request.params,
                generator=None,
                block_ids=([0],),
                num_computed_tokens=0,
                output_token_ids=self._lists[request.name],
            )
        )

    def drop(self, name: str) -> Request:
        self.batch.remove_request(name)
        return self.running.pop(name)

    def step(self) -> None:
        """Run one forward pass and check every row of its logits."""
        self.batch.condense()
        if len(self.running) > 1 and self.rng.random() < 0.3:
            self.batch.swap_states(*self.rng.sample(range(len(self.running)), 2))
        pending = self._hide_last_tokens()
        self.batch.refresh_metadata()
        for tokens, token in pending:
            tokens[-1] = token
        requests = [self.running[name] for name in self.batch.req_ids]
        logits = torch.randn(len(requests), VOCABULARY)
        wanted = [
            # What a chunk of a longer prompt yields is thrown away.
            None if r.unfilled else expected(row, r.arguments, acts(r.prompt, r.output, r.arguments))
            for r, row in zip(requests, logits, strict=True)
        ]
        got = self.processor.apply(logits)
        for request, row, want in zip(requests, got, wanted, strict=True):
            assert want is None or torch.equal(row, want), request
        self._advance(requests)

    def _hide_last_tokens(self) -> list[tuple[list[int], int]]:
        """Under async scheduling the last token is still on the device before the pass."""
        pending = []
        for tokens in self._lists.values():
            if self.asynchronous and tokens:
                pending.append((tokens, tokens[-1]))
                tokens[-1] = -1
        return pending

    def _advance(self, requests: list[Request]) -> None:
        for request in requests:
            if request.unfilled:
                request.unfilled -= 1
                continue
            token = request.script[len(request.output)]
            request.output.append(token)
            self._lists[request.name].append(token)
            if request.is_done:
                self.drop(request.name)


class _Array:
    """Stands in for the GPU-backed tensors of V2's request state, which share these names."""

    def __init__(self, *shape: int) -> None:
        self.gpu = torch.zeros(shape, dtype=torch.int32)
        self.np = self.gpu.numpy()


class V2Engine:
    """Model Runner V2: requests sit in slots, and own one row of logits per drafted token too."""

    def __init__(self, rng: random.Random, drafts: int = 0, wrong: Sequence[int] = range(3, 10)) -> None:
        self.rng = rng
        self.drafts = drafts
        self.wrong = wrong
        self.running: dict[str, Request] = {}
        self._slots: dict[str, int] = {}
        self._free = list(range(SLOTS))
        self._biased: dict[str, bool] = {}
        self.state = SimpleNamespace(
            device=torch.device("cpu"),
            max_num_reqs=SLOTS,
            vocab_size=VOCABULARY,
            all_token_ids=_Array(SLOTS, CONTEXT),
            prompt_len=_Array(SLOTS),
            prefill_len=_Array(SLOTS),
            total_len=_Array(SLOTS),
        )
        (self.processor,) = build_custom_logits_processors(
            None,
            self.state,
            is_pooling_model=False,
            custom_logitsprocs=[PROCESSOR],
        )

    def admit(self, request: Request) -> None:
        slot = self._slots[request.name] = self._free.pop(self.rng.randrange(len(self._free)))
        self.running[request.name] = request
        tokens = request.prompt + request.output
        self.state.prompt_len.np[slot] = len(request.prompt)
        self.state.prefill_len.np[slot] = self.state.total_len.np[slot] = len(tokens)
        # What the slot's last request left behind stays, as on the device.
        self.state.all_token_ids.np[slot, : len(tokens)] = tokens
        self._biased[request.name] = self.processor.add_request(slot, request.params)

    def drop(self, name: str) -> Request:
        self._free.append(self._slots.pop(name))
        return self.running.pop(name)

    def step(self) -> None:
        """Run one forward pass and check every row of its logits."""
        self.processor.apply_staged_writes()
        requests = self.rng.sample(list(self.running.values()), len(self.running))
        drafted = {request.name: self._draft(request) for request in requests}
        rows = [(r, n) for r in requests for n in range(len(drafted[r.name]) + 1)]
        logits = torch.randn(len(rows), VOCABULARY)
        wanted = []
        for (request, n), row in zip(rows, logits, strict=True):
            output = request.output + drafted[request.name][:n]
            does_act = acts(request.prompt, output, request.arguments)
            wanted.append(None if request.unfilled else expected(row, request.arguments, does_act))
        got = logits
        # vLLM skips the processors when no request of the step wants one.
        if any(self._biased[request.name] for request in requests):
            got = self.processor.apply(logits, self._context(requests, drafted))
        for (request, n), row, want in zip(rows, got, wanted, strict=True):
            assert want is None or torch.equal(row, want), (request, n)
        for request in requests:
            self._advance(request, drafted[request.name])

    def _draft(self, request: Request) -> list[int]:
        """Guess some tokens, most of them right; none before the first output token."""
        if request.unfilled or not request.output:
            return []
        ahead = request.script[len(request.output) : len(request.output) + self.drafts]
        return [token if self.rng.random() < 0.7 else self.rng.choice(self.wrong) for token in ahead]

    def _context(self, requests: list[Request], drafted: dict[str, list[int]]) -> LogitsContext:
        slots: list[int] = []
        places: list[int] = []
        tokens: list[int] = []
        positions: list[int] = []
        lengths: list[int] = []
        for request in requests:
            history = request.prompt + request.output
            drafts = drafted[request.name]
            filled = len(history) - request.unfilled
            fed = [history[filled - 1], *drafts]
            slots += [self._slots[request.name]] * len(fed)
            places += range(len(fed))
            tokens += fed
            positions += [filled - 1 + n for n in range(len(fed))]
            lengths.append(filled + len(drafts))
        batch = [self._slots[request.name] for request in requests]
        return LogitsContext(
            expanded_idx_mapping=torch.tensor(slots, dtype=torch.int32),
            idx_mapping=torch.tensor(batch, dtype=torch.int32),
            idx_mapping_np=np.array(batch, dtype=np.int32),
            expanded_local_pos=torch.tensor(places, dtype=torch.int32),
            input_ids=torch.tensor(tokens, dtype=torch.int32),
            pos=torch.tensor(positions, dtype=torch.int64),
            # vLLM pads it.
            seq_lens_upper_bound_np=np.array([*lengths, 0, 0], dtype=np.int32),
        )

    def _advance(self, request: Request, drafts: list[int]) -> None:
        if request.unfilled:
            request.unfilled -= 1
            return
        ahead = request.script[len(request.output) :]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == ahead[accepted]:
            accepted += 1
        fresh = ahead[: accepted + 1]
        slot = self._slots[request.name]
        start = len(request.prompt) + len(request.output)
        self.state.all_token_ids.np[slot, start : start + len(fresh)] = fresh
        self.state.total_len.np[slot] += len(fresh)
        request.output += fresh
        if request.is_done:
            self.drop(request.name)
