"""`bench curve`: the entry probability of one request over the bias, measured and by formula.

Measured: the share of sampled first tokens (temperature 1, no truncation) that are entry tokens, through a
running proxy. By formula: p' = p e^b / (1 - p + p e^b) from the p that the server shows without bias
(calibration.md section 4). The two must agree within binomial error.
"""

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import click
import httpx

from bench.errors import CheckFailed, InputError, ServerUnreachable
from bench.intervals import wilson
from bench.options import Shared, shared_options
from bench.progress import progress
from bench.runs import DataFile, Plan, RunFolder
from calibrators.bias import biased
from calibrators.body import Body, NotAnObject
from calibrators.entry import Entry
from calibrators.margin import Margin, margin_query, read_margin
from calibrators.reply import Reply

Json = dict[str, Any]

BATCH = 50
"""Samples asked for at once (n), where the way of applying the bias allows it."""


class Point(NamedTuple):
    """One bias: what the formula says and what was measured."""

    bias: float
    formula: float
    entered: int
    samples: int
    greedy_formula: bool
    greedy_entered: bool

    @property
    def agrees(self) -> bool:
        """Whether the measured share is within 99.9 % of what the formula's binomial allows."""
        spread = math.sqrt(self.formula * (1 - self.formula) / self.samples)
        return abs(self.entered / self.samples - self.formula) <= 3.29 * spread + 0.5 / self.samples


@click.command()
@click.argument("request", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The running proxy.")
@click.option("--model", help="The model to ask.  [default: the first one that the server lists]")
@click.option(
    "--bias", "spec", default="-8:8:2", show_default=True, metavar="FROM:TO:STEP", help="Biases in nats."
)
@click.option(
    "--apply", default="auto", show_default=True, help="How: auto, processor, resample, logit_bias."
)
@click.option("--samples", type=click.IntRange(1), default=200, show_default=True, help="Replies a bias.")
@shared_options("At most N biases of the range.")
def curve(
    shared: Shared, request: Path | None, url: str, model: str | None, spec: str, apply: str, samples: int
) -> None:
    """Compare the entry probability over the bias with its formula, on one REQUEST.

    REQUEST is a JSON file with messages and tools; without one a built-in request is used. Exits 1 where a
    measured share is outside of what the formula allows.

    \b
    bench curve --bias -4:4:1 --samples 400
    """
    biases = _biases(spec)[: shared.limit]
    body = _request(request)
    with httpx.Client(base_url=url.rstrip("/"), timeout=600) as client:
        name, entry = _entry(client, model)
        body = body.with_json(model=name)
        margin = _margin(client, body, entry)
        data = {"request": DataFile.of(request)} if request else {}
        arguments = {"bias": biases, "apply": apply, "samples": samples, "request": body.render()}
        plan = Plan(
            command="curve",
            arguments=arguments,
            seed=shared.seed,
            limit=shared.limit,
            data=data,
            upstream={"url": url, "model": name},
        )
        with RunFolder.open(shared.folder("curve"), plan) as run:
            records = run.records()
            with progress("curve", len(biases), len(records)) as advance:
                for b in biases:
                    if f"{b:g}" not in records:
                        point = _measure(client, body, entry, margin, b, apply, samples)
                        records.append(f"{b:g}", point._asdict())
                        advance(note=f"b = {b:g}")
            points = [Point(**{field: record[field] for field in Point._fields}) for record in records]
            points.sort()
            result = _result(name, entry, margin, points, apply)
            run.finish(result)
    shared.show(result, lambda: _table(margin, points))
    off = [f"b = {point.bias:g}" for point in points if not point.agrees]
    if off:
        raise CheckFailed(f"the formula does not hold at {', '.join(off)}", mend="see the table")


def _biases(spec: str) -> list[float]:
    try:
        first, last, step = (float(part) for part in spec.split(":"))
        count = int((last - first) / step + 1e-9) + 1
        if count < 1:
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"{spec!r} is no range", where="--bias", mend="write FROM:TO:STEP, as in -8:8:2"
        ) from None
    return [first + step * number for number in range(count)]


def _request(path: Path | None) -> Body:
    where = str(path) if path else "the built-in request"
    try:
        text = path.read_text("utf-8") if path else _built_in()
        return Body.parse(text)
    except OSError as error:
        raise InputError(str(error.strerror), where=where, mend="name a readable file") from None
    except (NotAnObject, UnicodeDecodeError) as error:
        raise InputError(f"no JSON object: {error}", where=where, mend="give messages and tools") from None


def _built_in() -> str:
    return resources.files("bench").joinpath("data/curve_request.json").read_text("utf-8")


def _entry(client: httpx.Client, model: str | None) -> tuple[str, Entry]:
    """The model's name and its entry tokens, as the proxy knows them."""
    status = _ask(client, "GET", "/seam/api/status")
    models = [m for upstream in status.get("upstreams", ()) for m in upstream["models"]]
    for known in models:
        if model in (None, known["name"]):
            if not known["entry_tokens"]:
                raise CheckFailed(f"no entry tokens: {known['no_entry']}", mend="see `seam check`")
            return known["name"], Entry(tuple(known["entry_tokens"]), known["entry_text"] or "")
    names = ", ".join(m["name"] for m in models) or "none"
    raise InputError(f"the proxy knows no model {model!r}", where="--model", mend=f"it knows: {names}")


def _margin(client: httpx.Client, body: Body, entry: Entry) -> Margin:
    reply = _reply(client, margin_query(body, entry), "off")
    margin = read_margin(reply.first, entry)
    if margin.probability is None:
        raise CheckFailed(
            "the server shows no log-probabilities by token id", mend="serve with vLLM 0.23 or later"
        )
    return margin


def _measure(
    client: httpx.Client, body: Body, entry: Entry, margin: Margin, b: float, apply: str, samples: int
) -> Point:
    assert margin.probability is not None
    assert margin.gap is not None
    calibration: Json | str = {"bias": b, "apply": apply} if b else "off"
    greedy = _entered(_reply(client, _sampling(body, 0, 1), calibration), entry)
    batches = _batches(samples, 1 if apply == "resample" else BATCH)
    with ThreadPoolExecutor(8) as pool:
        replies = pool.map(lambda n: _reply(client, _sampling(body, 1, n), calibration), batches)
        entered = sum(_entered(reply, entry) for reply in replies)
    return Point(b, biased(margin.probability, b), entered, samples, margin.gap + b > 0, bool(greedy))


def _batches(samples: int, size: int) -> list[int]:
    full, rest = divmod(samples, size)
    return [size] * full + ([rest] if rest else [])


def _sampling(body: Body, temperature: int, n: int) -> Body:
    """One token, sampled as the formula assumes, shown by its id."""
    return body.with_json(
        max_tokens=1,
        temperature=temperature,
        top_p=1,
        top_k=0,
        n=n,
        logprobs=True,
        top_logprobs=20,
        return_tokens_as_token_ids=True,
    )


def _reply(client: httpx.Client, body: Body, calibration: Json | str) -> Reply:
    document = _ask(client, "POST", "/v1/chat/completions", body.with_json(calibration=calibration).render())
    reply = Reply(200, ended=True)
    reply.add(document)
    return reply


def _entered(reply: Reply, entry: Entry) -> int:
    """How many of a reply's choices opened with an entry token."""
    wanted = {f"token_id:{token}" for token in entry.tokens}
    return sum(bool(c.logprobs) and c.logprobs[0].get("token") in wanted for c in reply.choices.values())


def _ask(client: httpx.Client, method: str, path: str, content: str | None = None) -> Json:
    headers = {"content-type": "application/json"} if content else {}
    try:
        response = client.request(method, path, content=content, headers=headers)
        document: Json = response.json()
    except httpx.TransportError as error:
        where = str(client.base_url)
        raise ServerUnreachable(
            str(error), where=where, mend="start it with `seam serve` or `make run`"
        ) from None
    except json.JSONDecodeError:
        raise ServerUnreachable(
            "no JSON answer", where=path, mend="give the proxy's URL with --url"
        ) from None
    if response.status_code != 200:
        raise CheckFailed(f"{document}", where=path, mend="see the proxy's log")
    return document


def _result(name: str, entry: Entry, margin: Margin, points: Sequence[Point], apply: str) -> Json:
    shown = []
    for point in points:
        interval = wilson(point.entered, point.samples)
        shown.append(
            {
                **point._asdict(),
                "measured": point.entered / point.samples,
                "low": interval.low,
                "high": interval.high,
                "agrees": point.agrees,
            }
        )
    return {
        "model": name,
        "entry_tokens": list(entry.tokens),
        "apply": apply,
        **margin._asdict(),
        "points": shown,
    }


def _table(margin: Margin, points: Sequence[Point]) -> str:
    lines = [
        f"p = {margin.probability:.4f}, margin {margin.margin:+.3f}, gap {margin.gap:+.3f}",
        "",
        "| b | p' by formula | measured (95 %) | entered | greedy: formula | measured |",
        "| ---: | ---: | ---: | ---: | --- | --- |",
    ]
    words = {True: "call", False: "text"}
    for p in points:
        interval = wilson(p.entered, p.samples)
        measured = f"{p.entered / p.samples:.3f} ({interval.low:.3f}–{interval.high:.3f})"
        lines.append(
            f"| {p.bias:+g} | {p.formula:.4f} | {measured} | {p.entered}/{p.samples} "
            f"| {words[p.greedy_formula]} | {words[p.greedy_entered]} |"
        )
    return "\n".join(lines)
