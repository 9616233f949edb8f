"""Where cases are remembered between requests: in this process, or in Redis for several of them."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from calibrators.case import Case
from proxy.config import State
from proxy.errors import ConfigError


class Memory(Protocol):
    """Remembers cases by key."""

    async def load(self, key: str) -> Case:
        """What is remembered; an empty case where nothing is."""
        ...

    async def save(self, key: str, case: Case) -> None:
        """Remember."""
        ...

    async def problem(self) -> str | None:
        """Why it can't be asked just now; None where it can."""
        ...

    async def aclose(self) -> None:
        """Let go of what it holds."""
        ...


class LocalMemory:
    """In this process: bounded, the cases unused for longest go first, each forgotten after a time."""

    def __init__(self, settings: State, now: Callable[[], float] = time.monotonic) -> None:
        self._ttl, self._most, self._now = settings.ttl_seconds, settings.cases, now
        self._cases: OrderedDict[str, tuple[float, Case]] = OrderedDict()

    async def load(self, key: str) -> Case:
        """What is remembered."""
        found = self._cases.get(key)
        if found is None:
            return Case()
        until, case = found
        if until < self._now():
            del self._cases[key]
            return Case()
        self._cases.move_to_end(key)
        return case

    async def save(self, key: str, case: Case) -> None:
        """Remember, and forget what is too much."""
        self._cases[key] = (self._now() + self._ttl, case)
        self._cases.move_to_end(key)
        while len(self._cases) > self._most:
            self._cases.popitem(last=False)

    async def problem(self) -> None:
        """It can always be asked."""

    async def aclose(self) -> None:
        """Nothing is held open."""


def memory(settings: State, failed: Callable[[], None]) -> Memory:
    """The memory that the configuration asks for; `failed` is called each time that Redis fails.

    Raises:
        ConfigError: the URL is none of a Redis.
    """
    if settings.store == "memory":
        return LocalMemory(settings)
    from proxy.redis import RedisMemory  # takes a while to import, and few need it

    try:
        return RedisMemory(settings, failed)
    except (ValueError, TypeError) as error:  # without the URL, which may hold a password
        raise ConfigError(f"state.store: {error}; a Redis URL is redis://HOST:PORT/0") from None
