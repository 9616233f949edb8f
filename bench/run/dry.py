"""The dry pass: the first cases of every arm, looked at before the rest is waited for."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import click

from bench.errors import CheckFailed

Json = dict[str, Any]
Key = tuple[str, str]
"""(arm, case)."""


class DryPass:
    """What the first cases show: errors, how long prompts are beside what the servers take, and the time.

    Args:
        cases: its cases.
        contexts: how many tokens each server takes, null where it doesn't say.
        command: as the person called it, say `bench run bfcl`.

    Attributes:
        told: what it showed; empty until all of its cases are there.
    """

    def __init__(self, cases: Collection[Key], contexts: Iterable[int | None], command: str) -> None:
        self._waiting = set(cases)
        self._count = len(self._waiting)
        self._context = min(filter(None, contexts), default=None)
        self._command = command
        self._began: float | None = None
        self._errors: Counter[str] = Counter()
        self._tokens: list[int] = []
        self.told: Json = {}

    def add(self, case: Key, error: str | None, prompt_tokens: Iterable[int]) -> None:
        """Take a case that has run, if it is one of these.

        error: what ended it; prompt_tokens: of its queries, as the server counted them.
        """
        if case in self._waiting:
            self._waiting.remove(case)
            self._tokens += prompt_tokens
            if error is not None:
                self._errors[" ".join(error.split())] += 1

    def begin(self) -> None:
        """Upstream starts now. Cases that were there before tell nothing of the time."""
        if len(self._waiting) == self._count:
            self._began = time.monotonic()

    def settle(self, left: int) -> None:
        """Once all are there, say what they show; `left` is how many cases are still to come.

        Raises CheckFailed where every one ended in an error.
        """
        if self.told or self._waiting or not self._count:
            return
        tokens = self._tokens
        self.told = {
            "cases": self._count,
            "errored": self._errors.total(),
            "errors": dict(self._errors),
            "prompt_tokens": {"least": min(tokens), "most": max(tokens)} if tokens else None,
            "context": self._context,
        }
        spent = None if self._began is None else time.monotonic() - self._began
        expected = None if spent is None else spent / self._count * left
        click.echo("\n".join(_words(self.told, left, expected)), err=True)
        if self._errors.total() == self._count:
            raise CheckFailed(
                f"every case of the dry pass ended in an error: {next(iter(self._errors))[:300]}",
                where=self._command,
                mend="mend that and give a new --out, or cases that fit the server",
            )


def _words(told: Mapping[str, Any], left: int, seconds: float | None) -> Iterable[str]:
    yield f"dry pass: {told['cases']} cases, {told['errored']} errored"
    if told["prompt_tokens"]:
        least, most = told["prompt_tokens"]["least"], told["prompt_tokens"]["most"]
        takes = f", the server takes {told['context']:,}" if told["context"] else ""
        yield f"  prompts of {least:,} to {most:,} tokens{takes}"
    for error, count in told["errors"].items():
        yield f"  {count} × {error[:200]}"
    if left and seconds is not None:
        yield f"  {left} cases are left, about {max(1, round(seconds / 60))} min"
