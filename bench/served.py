"""A served model as benches that ask the server itself need it: what the server is, and how calls open."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from bench.errors import CheckFailed, InputError, ServerUnreachable
from calibrators.entry import Entry, NoEntry
from calibrators.openers import Hint, settled
from proxy import config
from proxy.errors import HttpError
from proxy.probe import glance
from proxy.upstream import Facts, ModelFacts, Upstream


class Served(NamedTuple):
    """One model of a server."""

    model: str
    entry: Entry
    facts: Facts
    """Of the server; its `models` has this one, with its entry."""


def connected(url: str, api_key_env: str | None) -> Upstream:
    """The server at an address, with the key that an environment variable holds."""
    return Upstream("bench", config.Upstream(url=url, api_key_env=api_key_env))


async def facts_of(upstream: Upstream) -> Facts:
    """What a server is.

    Raises:
        ServerUnreachable: it doesn't answer as one.
    """
    facts = await glance(upstream)
    if facts.problem is not None:
        where = upstream.settings.url
        raise ServerUnreachable(
            facts.problem, where=where, mend="start the server, or name another --upstream"
        )
    return facts


def names_of(facts: Facts, model: str | None) -> list[str]:
    """The models to work on: the one that was asked for, or all.

    Raises:
        InputError: the server has no such model.
    """
    if model is None:
        return list(facts.models)
    if model not in facts.models:
        listed = ", ".join(facts.models)
        raise InputError(f"the server has no model {model!r}", where="--model", mend=f"it lists: {listed}")
    return [model]


async def served(upstream: Upstream, model: str | None, hint: Hint) -> Served:
    """A model of a server with its entry tokens, not shown to be wrong by their forced query.

    The upstream's facts hold them then too, so that `facts_for` finds a request's own entry set.

    Raises:
        ServerUnreachable: the server doesn't answer.
        InputError: it has no such model, or several and none is named.
        CheckFailed: no entry tokens are found.
    """
    facts = await facts_of(upstream)
    names = names_of(facts, model)
    if len(names) > 1:
        raise InputError(
            "the server has several models", where="--model", mend=f"name one: {', '.join(names)}"
        )
    try:
        entry = await upstream.answered(settled(names[0], hint, facts.processor is not None))
    except NoEntry as error:
        raise CheckFailed(f"no entry tokens: {error}", where=names[0], mend="see `bench entry`") from None
    except HttpError as error:
        raise ServerUnreachable(
            error.message, where=upstream.settings.url, mend="see the server's log"
        ) from None
    upstream.facts = replace(facts, models={names[0]: ModelFacts(entry)})
    return Served(names[0], entry, upstream.facts)


async def entry_for(upstream: Upstream, model: str, request: Mapping[str, Any]) -> Entry:
    """The entry set of one request, which may depend on the tools it offers."""
    entry = (await upstream.facts_for(model, request)).models[model].entry
    assert entry is not None
    return entry
