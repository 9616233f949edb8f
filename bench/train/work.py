"""Trains an adapter, supervised or by distillation from two routed teachers; runs where torch is.

    python -m bench.train.work JOB.json

JOB.json is a `Job`. Each line of stdout is a JSON object: first `{"start": step, …}`, then one a step. A
killed run goes on from its last checkpoint and takes the same steps: all that is drawn depends on seed and
step alone.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from bench.errors import InputError
from bench.lab import lora
from bench.lab.train import schedule
from bench.train.losses import INTERVENTIONS, Loss, Positions, distillation
from bench.train.models import CheckpointError, Prompts, device, is_adapter, load, named_base
from bench.train.settings import SFT, Settings
from bench.train.trajectories import Only, Trajectory, read
from calibrators.entry import NoEntry
from calibrators.openers import Hint

Json = dict[str, Any]
WARMUP = 5
CHECKPOINT = "checkpoint.pt"


class Job(NamedTuple):
    """What to train; docs/training.md says what each number means."""

    how: str
    """`sft`, or the name of an intervention."""
    base: str
    data: str
    only: Only
    out: str
    start: str | None
    tool_teacher: str | None
    response_teacher: str | None
    steps: int
    batch: int
    rate: float
    rank: int
    on_policy: float
    anchor: float
    max_tokens: int
    max_prompt: int
    seed: int
    every: int
    settings: Mapping[str, Any]
    """Of the losses: losses.Settings without the entry."""
    precision: str = "fp32"
    """Of weights and activations; the adapter, its optimizer and the losses are in fp32."""
    parser: str | None = None
    openers: Sequence[str] = ()


class Lesson(NamedTuple):
    """A prompt and its reply from the data, as token ids."""

    prompt: list[int]
    reply: list[int]
    should_call: bool


class Taught(NamedTuple):
    """A prompt with the reply that is taught on in one step."""

    lesson: Lesson
    reply: list[int]
    rolled: bool
    """Whether the student wrote it."""


def lessons(prompts: Prompts, found: Sequence[Trajectory], max_tokens: int, max_prompt: int) -> list[Lesson]:
    """Those whose prompt is not too long, replies cut to `max_tokens`.

    Raises CheckpointError where the template does not begin a conversation with its own prompt.
    """
    end = prompts.tokenizer.eos_token_id
    kept = []
    for one in found:
        prompt, whole = prompts.text(one.request), prompts.text(one.conversation, prompt=False)
        if not whole.startswith(prompt):
            raise CheckpointError("the chat template writes a conversation otherwise than its prompt")
        ids, reply = prompts.tokens(prompt), prompts.tokens(whole[len(prompt) :])
        # What the template writes after the end of the turn is never generated.
        reply = reply[: len(reply) - reply[::-1].index(end)] if end in reply else [*reply, end]
        if len(ids) <= max_prompt:
            kept.append(Lesson(ids, reply[:max_tokens], one.should_call))
    if not kept:
        raise CheckpointError(f"no prompt has at most {max_prompt} tokens")
    return kept


class Trainer:
    """Student, teachers and optimizer; one `step` at a time."""

    def __init__(self, job: Job) -> None:
        self.job, self.done = job, 0
        base = Path(job.base)
        where = device()
        self.prompts = Prompts(base)
        entry = self.prompts.entry(Hint(job.parser, tuple(job.openers)))
        if entry.named:
            raise CheckpointError("calls open with the tool's name, so the entry set differs by prompt")
        self.settings = Settings(entry=entry.tokens, **job.settings)
        found = read(Path(job.data), job.only)
        if any(entry.after_for(one.request) for one in found):
            raise CheckpointError(
                "the model reasons before it decides, so that a reply's first token is no decision; switch "
                'that off in the data: "chat_template_kwargs": {"enable_thinking": false}'
            )
        self.lessons = lessons(self.prompts, found, job.max_tokens, job.max_prompt)
        torch.manual_seed(job.seed)
        kept = {"fp32": torch.float32, "bf16": torch.bfloat16}[job.precision]
        self.student = load(base, None, where, kept)
        self.layers = range(self.student.config.num_hidden_layers)
        self.adapted = lora.attach(self.student, self.layers, job.rank, 2.0 * job.rank)
        if not self.adapted:
            raise CheckpointError(f"{base}: has none of the linear maps {', '.join(lora.MAPS)}")
        if job.start:
            try:
                lora.load(Path(job.start), self.adapted)
            except ValueError as error:
                raise CheckpointError(f"{job.start}: can't be begun from: {error}") from None
        self.parameters = [p for module in self.adapted.values() for p in (module.a, module.b)]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=job.rate, weight_decay=0.0)
        self.teachers: dict[bool, Any] = {}
        if job.how != SFT:
            for call, folder in ((True, job.tool_teacher), (False, job.response_teacher)):
                assert folder is not None
                self.teachers[call] = self._teacher(Path(folder), where, kept)

    def _teacher(self, folder: Path, where: str, kept: Any) -> Any:
        # An adapter that names a checkpoint which is not here was put on the student's.
        own = is_adapter(folder) and not named_base(folder).is_dir()
        return load(folder, Path(self.job.base) if own else None, where, kept).requires_grad_(False)

    def step(self) -> Json:
        """One optimizer step; returns its figures."""
        began = time.monotonic()
        job, number = self.job, self.done
        for module in self.adapted.values():
            module.fold()
        chosen = self._chosen(number)
        torch.manual_seed(Random(f"{job.seed}:{number}").getrandbits(62))
        if job.how == SFT:
            total = self._supervised(chosen)
            told: Json = {"loss": float(total.detach()), "tokens": sum(len(one.reply) for one in chosen)}
        else:
            total, told = self._distilled(self._taught(chosen, number))
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        if not bool(torch.isfinite(total.detach() + norm)):
            raise CheckpointError(f"step {number + 1}: the loss is no longer finite; lower --rate")
        for group in self.optimizer.param_groups:
            group["lr"] = job.rate * schedule(number, job.steps, min(WARMUP, job.steps))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        told = {"step": self.done, **told, "norm": float(norm), "seconds": time.monotonic() - began}
        return {name: round(v, 6) if isinstance(v, float) else v for name, v in told.items()}

    def _chosen(self, number: int) -> list[Lesson]:
        """The prompts of a step: pass after pass over the data, each in an order of its own."""
        count, found, batch = len(self.lessons), [], self.job.batch
        for place in range(number * batch, (number + 1) * batch):
            order = list(range(count))
            Random(f"{self.job.seed}:order:{place // count}").shuffle(order)
            found.append(self.lessons[order[place % count]])
        return found

    def _taught(self, chosen: Sequence[Lesson], number: int) -> list[Taught]:
        """Each prompt with the student's own reply, at a chance of lambda, or that of the data."""
        random = Random(f"{self.job.seed}:policy:{number}")
        rolled = [random.random() < self.job.on_policy for _ in chosen]
        written = iter(self._rollouts([one.prompt for one, own in zip(chosen, rolled, strict=True) if own]))
        return [
            Taught(one, next(written) if own else one.reply, own)
            for one, own in zip(chosen, rolled, strict=True)
        ]

    def _rollouts(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        """Replies that the student draws at temperature tau, each up to its end."""
        if not prompts:
            return []
        end, width = self.prompts.tokenizer.eos_token_id, max(map(len, prompts))
        ids = torch.tensor([[end] * (width - len(p)) + p for p in prompts], device=self.student.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=ids.device)
        with torch.no_grad():
            output = self.student.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=self.settings.temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=self.job.max_tokens,
                eos_token_id=end,
                pad_token_id=end,
            )
        replies = [row[width:] for row in output.tolist()]
        return [reply[: reply.index(end) + 1] if end in reply else reply for reply in replies]

    def _logits(self, model: Any, prompt: Sequence[int], *replies: Sequence[int]) -> list[Any]:
        """For each reply the logits that predict its tokens, (tokens, vocabulary).

        The prompt is computed once: each reply sees it and itself, at the places that it has alone.
        """
        ids, places, parts = list(prompt), list(range(len(prompt))), [0] * len(prompt)
        sources: list[int] = []
        for number, reply in enumerate(replies, 1):
            sources += [len(prompt) - 1, *range(len(ids), len(ids) + len(reply) - 1)]
            ids += reply[:-1]
            places += range(len(prompt), len(prompt) + len(reply) - 1)
            parts += [number] * (len(reply) - 1)
        where = model.device
        part = torch.tensor(parts, device=where)
        seen = ((part[:, None] == part) | (part == 0)).tril()
        mask = torch.zeros(seen.shape, dtype=model.dtype, device=where)
        mask = mask.masked_fill(~seen, torch.finfo(model.dtype).min)
        output = model(
            torch.tensor([ids], device=where),
            position_ids=torch.tensor([places], device=where),
            attention_mask=mask[None, None],
            logits_to_keep=torch.tensor(sources, device=where),
            use_cache=False,
        )
        return list(output.logits[0].float().split([len(reply) for reply in replies]))

    def _supervised(self, chosen: Sequence[Lesson]) -> Any:
        """Mean cross-entropy of the data's reply tokens."""
        logits = [self._logits(self.student, one.prompt, one.reply)[0] for one in chosen]
        return self._entropy(logits, chosen)

    def _entropy(self, logits: Sequence[Any], chosen: Sequence[Lesson]) -> Any:
        replies = torch.tensor([token for one in chosen for token in one.reply], device=self.student.device)
        return cross_entropy(torch.cat(list(logits)), replies)

    def _distilled(self, taught: Sequence[Taught]) -> tuple[Any, Json]:
        # The data's own reply, where the student wrote another, is that of the anchor alone.
        student = [
            self._logits(self.student, one.lesson.prompt, *{tuple(one.reply): 0, tuple(one.lesson.reply): 0})
            for one in taught
        ]
        positions = self.positions(taught, [logits[0] for logits in student])
        loss = distillation(positions, INTERVENTIONS[self.job.how], self.settings)
        anchor = self._entropy([logits[-1] for logits in student], [one.lesson for one in taught])
        total = loss.total + self.job.anchor * anchor
        return total, {
            "loss": float(total.detach()),
            "distillation": float(loss.total.detach()),
            "divergence": float(loss.divergences.mean()),
            "anchor": float(anchor.detach()),
            "tokens": len(loss.divergences),
            **self._seen(taught, positions, loss),
        }

    def positions(self, taught: Sequence[Taught], student: Sequence[Any]) -> Positions:
        """The positions of all replies, each with the student's logits and those of its own teacher."""
        with torch.no_grad():
            teacher = [
                self._logits(self.teachers[one.lesson.should_call], one.lesson.prompt, one.reply)[0]
                for one in taught
            ]
        first = [place == 0 for one in taught for place in range(len(one.reply))]
        response = [not one.lesson.should_call for one in taught for _ in one.reply]
        where = self.student.device
        return Positions(
            torch.cat(list(student)),
            torch.cat(teacher),
            torch.tensor(first, device=where),
            torch.tensor(response, device=where),
        )

    def _seen(self, taught: Sequence[Taught], positions: Positions, loss: Loss) -> Json:
        """Rollouts, calls among those of response prompts, and how often a support there held E."""
        entry = torch.tensor(self.settings.entry, device=positions.first.device)
        held = (torch.isin(loss.support.ids, entry) & loss.support.kept).any(dim=-1)
        decisions = positions.first & positions.response
        rolled = [one for one in taught if one.rolled]
        restrained = [one for one in rolled if not one.lesson.should_call]
        return {
            "rollouts": len(rolled),
            "response_rollouts": len(restrained),
            "response_calls": sum(one.reply[0] in self.settings.entry for one in restrained),
            "response_decisions": int(decisions.sum()),
            "response_covered": int((decisions & held).sum()),
            "support": float(loss.support.kept.sum(dim=-1).float().mean()),
        }

    def save(self) -> None:
        """Write the adapter, then the checkpoint: the latter says that the former is there."""
        out, rank = Path(self.job.out), self.job.rank
        lora.save(out / "adapter", self.adapted, self.layers, rank, 2.0 * rank, self.job.base)
        draft = out / f"{CHECKPOINT}.part"
        state = {
            "step": self.done,
            "adapter": [parameter.detach().cpu() for parameter in self.parameters],
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, draft)
        draft.replace(out / CHECKPOINT)

    def restore(self) -> None:
        """Take up the last checkpoint, if there is one."""
        file = Path(self.job.out) / CHECKPOINT
        if not file.exists():
            return
        state = torch.load(file, weights_only=True, map_location=self.student.device)
        self.done = state["step"]
        with torch.no_grad():
            for parameter, value in zip(self.parameters, state["adapter"], strict=True):
                parameter.copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])


def told(line: Mapping[str, Any]) -> None:
    """Hand a line over."""
    print(json.dumps(line), flush=True)


def work(job: Job) -> None:
    """Do a job, from its last checkpoint to its last step."""
    trainer = Trainer(job)
    trainer.restore()
    calls = sum(one.should_call for one in trainer.lessons)
    told(
        {
            "start": trainer.done,
            "prompts": len(trainer.lessons),
            "tool_prompts": calls,
            "parameters": sum(p.numel() for p in trainer.parameters),
            "device": str(trainer.student.device),
            "settings": asdict(trainer.settings),
        }
    )
    while trainer.done < job.steps:
        line = trainer.step()
        told(line)
        if trainer.done % job.every == 0 or trainer.done == job.steps:
            trainer.save()


def main() -> None:
    """Do the job that is named; a fault is one line on stderr and exit code 2."""
    try:
        work(Job(**json.loads(Path(sys.argv[1]).read_text("utf-8"))))
    except (CheckpointError, InputError, NoEntry) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
