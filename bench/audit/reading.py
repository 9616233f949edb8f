"""Reads a teacher's decision positions in transformers, and replays a student; runs where torch is.

    python -m bench.audit.reading JOB.json

JOB.json is a `Job`. Each line of stdout is a JSON object: first `{"entry": …}`, then one record a prompt.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from bench.train.models import CheckpointError, Prompts, base_of, device, load
from bench.train.settings import Settings
from calibrators.entry import NoEntry
from calibrators.openers import Hint

Json = dict[str, Any]


class Job(NamedTuple):
    """What to read."""

    teacher: str
    """Folder of a checkpoint or of an adapter."""
    student: str | None
    base: str | None
    """What adapters are put on; None takes the one that they name."""
    prompts: str
    """JSONL: `key`, `response` and `request` a line."""
    tops: Sequence[int]
    """Each K that mass is retained at."""
    steps: int
    """Tokens of a replay."""
    settings: Mapping[str, Any]
    """Of the divergence: losses.Settings without the entry."""
    parser: str | None = None
    openers: Sequence[str] = ()


def told(line: Mapping[str, Any]) -> None:
    """Hand a line over."""
    print(json.dumps(line), flush=True)


def support_of(logits: Any, entry: Sequence[int], tops: Sequence[int]) -> Json:
    """What a full vocabulary of logits (vocabulary,) says of the entry set.

    `log_p` is ln P(E); `rank` that of E's likeliest token, 1 for the first of all; `mass` the share of
    probability that the K likeliest tokens have, for each K.
    """
    import torch

    logprobs = torch.log_softmax(logits.double(), dim=-1)
    inside = logprobs[list(entry)]
    kept = logprobs.topk(min(max(tops), len(logprobs))).values.exp().cumsum(0)
    return {
        "log_p": float(inside.logsumexp(0)),
        "rank": 1 + int((logprobs > inside.max()).sum()),
        "mass": {str(top): float(kept[min(top, len(kept)) - 1]) for top in tops},
        "vocabulary": len(logprobs),
    }


class Replay:
    """A student's greedy reply from one prompt, with the entry forced and with it masked.

    Forced, the reply begins with the likeliest entry token; masked, no token of E is ever taken. Each later
    token is one position, at which teacher and student are compared over the teacher's top-K.
    """

    def __init__(self, teacher: Any, student: Any, end: int | None, steps: int, settings: Any) -> None:
        self.teacher, self.student = teacher, student
        self.end, self.steps, self.settings = end, steps, settings

    def both(self, ids: Sequence[int]) -> Json:
        """`forced` and `masked`: the divergence at each position, in nats."""
        return {
            "forced": self._divergences(ids, self._written(ids, forced=True), forced=True),
            "masked": self._divergences(ids, self._written(ids, forced=False), forced=False),
        }

    def _written(self, ids: Sequence[int], forced: bool) -> list[int]:
        import torch

        entry = list(self.settings.entry)
        fed, past, written = torch.tensor([ids], device=self.student.device), None, list[int]()
        while len(written) <= self.steps and (not written or written[-1] != self.end):
            with torch.no_grad():
                output = self.student(fed, past_key_values=past, use_cache=True, logits_to_keep=1)
            logits, past = output.logits[0, -1].float(), output.past_key_values
            if forced and not written:
                token = entry[int(logits[entry].argmax())]
            else:
                if not forced:
                    logits[entry] = float("-inf")
                token = int(logits.argmax())
            written.append(token)
            fed = torch.tensor([[token]], device=self.student.device)
        return written

    def _divergences(self, ids: Sequence[int], written: Sequence[int], forced: bool) -> list[float]:
        import torch

        from bench.train.losses import Positions, divergences, teacher_support

        # The decision itself is left out: both paths have it in common.
        count = len(written) - 1
        if count < 1:
            return []
        logits = []
        for model in (self.teacher, self.student):
            fed = torch.tensor([[*ids, *written[:-1]]], device=model.device)
            with torch.no_grad():
                logits.append(model(fed, logits_to_keep=count).logits[0].float().cpu())
        teacher, student = logits
        if not forced:
            student[:, list(self.settings.entry)] = -1e9
        none = torch.zeros(count, dtype=torch.bool)
        positions = Positions(student, teacher, none, none)
        found = divergences(positions, teacher_support(positions, self.settings), self.settings)
        return [round(float(value), 6) for value in found]


def read(job: Job) -> None:
    """Do a job."""
    import torch

    where = device()
    folder, base = Path(job.teacher), Path(job.base) if job.base else None
    prompts = Prompts(base_of(folder, base))
    entry = prompts.entry(Hint(job.parser, tuple(job.openers)))
    told({"entry": {**asdict(entry), "without": sorted(entry.without)}, "device": where})
    teacher = load(folder, base, where)
    student = load(Path(job.student), base, where) if job.student else None
    if student is not None and student.config.vocab_size != teacher.config.vocab_size:
        raise CheckpointError(
            f"{job.student}: has {student.config.vocab_size} tokens and the teacher has "
            f"{teacher.config.vocab_size}; a replay compares checkpoints of one vocabulary"
        )
    for line in Path(job.prompts).read_text("utf-8").splitlines():
        prompt = json.loads(line)
        if entry.after_for(prompt["request"]):
            told({"key": prompt["key"], "unmeasurable": "the model reasons before it decides"})
            continue
        ids = prompts.ids(prompt["request"])
        tokens = prompts.entry_tokens(entry, prompt["request"])
        with torch.no_grad():
            output = teacher(torch.tensor([ids], device=where), logits_to_keep=1)
        record = support_of(output.logits[0, -1].cpu(), tokens, job.tops)
        if student is not None and prompt["response"]:
            settings = Settings(entry=tokens, **job.settings)
            end = prompts.tokenizer.eos_token_id
            record["replay"] = Replay(teacher, student, end, job.steps, settings).both(ids)
        told({"key": prompt["key"], "tokens": len(ids), **record})


def main() -> None:
    """Read the job that is named; a fault is one line on stderr and exit code 2."""
    try:
        read(Job(**json.loads(Path(sys.argv[1]).read_text("utf-8"))))
    except (CheckpointError, NoEntry, ImportError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
