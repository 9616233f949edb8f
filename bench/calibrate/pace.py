"""How many queries are in flight: as many as the server bears.

Additive increase, multiplicative decrease, as in TCP (Chiu and Jain, Computer Networks 17 (1989) 1): one more
after each round of answers, half as many when the server pushes back.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

START = 4


class Pace:
    """A limit on queries in flight that adapts; `async with pace.turn()` waits for one's turn.

    Args:
        most: never more than this.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = float(min(START, most))
        self._running = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold one of the places while a query is in flight."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._running < int(self.limit))
            self._running += 1
        try:
            yield
        finally:
            async with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def answered(self) -> None:
        """An answer came: a round of them makes room for one more."""
        self.limit = min(float(self.most), self.limit + 1 / self.limit)

    def pushed_back(self) -> None:
        """The server is too busy: half as many from now on."""
        self.limit = max(1.0, self.limit / 2)
