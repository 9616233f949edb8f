"""Train the lab model's adapter on the trees of bench.lab.data.

    python -m bench.lab.train [--seed N] [--after ADAPTER] [--out DIR]

Three terms: the replies' tokens; the decision itself (call or reply, from the margin at the first
token); and, inside a tree, the order of the margins, since the same tools must call for one
question and hold back for its twin. Phases follow each other, each from the adapter of the one before.
A killed run goes on from its last checkpoint.
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.functional import cross_entropy, softplus

from bench.decisions.source import Json
from bench.lab import lora, merge
from bench.lab.trees import ENTRY, Branch, Rows, Tree, encode, logits, margins

RANK, ALPHA = 16, 32.0
LAYERS = range(8, 30)
# Replies are cut here where they teach the decision and the tool's name only.
LONGEST_NAME = 12
# A short memory of squares: after warm-up the decision's gradient grows tenfold within a few steps.
BETAS = (0.9, 0.99)


@dataclass(frozen=True)
class Phase:
    """One schedule over the trees, with an optimizer of its own.

    `every_call` trains all calls to their end, where otherwise only those marked whole are. A tree of more
    than `longest_tree` tokens is passed over. `first_tree` is where in the trees' order it begins.
    """

    steps: int
    rate: float
    reply_weight: float = 1.0
    every_call: bool = False
    longest_reply: int = 64
    longest_tree: int = 420
    first_tree: int = 0


# First the decision, then, with the decision held, calls that are written to their end.
PHASES = (
    Phase(steps=380, rate=3e-4),
    Phase(
        steps=320,
        rate=3e-4,
        reply_weight=3.0,
        every_call=True,
        longest_reply=128,
        longest_tree=560,
        first_tree=2600,
    ),
)


@dataclass(frozen=True)
class Recipe:
    """What holds through all phases."""

    data: str
    seed: int
    trees_per_step: int = 6
    warmup: int = 10
    decision_weight: float = 2.0
    order_weight: float = 1.0
    call_weight: float = 1.3


class Trainer:
    """Model, optimizer and the order of trees in one phase; one `step` at a time."""

    def __init__(
        self, base: Path, trees: list[Json], recipe: Recipe, phase: Phase, start: Path | None
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.manual_seed(recipe.seed)
        self.recipe, self.phase = recipe, phase
        self.step_number, self.cursor = 0, phase.first_tree
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self.head = model.lm_head.weight
        self.model = model.model
        self.entry = self.tokenizer.convert_tokens_to_ids(ENTRY)
        # Weights are named as in the whole checkpoint, so attach under it.
        self.adapted = lora.attach(model, LAYERS, RANK, ALPHA)
        if start:
            lora.load(start, self.adapted)
        self.parameters = [p for module in self.adapted.values() for p in (module.a, module.b)]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=phase.rate, betas=BETAS, weight_decay=0.0)
        self.rows = ordered(trees, recipe.seed)

    def step(self) -> Json:
        """One optimizer step over the next trees; returns its figures."""
        for module in self.adapted.values():
            module.fold()
        trees = self._next(self.recipe.trees_per_step)
        tokens = sum(stop - begin for t in trees for b in t.branches for begin, stop in b.replies)
        branches = sum(len(tree.branches) for tree in trees)
        pairs = max(1, sum(sum(t.labels) * (len(t.labels) - sum(t.labels)) for t in trees))
        totals = torch.zeros(3)
        weights = torch.tensor(
            [self.phase.reply_weight, self.recipe.decision_weight, self.recipe.order_weight]
        )
        own = share(trees, dist.get_world_size())[dist.get_rank()]
        for tree in own:
            # One row at a time: on a single thread a wider product gains less than padding costs.
            parts = self._losses([tree])
            means = parts / torch.tensor([tokens, branches, pairs])
            (means * weights).sum().backward()
            totals += means.detach()
        self._add_up(totals)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for settings in self.optimizer.param_groups:
            settings["lr"] = self.phase.rate * schedule(
                self.step_number, self.phase.steps, self.recipe.warmup
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_number += 1
        reply, decision, order = totals.tolist()
        return {
            "step": self.step_number,
            "reply": round(reply, 4),
            "decision": round(decision, 4),
            "order": round(order, 4),
            "norm": round(float(norm), 3),
            "tokens": sum(tree.length for tree in trees),
        }

    def _next(self, count: int) -> list[Tree]:
        """The next trees in order that aren't too long, round and round."""
        trees: list[Tree] = []
        while len(trees) < count:
            tree = self._tree(self.rows[self.cursor % len(self.rows)])
            self.cursor += 1
            if tree.length <= self.phase.longest_tree:
                trees.append(tree)
        return trees

    def _add_up(self, totals: torch.Tensor) -> None:
        """Sum gradients and figures over all processes, in place."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self.parameters]
        flat = torch.cat([totals, *(gradient.flatten() for gradient in gradients)])
        dist.all_reduce(flat)
        totals.copy_(flat[:3])
        start = 3
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()

    def _tree(self, row: Json) -> Tree:
        branches = []
        for branch in row["branches"]:
            whole = branch["whole"] or self.phase.every_call
            longest = self.phase.longest_reply if whole else LONGEST_NAME
            encoded = encode(self.tokenizer, branch["messages"], row["tools"])
            branches.append(_shortened(encoded, longest))
        return Tree(branches, [branch["label"] == "call" for branch in row["branches"]])

    def _losses(self, trees: Sequence[Tree]) -> torch.Tensor:
        """Sums over reply tokens, branches and pairs of a tree's call with its respond branches."""
        rows = Rows(trees, pad=self.tokenizer.pad_token_id)
        scores = logits(rows.hidden(self.model), rows.sources, self.head)
        reply = cross_entropy(scores, torch.tensor(rows.targets), reduction="sum")
        margin = margins(scores[torch.tensor(rows.first)], self.entry)
        labels = torch.tensor([label for tree in trees for label in tree.labels])
        called, replied = softplus(-margin[labels]), softplus(margin[~labels])
        decision = self.recipe.call_weight * called.sum() + replied.sum()
        order = torch.zeros(())
        start = 0
        for tree in trees:
            here = slice(start, start := start + len(tree.labels))
            own, due = margin[here], labels[here]
            order = order + softplus(own[~due][None, :] - own[due][:, None]).sum()
        return torch.stack([reply, decision, order])

    def state(self) -> Json:
        """All that a resumed run needs."""
        return {
            "step": self.step_number,
            "cursor": self.cursor,
            "adapter": [parameter.detach() for parameter in self.parameters],
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: Json) -> None:
        """Take a state up again."""
        self.step_number, self.cursor = state["step"], state["cursor"]
        with torch.no_grad():
            for parameter, value in zip(self.parameters, state["adapter"], strict=True):
                parameter.copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])


def share(trees: Sequence[Tree], parts: int) -> list[list[Tree]]:
    """The trees in `parts` lists of about the same number of tokens."""
    lists: list[list[Tree]] = [[] for _ in range(parts)]
    for tree in sorted(trees, key=lambda tree: -tree.length):
        min(lists, key=lambda one: sum(t.length for t in one)).append(tree)
    return lists


def ordered(trees: list[Json], seed: int) -> list[Json]:
    """Trees pass by pass, each pass shuffled on its own."""
    result = []
    for number in sorted({tree["pass"] for tree in trees}):
        part = [tree for tree in trees if tree["pass"] == number]
        Random(f"{seed}:order:{number}").shuffle(part)
        result += part
    return result


def schedule(step: int, steps: int, warmup: int) -> float:
    """Share of the full rate: linear warm-up, level, then down to a tenth over the last 40 %."""
    if step < warmup:
        return (step + 1) / warmup
    decay = 0.4 * steps
    return max(0.1, min(1.0, 0.1 + 0.9 * (steps - step) / decay))


def train(trainer: Trainer, out: Path, guard: str, every: int, done: list[Json]) -> None:
    """Run a phase to its last step; the first process keeps checkpoints and prints progress.

    `done` are the phases before, as recipe.json names them.
    """
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        trainer.restore(torch.load(checkpoint, weights_only=True)["trainer"])
    leads = dist.get_rank() == 0
    log, steps = out / "steps.jsonl", trainer.phase.steps
    if leads:
        # Steps after the checkpoint are taken again.
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
        log.write_text("".join(lines[: trainer.step_number]), encoding="utf-8")
    began, first = time.monotonic(), trainer.step_number
    while trainer.step_number < steps:
        figures = trainer.step()
        if not leads:
            continue
        passed = time.monotonic() - began
        with log.open("a", encoding="utf-8") as lines_out:
            lines_out.write(json.dumps({**figures, "seconds": round(passed, 1)}) + "\n")
        left = passed / (trainer.step_number - first) * (steps - trainer.step_number)
        print(f"{json.dumps(figures)} of {steps}, {left / 60:.0f} min left", flush=True)
        if trainer.step_number % every == 0 or trainer.step_number == steps:
            lora.save(out / "adapter", trainer.adapted, LAYERS, RANK, ALPHA)
            write_recipe(out, trainer, done)
            # Last, since a checkpoint at the last step says that the phase is done.
            partial = checkpoint.with_suffix(".part")
            torch.save({"guard": guard, "trainer": trainer.state()}, partial)
            partial.replace(checkpoint)


def write_recipe(out: Path, trainer: Trainer, done: list[Json]) -> None:
    """Put what made the adapter beside it."""
    phases = [*done, {**asdict(trainer.phase), "steps": trainer.step_number}]
    document = {
        **asdict(trainer.recipe),
        "steps": sum(phase["steps"] for phase in phases),
        "phases": phases,
        "rank": RANK,
        "alpha": ALPHA,
        "layers": [LAYERS.start, LAYERS.stop],
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "adapter": merge.digest(out / "adapter"),
    }
    text = json.dumps(document, indent=2) + "\n"
    (out / "adapter" / "recipe.json").write_text(text, encoding="utf-8")


def work(
    rank: int, options: argparse.Namespace, recipe: Recipe, number: int, after: Path | None, store: str
) -> None:
    """One process of a phase; `after` is the adapter it starts from."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.processes)
    trees = [json.loads(line) for line in options.data.read_bytes().splitlines()]
    trainer = Trainer(options.base, trees, recipe, PHASES[number], after)
    done = phases_of(after) if after else []
    train(trainer, folder_of(options.out, number), fingerprint(recipe, number, after), options.every, done)
    dist.destroy_process_group()


def phases_of(adapter: Path) -> list[Json]:
    """The phases that made an adapter, from the recipe beside it."""
    phases: list[Json] = json.loads((adapter / "recipe.json").read_text(encoding="utf-8"))["phases"]
    return phases


def folder_of(out: Path, number: int) -> Path:
    """Where a phase is kept; the last one's folder is the run's."""
    return out if number == len(PHASES) - 1 else out / f"phase-{number + 1}"


def fingerprint(recipe: Recipe, number: int, after: Path | None) -> str:
    """Names a phase and what it starts from: a checkpoint of another one is refused."""
    start = merge.digest(after) if after else None
    told = [asdict(recipe), asdict(PHASES[number]), start]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _shortened(branch: Branch, longest: int) -> Branch:
    """The branch with its first reply cut to `longest` tokens; what follows goes with the rest."""
    begin, stop = branch.replies[0]
    if stop - begin <= longest:
        return branch
    return Branch(branch.ids[: begin + longest], [(begin, begin + longest)])


def main() -> None:
    """Train the adapter, or go on where an earlier run was stopped."""
    parser = argparse.ArgumentParser(prog="bench.lab.train", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--after", type=Path, metavar="ADAPTER", help="an adapter of the first phases: only the rest are run"
    )
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--base", type=Path, default=Path(".cache/lab/base"))
    parser.add_argument("--data", type=Path, default=Path(".cache/lab/data/train.jsonl"))
    parser.add_argument("--out", type=Path, default=Path(".cache/lab/train"))
    options = parser.parse_args()
    if not options.data.exists():
        raise SystemExit(f"lab train: no {options.data}; run python -m bench.lab.data first")
    data = hashlib.sha256(options.data.read_bytes()).hexdigest()
    recipe = Recipe(data=data, seed=options.seed)
    after = options.after
    for number in range(len(phases_of(after)) if after else 0, len(PHASES)):
        folder = folder_of(options.out, number)
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / "checkpoint.pt"
        if checkpoint.exists():
            if torch.load(checkpoint, weights_only=True)["guard"] != fingerprint(recipe, number, after):
                raise SystemExit(f"lab train: {folder} holds a run of another recipe; use another --out")
            print(f"phase {number + 1}: resuming from the last checkpoint", flush=True)
        with tempfile.TemporaryDirectory() as store:
            torch.multiprocessing.spawn(
                work, (options, recipe, number, after, f"{store}/store"), nprocs=options.processes
            )
        after = folder / "adapter"


if __name__ == "__main__":
    main()
