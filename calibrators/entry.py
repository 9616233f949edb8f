"""Tool-entry tokens: which tokens open a call.

calibration.md section 4. How they are found on a server is in calibrators/openers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Scope = Literal["decision", "everywhere"]

Mode = Literal["default", "on", "off"]
"""How a request sets the chat template's thinking switch."""

Opens = Literal["never", "prompt", "closed", "model"]
"""Who opens the reasoning: nobody, the prompt (left open, or opened and closed), or the model itself."""


class NoEntry(ValueError):
    """No entry tokens can be named, and why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a model opens a call.

    Attributes:
        tokens: the entry set E, ids of every token that may open a call.
        text: E's one token as text, for servers that show tokens by text; the opener where E is more.
        opener: all that a call writes before the function's name.
        scope: the widest scope that is safe: `everywhere` only for one dedicated token.
        after: the ids that close the reasoning, where the decision comes after it.
        space: whitespace-only ids that may come first and leave the decision open.
        shared: whether E also begins ordinary text, so that p is an upper bound of P(call).
        named: whether the function's name directly follows the opener, so that E depends on the tools that a
            request offers; `tokens` then holds what does not.
        context: the end of the text before the decision, where openers are tokenized.
        thinking: who opens the reasoning, by default.
        without: the modes in which no reasoning is to be waited for, whatever `after` says.
        source: where it is from: differencing, parser NAME, or profile.
        verified: whether a forced call was returned as one, with E's token first; None where that could not
            be tried.
        note: why it is not verified.
        fingerprint: of tokenizer and chat template, as far as the probes show them.
    """

    tokens: tuple[int, ...]
    text: str = ""
    opener: str = ""
    scope: Scope = "decision"
    after: tuple[int, ...] = ()
    space: tuple[int, ...] = ()
    shared: bool = False
    named: bool = False
    context: str = ""
    thinking: Opens = "never"
    without: frozenset[Mode] = frozenset()
    source: str = "profile"
    verified: bool | None = None
    note: str = ""
    fingerprint: str | None = None

    def after_for(self, fields: Mapping[str, Any]) -> tuple[int, ...]:
        """The closing of the reasoning that a request's decision waits for; empty for its first token."""
        return () if mode_of(fields) in self.without else self.after


def mode_of(fields: Mapping[str, Any]) -> Mode:
    """How a request switches thinking: by its template arguments, else by its effort, as vLLM reads them."""
    given = fields.get("chat_template_kwargs")
    for key in ("enable_thinking", "thinking"):
        if isinstance(given, Mapping) and isinstance(given.get(key), bool):
            return "on" if given[key] else "off"
    effort = fields.get("reasoning_effort")
    if isinstance(effort, str):
        return "off" if effort == "none" else "on"
    return "default"
