"""Measure the lab model on a held-out split, hold it against its gates, write the record.

    python -m bench.lab.evaluate [--split validation|test] [--generate N] [--server URL]

Choices are made on validation. The test split is for the adapter that is to be committed, once:
each look at it is counted in the record. With --server the first-token log-probabilities and the
decisions of a running vLLM are compared with those of transformers.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench.decisions.source import Json, tool_name
from bench.lab import checkpoint, merge
from bench.lab.figures import Scored, figures, valid_calls, verdicts
from bench.lab.trees import ENTRY, Rows, Tree, batches, encode, logits, margins

AGREEMENT_PROMPTS = 60
AGREEMENT_BIASES = (-2.0, -1.0, 0.0, 1.0, 2.0)
TOLERANCE = 1e-3
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


class Model:
    """A checkpoint in transformers, fp32."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.whole: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.whole.eval()
        self.entry = int(self.tokenizer.convert_tokens_to_ids(ENTRY))

    def score(self, records: Sequence[Json]) -> Iterator[list[Scored]]:
        """Exact margins and gaps, batch by batch; records with the same tools share their prefix."""
        alike: dict[str, list[Json]] = defaultdict(list)
        for record in records:
            alike[json.dumps(record["tools"])].append(record)
        # Chunks, since a row's attention grows with the square of its width.
        chunks = [rows[i : i + 8] for rows in alike.values() for i in range(0, len(rows), 8)]
        trees = [
            Tree([encode(self.tokenizer, r["messages"], r["tools"]) for r in chunk], []) for chunk in chunks
        ]
        for group in batches(trees, budget=1500):
            rows = Rows([trees[i] for i in group], self.tokenizer.pad_token_id)
            with torch.no_grad():
                hidden = rows.hidden(self.whole.model)
                scores = logits(hidden, rows.decisions, self.whole.lm_head.weight)
            margin = margins(scores, self.entry).tolist()
            entry = scores[:, self.entry].clone()
            scores[:, self.entry] = float("-inf")
            gap = (entry - scores.max(dim=-1).values).tolist()
            flat = [record for i in group for record in chunks[i]]
            yield [Scored(*row) for row in zip(flat, margin, gap, strict=True)]

    def first_token(self, record: Json) -> torch.Tensor:
        """Log-probabilities of the first reply token, over the vocabulary."""
        ids = encode(self.tokenizer, record["messages"], record["tools"]).ids
        with torch.no_grad():
            output = self.whole(torch.tensor([ids]), logits_to_keep=1)
        return torch.log_softmax(output.logits[0, -1], dim=-1)

    def reply(self, record: Json, longest: int = 160) -> str:
        """The greedy reply's text, call tokens kept."""
        ids = encode(self.tokenizer, record["messages"], record["tools"]).ids
        with torch.no_grad():
            output = self.whole.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids)),
                max_new_tokens=longest,
                do_sample=False,
            )
        return str(self.tokenizer.decode(output[0, len(ids) :]))


def measure(model: Model, records: list[Json], cache: Path) -> list[Scored]:
    """Margins of all records; those already in `cache` (JSONL) aren't computed again."""
    known = {}
    if cache.exists():
        for line in cache.read_text().splitlines():
            row = json.loads(line)
            known[row["id"]] = (row["margin"], row["gap"])
    missing = [record for record in records if record["id"] not in known]
    began, done = time.monotonic(), 0
    with cache.open("a", encoding="utf-8") as out:
        for batch in model.score(missing):
            for one in batch:
                known[one.record["id"]] = (one.margin, one.gap)
                row = {"id": one.record["id"], "margin": one.margin, "gap": one.gap}
                out.write(json.dumps(row) + "\n")
            out.flush()
            done += len(batch)
            left = (time.monotonic() - began) / done * (len(missing) - done)
            print(f"\r{done}/{len(missing)} scored, {left:.0f} s left ", end="", file=sys.stderr)
    print(file=sys.stderr)
    return [Scored(record, *known[record["id"]]) for record in records]


def generate(model: Model, scored: Sequence[Scored], limit: int) -> dict[str, Any]:
    """Whole greedy replies to decisions that open with a call, judged by `valid_calls`."""
    entered = [one for one in scored if "decisions" in one.record["sets"] and one.gap > 0]
    # Spread over the split: its records stand source by source.
    chosen = entered[:: max(1, len(entered) // limit)][:limit]
    replies = []
    for number, one in enumerate(chosen, 1):
        text = model.reply(one.record)
        offered = [tool_name(tool) for tool in one.record["tools"]]
        replies.append(
            {
                "call": parse_call(text),
                "offered": offered,
                "gold": one.record["gold"],
                "group": one.group,
            }
        )
        print(f"\r{number}/{len(chosen)} replies ", end="", file=sys.stderr)
    print(file=sys.stderr)
    return valid_calls(replies)


def parse_call(text: str) -> Json | None:
    """The first call of a reply in Hermes wire form, or None."""
    found = _CALL.search(text)
    try:
        call = json.loads(found[1]) if found else None
    except ValueError:
        return None
    if isinstance(call, dict) and isinstance(call.get("arguments"), dict) and "name" in call:
        return call
    return None


def agreement(model: Model, records: Sequence[Json], url: str) -> dict[str, Any]:
    """A server against transformers: log-probabilities at the first token, greedy decisions over b.

    Decisions are the server's own, with b given as `logit_bias`, its stock way to add to a logit.
    """
    import httpx

    worst, compared, disagreements = 0.0, 0, []
    step = max(1, len(records) // AGREEMENT_PROMPTS)
    chosen = records[::step][:AGREEMENT_PROMPTS]
    with httpx.Client(base_url=url, timeout=120) as client:
        name = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        for record in chosen:
            ours = model.first_token(record)
            body = {
                "model": name,
                "messages": record["messages"],
                "tools": record["tools"],
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": True,
                "top_logprobs": 20,
                "return_tokens_as_token_ids": True,
            }
            for shown in _first(client, body)["top_logprobs"]:
                token = int(shown["token"].removeprefix("token_id:"))
                if shown["logprob"] > -20:
                    worst = max(worst, abs(shown["logprob"] - float(ours[token])))
                    compared += 1
            for bias in AGREEMENT_BIASES:
                biased = ours.clone()
                biased[model.entry] += bias
                theirs = _first(client, {**body, "logit_bias": {str(model.entry): bias}})
                if (theirs["token"] == f"token_id:{model.entry}") != (int(biased.argmax()) == model.entry):
                    disagreements.append({"id": record["id"], "bias": bias})
    return {
        "prompts": len(chosen),
        "log_probabilities": compared,
        "largest_difference": worst,
        "decisions": len(chosen) * len(AGREEMENT_BIASES),
        "disagreements": disagreements,
        "met": worst <= TOLERANCE and not disagreements,
    }


def _first(client: Any, body: Json) -> Json:
    reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    first: Json = reply["choices"][0]["logprobs"]["content"][0]
    return first


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}


def main() -> None:
    """Print the figures against the gates; exit 1 where a gate isn't met."""
    parser = argparse.ArgumentParser(prog="bench.lab.evaluate", description=main.__doc__)
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--adapter", type=Path, default=merge.ADAPTER)
    parser.add_argument("--model", type=Path, help="merged checkpoint; default: made from --adapter")
    parser.add_argument("--data", type=Path, default=Path(".cache/lab/data"))
    parser.add_argument("--generate", type=int, default=80, help="whole replies to judge")
    parser.add_argument("--server", help="root URL of a vLLM server with the same model")
    parser.add_argument("--record", type=Path, help="write the figures into this JSON file")
    parser.add_argument("--out", type=Path, default=Path(".cache/lab/evaluation"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    path = options.data / f"{options.split}.jsonl"
    if not path.exists():
        raise SystemExit(f"lab evaluate: no {path}; run python -m bench.lab.data first")
    torch.set_num_threads(options.threads)
    try:
        folder = options.model or merge.ensure(options.out / "model", options.adapter, checkpoint.ensure())
    except checkpoint.CheckpointError as error:
        raise SystemExit(f"lab evaluate: {error}") from None
    adapter, data = merge.digest(options.adapter), path.read_bytes()
    data_hash = hashlib.sha256(data).hexdigest()
    records = [json.loads(line) for line in data.splitlines()]
    model = Model(folder)
    options.out.mkdir(parents=True, exist_ok=True)
    cache = options.out / f"{options.split}-{adapter[:12]}-{data_hash[:12]}.jsonl"
    scored = measure(model, records, cache)
    result = figures(scored)
    if options.generate:
        result |= generate(model, scored, options.generate)
    rows = verdicts(result)
    document = {
        "split": options.split,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "adapter": adapter,
        "data": data_hash,
        "versions": versions(),
        "gates": rows,
        "figures": result,
    }
    if options.server:
        decisions = [one.record for one in scored if "decisions" in one.record["sets"]]
        document["server"] = agreement(model, decisions, options.server)
    if options.record:
        update(options.record, document)
    print(json.dumps(document, indent=2))
    for row in rows:
        verdict = "met" if row["met"] else "NOT MET"
        print(f"{row['figure']:28} {row['estimate']} {row['interval']} {verdict}", file=sys.stderr)
    met = all(row["met"] for row in rows) and document.get("server", {"met": True})["met"]
    sys.exit(0 if met else 1)


def update(record: Path, document: dict[str, Any]) -> None:
    """Put a split's figures into the record and count the looks at it, by adapter."""
    whole = json.loads(record.read_text()) if record.exists() else {}
    looks = whole.setdefault("looks", [])
    looks.append({key: document[key] for key in ("split", "when", "adapter", "data")})
    whole[document["split"]] = document
    record.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
