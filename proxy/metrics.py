"""The metrics of contract.md: built in one place, handed in, with bounded labels."""

import os
import warnings
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from calibrators.drift import EDGES
from proxy.workers import Worker

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OVERHEAD = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)

OTHER = "other"
"""The label of a model that the configuration does not list: clients can't create time series."""


class Metrics:
    """Every series that the proxy writes. Label values come from the configuration, never from clients."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        by_model = ("model", "profile")
        self.requests = Counter(
            "seam_requests", "Requests answered.", ("route", *by_model, "status"), registry=registry
        )
        self.actions = Counter(
            "seam_actions",
            "Replies by action class (none: cut, errored or empty).",
            (*by_model, "action", "tools"),
            registry=registry,
        )
        self.entry_probability = Histogram(
            "seam_entry_probability",
            "Entry probability before any bias, where it was read exactly.",
            by_model,
            buckets=(0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0),
            registry=registry,
        )
        self.entry_margin = Histogram(
            "seam_entry_margin",
            "Margin before any bias, in nats.",
            by_model,
            buckets=EDGES,
            registry=registry,
        )
        by_statistic = (*by_model, "statistic")
        self.action_drift = Gauge(
            "seam_action_drift",
            "How far the action classes of the last window are from the reference.",
            by_statistic,
            registry=registry,
        )
        self.margin_drift = Gauge(
            "seam_margin_drift",
            "How far the margins of the last window are from the reference.",
            by_statistic,
            registry=registry,
        )
        self.action_reference = Gauge(
            "seam_action_reference",
            "Replies by action class in the window that drift compares with.",
            (*by_model, "action"),
            registry=registry,
        )
        self.flips = Counter(
            "seam_entry_flips",
            "Replies whose likeliest first token the bias moved into or out of the entry set.",
            ("direction",),
            registry=registry,
        )
        _start_at_zero(self.flips, "to_call", "to_text")
        self.interventions = Counter(
            "seam_interventions",
            "What calibrators did to replies.",
            ("calibrator", "outcome"),
            registry=registry,
        )
        self.delayed_calls = Counter(
            "seam_delayed_calls", "Replies whose first call came after text.", by_model, registry=registry
        )
        self.repeated_calls = Counter(
            "seam_repeated_calls",
            "Calls that repeat an earlier one of their turn.",
            by_model,
            registry=registry,
        )
        self.upstream_seconds = Histogram(
            "seam_upstream_seconds",
            "Time spent waiting for the upstream, per reply.",
            by_model,
            buckets=_SECONDS,
            registry=registry,
        )
        self.first_token_seconds = Histogram(
            "seam_first_token_seconds",
            "Time until the client was shown the first event of a stream, or a whole reply.",
            by_model,
            buckets=_SECONDS,
            registry=registry,
        )
        self.overhead_seconds = Histogram(
            "seam_overhead_seconds",
            "Time of a reply that was not spent waiting for the upstream or the client.",
            by_model,
            buckets=_OVERHEAD,
            registry=registry,
        )
        self.queries = Histogram(
            "seam_queries_per_reply",
            "Upstream queries made for one reply.",
            by_model,
            buckets=(1, 2, 3, 4, 5, 6),
            registry=registry,
        )
        self.tokens = Counter(
            "seam_tokens",
            "Tokens of upstream queries, by what the query was for, where the upstream counted them.",
            (*by_model, "role", "kind"),
            registry=registry,
        )
        self.passthrough = Counter(
            "seam_passthrough",
            "Replies served without a calibration that was picked, by reason.",
            ("reason",),
            registry=registry,
        )
        self.upstream_errors = Counter(
            "seam_upstream_errors", "Replies that the upstream failed.", by_model, registry=registry
        )
        self.profile_stale = Gauge(
            "seam_profile_stale",
            "1 where the served tokenizer or template is not the profile's.",
            ("profile",),
            registry=registry,
        )
        self.profile_info = Gauge(
            "seam_profile_info", "Loaded profiles.", ("profile", "model", "bias"), registry=registry
        )
        self.in_flight = Gauge(
            "seam_requests_in_flight",
            "Requests being answered.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.in_flight.set(0)  # a worker's place may have been another's, who left some behind
        self.worker_starts = Counter(
            "seam_worker_starts",
            "Processes that began to serve; more than there are workers: some were replaced.",
            registry=registry,
        )
        self.worker_starts.inc()
        self.dropped = Counter(
            "seam_decisions_dropped", "Decision records that could not be written.", registry=registry
        )
        self.memory_errors = Counter(
            "seam_memory_errors",
            "Requests to Redis that failed; the process then remembered by itself.",
            registry=registry,
        )
        self.refused = Counter(
            "seam_connections_refused",
            "Connections ended for what came on them in place of a request.",
            ("status",),
            registry=registry,
        )
        _start_at_zero(self.refused, "400", "408", "431")
        self.reloads = Counter(
            "seam_config_reloads", "Reloads of configuration and profiles.", ("outcome",), registry=registry
        )
        _start_at_zero(self.reloads, "done", "refused")
        build = Gauge("seam_build_info", "The running version.", ("version",), registry=registry)
        build.labels(version("seam")).set(1)
        for metric in vars(self).values():
            if isinstance(metric, Counter | Histogram):
                # A reply looks up a dozen of them, each under a lock; none is ever taken away again.
                metric.labels = cache(metric.labels)  # type: ignore[assignment, method-assign]


def share(worker: Worker) -> None:
    """From now on keep counters and histograms in the workers' folder; to be called before `Metrics`.

    By place, not by process: a replacement goes on counting where the one before it ended, and no file is
    left behind. Gauges stay in the process, but those that are summed: each worker can tell the rest itself.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(worker.folder)
    # What the client warns of concerns gauges in files.
    warnings.filterwarnings("ignore", message="Clearing labels has not been implemented")
    shared = values.MultiProcessValue(lambda: worker.slot)  # type: ignore[no-untyped-call]

    def value(typ: str, *args: Any, multiprocess_mode: str = "", **kwargs: Any) -> Any:
        if typ == "gauge" and multiprocess_mode != "livesum":
            return values.MutexValue(typ, *args, **kwargs)  # type: ignore[no-untyped-call]
        return shared(typ, *args, multiprocess_mode=multiprocess_mode, **kwargs)

    values.ValueClass = value


class Together(Collector):
    """The metrics of all workers: what they share from their folder, the rest as this one knows it."""

    def __init__(self, own: CollectorRegistry, folder: Path) -> None:
        self._own, self._folder = own, folder

    def collect(self) -> Iterable[Metric]:
        """All families, each once."""
        files = sorted(map(str, self._folder.glob("*_*.db")))
        merged: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        shared = {family.name: family for family in merged}
        for family in self._own.collect():
            yield shared.get(family.name, family)


def exposition(metrics: Metrics, worker: Worker | None) -> bytes:
    """What Prometheus scrapes, of all workers."""
    if worker is None:
        return generate_latest(metrics.registry)
    registry = CollectorRegistry()
    registry.register(Together(metrics.registry, worker.folder))
    return generate_latest(registry)


def _start_at_zero(counter: Counter, *values: str) -> None:
    """Show a series before its first event: Prometheus' increase() takes no notice of a first sample."""
    for value in values:
        counter.labels(value)
