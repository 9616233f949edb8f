"""From files to running settings, and from one set to the next without a moment in between."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import watchfiles

from proxy.config import Config, load
from proxy.errors import ConfigError
from proxy.metrics import Metrics
from proxy.plan import is_stale
from proxy.probe import hints_of, watch
from proxy.profiles import Profile, read_profiles
from proxy.runtime import Runtime, Settings
from proxy.selection import INLINE, OFF, needs_redis
from proxy.tracing import require_opentelemetry
from proxy.upstream import Upstream

logger = logging.getLogger("seam")

_AT_START = ("listen", "decisions", "drift", "logging", "state", "tracing")


def build(path: Path | None, flags: Mapping[str, Any], running: Settings | None = None) -> Settings:
    """Read configuration and profiles; upstreams whose settings stay keep their connections and facts.

    Raises:
        ConfigError: anything that is wrong, in one line.
    """
    config = load(path, flags)
    if config.tracing != "off":
        require_opentelemetry()
    profiles = read_profiles(config.profiles.folder)
    for name, model in config.models.items():
        if model.profile is not None and model.profile not in (*profiles, OFF):
            valid = ", ".join([*sorted(profiles), OFF])
            raise ConfigError(f"models.{name}.profile: no profile {model.profile!r}; there is: {valid}")
    for name, key in (config.auth.keys if config.auth else {}).items():
        for profile in key.profiles or ():
            if profile not in (valid_names := (*sorted(profiles), OFF, INLINE)):
                there = ", ".join(valid_names)
                raise ConfigError(f"auth.keys.{name}.profiles: no profile {profile!r}; there is: {there}")
    probing = sorted(name for name, profile in profiles.items() if profile.sri or profile.cri)
    if probing and needs_redis(config):
        raise ConfigError(
            f"profiles {', '.join(probing)}: probes of several workers need a state.store that all share;"
            " write state: redis://HOST:PORT/0, or listen.workers: 1"
        )
    upstreams: dict[str, Upstream] = {}
    for name, settings in config.upstreams.items():
        old = running.upstreams.get(name) if running else None
        upstreams[name] = old if old and old.settings == settings else Upstream(name, settings)
    return Settings(config, profiles, upstreams)


class Reloader:
    """Keeps the runtime's settings in step with the files: all of a change is taken, or none."""

    def __init__(self, runtime: Runtime, path: Path | None, flags: Mapping[str, Any]) -> None:
        self._runtime = runtime
        self._path = path
        self._flags = flags
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Probe the upstreams and watch the files."""
        self._watch_upstreams()
        show_profiles(self._runtime.metrics, self._runtime.settings)
        if self._watched():
            self._spawn(self._watch_files())

    async def stop(self) -> None:
        """End all that `start` began, and close the upstreams."""
        begun = [*self._watches.values(), *self._tasks]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        for upstream in self._runtime.settings.upstreams.values():
            await upstream.aclose()
        await self._runtime.memory.aclose()

    def reload(self) -> None:
        """Read everything again; a fault keeps what is running and is reported."""
        old = self._runtime.settings
        try:
            new = build(self._path, self._flags, old)
        except ConfigError as error:
            logger.error("reload: %s; the settings that were running stay", error)
            self._runtime.metrics.reloads.labels("refused").inc()
            return
        if any(getattr(new.config, name) != getattr(old.config, name) for name in _AT_START):
            logger.warning("reload: %s take effect at the next start", ", ".join(_AT_START))
        self._runtime.settings = new
        self._runtime.metrics.reloads.labels("done").inc()
        show_profiles(self._runtime.metrics, new)
        self._watch_upstreams()
        for name, upstream in old.upstreams.items():
            if new.upstreams.get(name) is not upstream:
                self._spawn(_close_later(upstream))
        logger.info("reload: %d profiles, %d upstreams", len(new.profiles), len(new.upstreams))

    def _watch_upstreams(self) -> None:
        for task in self._watches.values():
            task.cancel()
        hints = hints_of(self._runtime.settings.profiles.values())
        self._watches = {
            name: asyncio.create_task(watch(upstream, hints))
            for name, upstream in self._runtime.settings.upstreams.items()
            if upstream.settings.kind != "openai"
        }

    def _watched(self) -> list[Path]:
        folder = self._runtime.settings.config.profiles.folder
        # The folder of a file, since editors and ConfigMaps put a new file in its place.
        return [p.resolve() for p in (self._path and self._path.parent, folder) if p and p.is_dir()]

    async def _watch_files(self) -> None:
        def concerns(_: watchfiles.Change, path: str) -> bool:
            return path.endswith((".yaml", ".yml", "..data"))

        async for _ in watchfiles.awatch(*self._watched(), watch_filter=concerns):
            self.reload()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _close_later(upstream: Upstream) -> None:
    """Close an upstream that was replaced when its last reply must have ended."""
    try:
        await asyncio.sleep(upstream.settings.timeouts.total)
    finally:
        await upstream.aclose()


def show_profiles(metrics: Metrics, settings: Settings) -> None:
    """Bring the profile gauges in step with the loaded profiles."""
    metrics.profile_info.clear()
    metrics.profile_stale.clear()
    for name, profile in settings.profiles.items():
        bias = "" if profile.bias is None else _shown(profile.bias.told)
        metrics.profile_info.labels(name, profile.model or "", bias).set(1)
        metrics.profile_stale.labels(name).set_function(partial(_stale_gauge, profile, settings))


def _shown(bias: float | str) -> str:
    return bias if isinstance(bias, str) else f"{bias:g}"


def _stale_gauge(profile: Profile, settings: Settings) -> float:
    return float(stale_on(profile, settings))


def stale_on(profile: Profile, settings: Settings) -> bool:
    """Whether a profile was made for another tokenizer or template than a server now shows for its model."""
    return any(
        is_stale(profile, facts)
        for upstream in settings.upstreams.values()
        for model, facts in upstream.facts.models.items()
        if profile.model in (None, model)
    )


def config_schema() -> dict[str, Any]:
    """The JSON schema of seam.yaml."""
    return Config.model_json_schema(by_alias=True)
