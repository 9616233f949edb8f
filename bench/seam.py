"""A proxy of the bench's own, in front of the server that a run goes to."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from bench.lab.server import Service
from bench.overhead.processes import free_port, running
from calibrators.actions import Cues

_READY_SECONDS = 120.0


@contextmanager
def proxy(
    folder: Path,
    profiles: Path,
    upstream: str,
    api_key_env: str | None,
    *,
    kind: str = "vllm",
    decisions: Mapping[str, Any] = MappingProxyType({}),
    cues: Cues = Cues.SEAM,
) -> Iterator[str]:
    """Run `seam serve` with a folder of profiles in front of a server; yields its URL.

    folder: for its configuration, its decision log and what it prints; decisions: settings of that log;
    cues: what its classes go by.
    Raises ServerUnreachable where it does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "upstreams": {"default": {"url": upstream, "kind": kind, "api_key_env": api_key_env}},
        "profiles": {"folder": str(profiles.resolve())},
        "cues": str(cues),
        "decisions": {"path": str((folder / "decisions.jsonl").resolve()), **decisions},
    }
    (folder / "seam.yaml").write_text(yaml.safe_dump(config))
    port, log = free_port(), folder / "proxy.log"
    command = [sys.executable, "-m", "proxy.cli", "serve", "--config", str(folder / "seam.yaml")]
    with running([*command, "--port", str(port)], log) as process:
        service = Service("the proxy", f"http://127.0.0.1:{port}", log, process)
        service.await_ready("/readyz", _READY_SECONDS)
        yield service.url
