"""What the running proxy holds: settings, upstreams, metrics, log, and how many are being served."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from proxy.config import Config
from proxy.decisions import DecisionLog
from proxy.drift import DriftWindows
from proxy.errors import Busy
from proxy.memory import Memory
from proxy.metrics import OTHER, Metrics
from proxy.profiles import Profile
from proxy.recent import Recent
from proxy.tracing import Tracing
from proxy.upstream import Upstream
from proxy.workers import Worker


@dataclass(frozen=True, slots=True)
class Settings:
    """Configuration, profiles and upstreams that belong together; a reload swaps all of it at once."""

    config: Config
    profiles: Mapping[str, Profile]
    upstreams: Mapping[str, Upstream]

    def upstream_of(self, model: str | None) -> Upstream:
        """The upstream that serves a model."""
        return self.upstreams[self.config.upstream_of(model)]

    def model_label(self, model: str | None) -> str:
        """A model's name as a metric label: `other` where the configuration does not list it."""
        return model if model in self.config.models and model else OTHER


class Runtime:
    """The one mutable place of the process."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        log: DecisionLog | None,
        memory: Memory,
        drift: DriftWindows,
        tracing: Tracing | None,
        worker: Worker | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.log = log
        self.recent = Recent()
        self.memory = memory
        self.drift = drift
        self.tracing = tracing
        self.worker = worker
        self.draining = False
        self.in_flight = 0

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Count a request in flight.

        Raises:
            Busy: the proxy is shutting down, or full.
        """
        if self.draining:
            raise Busy("the proxy is shutting down; ask again", retry_after=1)
        limit = self.settings.config.limits.concurrency
        if limit is not None and self.in_flight >= limit:
            raise Busy(f"{limit} requests are in flight (limits.concurrency); ask again", retry_after=1)
        self.in_flight += 1
        self.metrics.in_flight.inc()
        try:
            yield
        finally:
            self.in_flight -= 1
            self.metrics.in_flight.dec()
