"""Listens, serves, and shuts down without losing a reply."""

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping
from contextvars import Context
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry

from proxy.app import App
from proxy.config import Config, Listen, load
from proxy.decisions import DecisionLog
from proxy.drift import DriftWindows
from proxy.errors import ConfigError
from proxy.guard import Guard, overdue
from proxy.memory import memory
from proxy.metrics import Metrics, share
from proxy.program_log import set_up_logging
from proxy.runtime import Runtime
from proxy.settings import Reloader, build
from proxy.tracing import Tracing
from proxy.workers import Crew, Worker

logger = logging.getLogger("seam")

IDLE_SECONDS = 75
"""How long a connection is kept between two requests: longer than balancers (60 s) and SDKs (5 s) keep it.

The one to close it must be the one that asks: else a request meets a connection that is being closed.
"""


def serve(path: Path | None, flags: Mapping[str, Any]) -> None:
    """Run the proxy until it is told to stop.

    Raises:
        ConfigError: it can't start, in one line.
    """
    config = load(path, flags)
    set_up_logging(config.logging)
    if config.listen.workers > 1:
        _serve_by_several(path, flags, config)
        return
    server = prepared(path, flags)
    with _listening(config.listen) as listener:
        settle_garbage()
        server.run(sockets=[listener])


def _serve_by_several(path: Path | None, flags: Mapping[str, Any], config: Config) -> None:
    build(path, flags)  # what is wrong is told once, here

    def work(worker: Worker) -> None:
        share(worker)
        server = prepared(path, flags, worker)
        settle_garbage()
        server.run(sockets=[listener])

    with (
        _listening(config.listen) as listener,
        TemporaryDirectory(prefix="seam-", ignore_cleanup_errors=True) as folder,
    ):
        ready = partial(_announce, config, listener)
        Crew(config.listen.workers, Path(folder), work, ready, config.listen.drain_seconds).run()


def settle_garbage() -> None:
    """Take what was imported and built out of garbage collection, and collect seldom.

    It stays for good, and going over its hundred thousand objects again and again is what the slowest
    replies would wait for. Requests in flight hold hundreds of objects each, and at Python's own threshold of
    700 it would look at all of them at every turn. What is left to free is small: a connection that closes,
    to a client or to a server, leaves some dozens of objects that refer to each other. They hold the heads of
    its last request and answer, and of an answer that was given up at most what had been read ahead; of a
    request's body or a whole answer they hold nothing, and so an answer that breaks may not either.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def _announce(config: Config, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    at = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    urls = ", ".join(upstream.url for upstream in config.upstreams.values())
    by = f" by {config.listen.workers} workers" if config.listen.workers > 1 else ""
    logger.info("Seam on %s%s in front of %s; its page: %s/seam/", at, by, urls, at)


def prepared(path: Path | None, flags: Mapping[str, Any], worker: Worker | None = None) -> "Server":
    """The server with all that it needs, not yet listening; `worker`: which one of several it is.

    Raises:
        ConfigError
    """
    settings = build(path, flags)
    metrics = Metrics(CollectorRegistry())
    decisions = settings.config.decisions
    log = None if decisions.sink == "off" else DecisionLog(decisions, metrics.dropped.inc)
    remembers = memory(settings.config.state, metrics.memory_errors.inc)
    tracing = None if settings.config.tracing == "off" else Tracing(decisions.text)
    drift = DriftWindows(settings.config.drift, worker.board if worker else None)
    runtime = Runtime(settings, metrics, log, remembers, drift, tracing, worker)
    reloader = Reloader(runtime, path, flags)
    config = uvicorn.Config(
        App(runtime, reloader),
        http=partial(Guard, runtime=runtime),  # type: ignore[arg-type]  # uvicorn only calls it
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=5,
    )
    return Server(config, runtime, reloader)


def _listening(listen: Listen) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        return socket.create_server((listen.host, listen.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"listen: {listen.host}:{listen.port}: {_reason(error)}; choose another with --port"
        ) from None


def _reason(error: OSError) -> str:
    """What the system says, without what `socket` adds."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)


_TICKS_A_SECOND = 10
"""How often uvicorn calls `on_tick`."""
_TICKS_A_SHEET = 5 * _TICKS_A_SECOND
"""How often a worker shows the others its window: writing it takes a millisecond or so for each profile."""


class Server(uvicorn.Server):
    """Drains before it stops: open replies go on, new requests get 503, a second signal breaks them off.

    Attributes:
        runtime: what is served.
    """

    def __init__(self, config: uvicorn.Config, runtime: Runtime, reloader: Reloader) -> None:
        super().__init__(config)
        self.runtime = runtime
        self._reloader = reloader
        self._drain_until: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and reload on SIGHUP."""
        await super().startup(sockets)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reloader.reload)
        if self.runtime.worker:
            logger.info("worker %d is process %d", self.runtime.worker.slot, os.getpid())
            asyncio.get_running_loop().add_reader(self.runtime.worker.lifeline, self._orphaned)
            return
        for listener in sockets or ():
            _announce(self.runtime.settings.config, listener)

    def _orphaned(self) -> None:
        assert self.runtime.worker is not None
        asyncio.get_running_loop().remove_reader(self.runtime.worker.lifeline)
        logger.error("worker %d: its parent is gone", self.runtime.worker.slot)
        self.handle_exit(signal.SIGTERM, None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Break off what has not ended in time, so that it is written down before the log closes."""
        for task in self.server_state.tasks:
            task.cancel()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=5)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: break off what is open. Third: drop everything."""
        del sig, frame
        if self._drain_until is not None:
            self.force_exit = self.should_exit
            self.should_exit = True
            return
        self.runtime.draining = True
        seconds = self.runtime.settings.config.listen.drain_seconds
        self._drain_until = time.monotonic() + seconds
        told = ("stopping: %d requests in flight have %g s", self.runtime.in_flight, seconds)
        Context().run(logger.info, *told)  # a signal may interrupt a request, which it is not about

    async def on_tick(self, counter: int) -> bool:
        """Stop once everything in flight has ended, or the time for it is over."""
        if self._drain_until is not None and (
            self.runtime.in_flight == 0 or time.monotonic() > self._drain_until
        ):
            self.should_exit = True
        if counter % _TICKS_A_SECOND == 0:
            overdue(self.server_state, asyncio.get_running_loop().time())
        if counter % _TICKS_A_SHEET == 0:
            self.runtime.drift.publish()
        return await super().on_tick(counter)
