"""What is measured: nothing in between, and three proxies, one worker each, with the settings that
their own documentation advises for production."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bench.environments import make
from bench.overhead.processes import Server, await_ready, free_port, running
from bench.overhead.traffic import MODEL, chat_body

LITELLM = ("litellm[proxy]==1.108.7",)
# On slow machines LiteLLM imports for half a minute.
_READY_SECONDS = 180.0


class Target(NamedTuple):
    """A proxy that the bench knows how to run."""

    name: str
    """As `--targets` takes it."""
    summary: str
    """One line for the table's legend."""
    command: Callable[[Path, int, int], list[str]]
    """(own folder, own port, upstream's port) to its command line."""
    environment: Mapping[str, str]
    """Variables it needs."""


@contextmanager
def all_serving(targets: Sequence[Target], work: Path, interval_ms: float) -> Iterator[dict[str, Server]]:
    """Run the canned upstream and all targets at once, so that their blocks can interleave.

    work: folder with one folder a server, for its configuration and its log. Yields the servers by
    name; `direct` is the upstream itself. Raises ServerUnreachable where one doesn't start.
    """
    with ExitStack() as stack:
        upstream = _upstream(interval_ms)
        direct = stack.enter_context(_serving(upstream, 0, work))
        servers = {"direct": direct}
        for target in targets:
            servers[target.name] = stack.enter_context(_serving(target, direct.port, work))
        yield servers


@contextmanager
def _serving(target: Target, upstream: int, work: Path) -> Iterator[Server]:
    folder = work / target.name
    folder.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder / "server.log"
    with running(target.command(folder, port, upstream), log, target.environment) as process:
        await_ready(target.name, process, port, chat_body(), log, _READY_SECONDS)
        yield Server(port, process.pid)


def _upstream(interval_ms: float) -> Target:
    def command(work: Path, port: int, upstream: int) -> list[str]:
        del work, upstream
        how = ["--port", str(port), "--interval-ms", f"{interval_ms:g}"]
        return [sys.executable, "-m", "bench.overhead.upstream", *how]

    return Target("upstream", "the canned upstream", command, {})


def _bare(work: Path, port: int, upstream: int) -> list[str]:
    del work
    url = f"http://127.0.0.1:{upstream}"
    return [sys.executable, "-m", "bench.overhead.forwarder", "--port", str(port), "--upstream", url]


def _litellm(work: Path, port: int, upstream: int) -> list[str]:
    config = {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {
                    "model": f"hosted_vllm/{MODEL}",
                    "api_base": f"http://127.0.0.1:{upstream}/v1",
                    "api_key": "none",
                },
            }
        ],
        "litellm_settings": {"num_retries": 0, "request_timeout": 600, "set_verbose": False},
        # No client keys, as for the others: the quicker way.
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }
    (work / "config.yaml").write_text(yaml.safe_dump(config))
    program = make("litellm", LITELLM) / "litellm"
    where = ["--config", str(work / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    return [str(program), *where, "--num_workers", "1"]


def seam(summary: str, **calibration: Any) -> Target:
    """Seam with a profile in force on every request, classification, decision log and metrics on."""

    def command(work: Path, port: int, upstream: int) -> list[str]:
        profiles = work / "profiles"
        profiles.mkdir(exist_ok=True)
        (profiles / "overhead.yaml").write_text(yaml.safe_dump({"name": "overhead", **calibration}))
        config = {
            # Never probed: the canned upstream has neither tokenizer nor processor.
            "upstreams": {"canned": {"url": f"http://127.0.0.1:{upstream}", "kind": "openai"}},
            "models": {MODEL: {"profile": "overhead"}},
            "profiles": {"folder": str(profiles)},
            "decisions": {"path": str(work / "decisions.jsonl")},
        }
        (work / "seam.yaml").write_text(yaml.safe_dump(config))
        program = Path(sys.executable).with_name("seam")
        where = ["--config", str(work / "seam.yaml"), "--port", str(port), "--log-level", "warning"]
        return [str(program), "serve", *where]

    return Target("seam", summary, command, {})


PROXIES: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("bare", "FastAPI and httpx forwarder that parses both bodies", _bare, {}),
        Target(
            "litellm",
            f"LiteLLM proxy {LITELLM[0].partition('==')[2]}",
            _litellm,
            {
                "LITELLM_MODE": "PRODUCTION",
                "LITELLM_LOG": "ERROR",
                # Nothing leaves this machine: prices from the package, no telemetry.
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_TELEMETRY": "False",
            },
        ),
        seam(
            "Seam with bias, classification, decision log and metrics",
            entry={"tokens": [7]},
            bias={"value": -1.5, "apply": "processor"},
        ),
    )
}
TARGETS = ("direct", *PROXIES)
