"""The options that name the judge of CONFIRM, for every command that scores tau2."""

import functools
from collections.abc import Callable
from typing import Any

import click
import httpx

from bench.errors import InputError
from bench.options import JsonObject, key_of
from bench.score.judge import Judge


def judge_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets them as one `judge` argument, None where no judge is named."""

    @click.option("--judge", "judge_url", metavar="URL",
                  help="Judge of CONFIRM: any OpenAI-compatible server.  [default: none]")  # fmt: skip
    @click.option("--judge-model", metavar="NAME", help="The judge's model.")
    @click.option("--judge-api-key-env", metavar="NAME",
                  help="Environment variable that holds the judge's key.")  # fmt: skip
    @click.option("--judge-fields", type=JsonObject(), default="{}", metavar="JSON",
                  help="Added to the judge's requests, or in place of what they have.")  # fmt: skip
    @click.option("--judge-concurrency", type=click.IntRange(1), default=8, show_default=True,
                  metavar="N", help="Requests to the judge in flight at most.")  # fmt: skip
    @click.option("--judge-timeout", type=click.FloatRange(0, min_open=True), default=120,
                  show_default=True, metavar="SECONDS", help="For one answer of the judge.")  # fmt: skip
    @functools.wraps(function)
    def command(
        *,
        judge_url: str | None,
        judge_model: str | None,
        judge_api_key_env: str | None,
        judge_fields: dict[str, Any],
        judge_concurrency: int,
        judge_timeout: float,
        **own: Any,
    ) -> None:
        if (judge_url is None) != (judge_model is None):
            missing, there = (
                ("--judge", "--judge-model") if judge_url is None else ("--judge-model", "--judge")
            )
            raise InputError("is missing", where=missing, mend=f"give it beside {there}")
        judge = None
        if judge_url is not None and judge_model is not None:
            _check(judge_url)
            key = key_of(judge_api_key_env, "--judge-api-key-env")
            judge = Judge(judge_url, judge_model, key, judge_fields, judge_concurrency, judge_timeout)
        function(judge=judge, **own)

    return command


def _check(url: str) -> None:
    """Raise InputError for what is no address, before anything runs that the judge comes after."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        parts = httpx.URL()
    if parts.scheme not in ("http", "https") or not parts.host:
        raise InputError(f"{url!r} is no address", where="--judge", mend="give one as http://127.0.0.1:8000")
