"""Cases remembered in Redis, so that several workers and hosts agree."""

import logging
import time
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from calibrators.case import NOTHING, Case
from proxy.config import State
from proxy.memory import LocalMemory

logger = logging.getLogger("seam")

_PREFIX = "seam:case:"
_PATIENCE = 0.5
"""Seconds that a request waits for Redis."""
PAUSE_SECONDS = 5.0
"""Seconds during which a Redis that failed is not asked again."""


class RedisMemory:
    """In Redis; what it can't be told or asked goes to this process's own memory, said and counted.

    Raises:
        ValueError, TypeError: the URL is none of a Redis.
    """

    def __init__(self, settings: State, failed: Callable[[], None]) -> None:
        self._local = LocalMemory(settings)
        self._count = failed
        self._ttl = max(1, round(settings.ttl_seconds))
        self._redis = Redis.from_url(
            settings.store,
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            health_check_interval=30,
        )
        self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # finds faults of the URL
        self._down_until = 0.0

    async def load(self, key: str) -> Case:
        """What Redis remembers; while it is down, what this process does."""
        if time.monotonic() >= self._down_until:
            try:
                found = await self._redis.get(_PREFIX + key)
            except (RedisError, OSError) as error:
                self._failed(error)
            else:
                # What was saved here while Redis was down is still worth knowing.
                return (NOTHING if found is None else Case.loads(found)).joined(await self._local.load(key))
        return await self._local.load(key)

    async def save(self, key: str, case: Case) -> None:
        """Tell Redis; while it is down, keep it here."""
        if time.monotonic() >= self._down_until:
            try:
                await self._redis.set(_PREFIX + key, case.dumps(), ex=self._ttl)
            except (RedisError, OSError) as error:
                self._failed(error)
            else:
                return
        await self._local.save(key, case)

    async def problem(self) -> str | None:
        """Why Redis does not answer, or not to us."""
        try:
            await self._redis.get(_PREFIX)  # as a request does
        except (RedisError, OSError) as error:
            return _words(error)
        return None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _failed(self, error: Exception) -> None:
        self._count()
        self._down_until = time.monotonic() + PAUSE_SECONDS
        logger.warning(
            "state: Redis failed (%s); this process remembers by itself for %g s",
            _words(error),
            PAUSE_SECONDS,
        )


def _words(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
