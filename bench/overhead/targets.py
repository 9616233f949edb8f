"""What is measured: nothing in between, and proxies, one worker each, with the settings that their own
documentation advises for production."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click
import yaml

from bench.environments import made, make, place
from bench.errors import InputError
from bench.overhead.processes import Server, await_ready, free_port, running
from bench.overhead.traffic import MODEL, SLOW_MODEL, chat_body

LITELLM = ("litellm[proxy]==1.108.7",)
_PROFILE = "overhead"
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
    environment: Mapping[str, str] = MappingProxyType({})
    """Variables it needs."""
    missing: Callable[[], str | None] = lambda: None
    """Why it can't run here, after trying to make what it needs; None where it can."""


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

    return Target("upstream", "the canned upstream", command)


def _bare(work: Path, port: int, upstream: int) -> list[str]:
    del work
    url = f"http://127.0.0.1:{upstream}"
    return [sys.executable, "-m", "bench.overhead.forwarder", "--port", str(port), "--upstream", url]


_NGINX = """\
daemon off;
worker_processes 1;
pid {work}/nginx.pid;
error_log stderr;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {work}/body;
    proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi;
    scgi_temp_path {work}/scgi;
    client_body_buffer_size 64k;
    keepalive_requests 1000000000;
    upstream canned {{
        server 127.0.0.1:{upstream};
        keepalive 1024;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=2048;
        location / {{
            proxy_pass http://canned;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


def _nginx_program() -> str | None:
    # It lies where the PATH of people other than root may not lead.
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def _nginx(work: Path, port: int, upstream: int) -> list[str]:
    work = work.resolve()
    (work / "nginx.conf").write_text(_NGINX.format(work=work, port=port, upstream=upstream))
    return [_nginx_program() or "nginx", "-p", str(work), "-c", str(work / "nginx.conf")]


def _nginx_missing() -> str | None:
    return None if _nginx_program() else "nginx is not installed (apt install nginx-light)"


def _litellm(work: Path, port: int, upstream: int) -> list[str]:
    config = {
        "model_list": [
            {
                "model_name": model,
                "litellm_params": {
                    "model": f"hosted_vllm/{model}",
                    "api_base": f"http://127.0.0.1:{upstream}/v1",
                    "api_key": "none",
                },
            }
            for model in (MODEL, SLOW_MODEL)
        ],
        "litellm_settings": {"num_retries": 0, "request_timeout": 600, "set_verbose": False},
        # No client keys, as for the others: the quicker way.
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }
    (work / "config.yaml").write_text(yaml.safe_dump(config))
    program = make("litellm", LITELLM) / "litellm"
    where = ["--config", str(work / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    return [str(program), *where, "--num_workers", "1"]


def _litellm_missing() -> str | None:
    if not made("litellm", LITELLM):
        click.echo(f"making {place('litellm')}, which takes some minutes", err=True)
    try:
        make("litellm", LITELLM)
    except InputError as error:
        return str(error)
    return None


def _seam(name: str, summary: str, **calibration: Any) -> Target:
    """Seam as it is configured by default; with a calibration, that is in force on every request."""

    def command(work: Path, port: int, upstream: int) -> list[str]:
        config: dict[str, Any] = {
            # Never probed: the canned upstream has neither tokenizer nor processor.
            "upstreams": {"canned": {"url": f"http://127.0.0.1:{upstream}", "kind": "openai"}},
            "models": {MODEL: {}, SLOW_MODEL: {}},
            "decisions": {"path": str(work / "decisions.jsonl")},
        }
        if calibration:
            profiles = work / "profiles"
            profiles.mkdir(exist_ok=True)
            (profiles / f"{_PROFILE}.yaml").write_text(yaml.safe_dump({"name": _PROFILE, **calibration}))
            config["models"] = {MODEL: {"profile": _PROFILE}, SLOW_MODEL: {"profile": _PROFILE}}
            config["profiles"] = {"folder": str(profiles)}
        (work / "seam.yaml").write_text(yaml.safe_dump(config))
        program = Path(sys.executable).with_name("seam")
        where = ["--config", str(work / "seam.yaml"), "--port", str(port), "--log-level", "warning"]
        return [str(program), "serve", *where]

    return Target(name, summary, command)


_BIAS = {"entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "processor"}}
_LITELLM_ENVIRONMENT = {
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
    # Nothing leaves this machine: prices from the package, no telemetry.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
}

PROXIES: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("nginx", "nginx as a plain reverse proxy: upstream keep-alive, no buffering, no access log",
               _nginx, missing=_nginx_missing),
        Target("bare", "FastAPI and httpx forwarder that parses both bodies", _bare),
        Target("litellm", f"LiteLLM proxy {LITELLM[0].partition('==')[2]}",
               _litellm, _LITELLM_ENVIRONMENT, _litellm_missing),
        _seam("seam-off", "Seam without a profile: action class, decision log and metrics"),
        _seam("seam", "Seam with a bias, action class, decision log and metrics", **_BIAS),
        _seam("seam-probes-log", "the same, and SRI (gate) and CRI that only write down what they would do",
              **_BIAS, sri={"variant": "gate", "log_only": True}, cri={"log_only": True}),
        _seam("seam-probes", "the same, and SRI (gate) and CRI that act", **_BIAS, sri="gate", cri=True),
    )
}  # fmt: skip
SEAMS = tuple(name for name in PROXIES if name.startswith("seam"))
PROBED = ("seam-probes-log", "seam-probes")
"""Those in which probes look at replies."""
TARGETS = ("direct", *PROXIES)
