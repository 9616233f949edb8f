"""`make run`: the lab model behind vLLM, the proxy in front, and what a bias does to two requests.

Stays up until Ctrl-C, or ends after the requests with `--once`; either way all that it started ends with it.
"""

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.lab.sample import sample
from bench.lab.script import script
from bench.lab.server import ROOT, Service, Settings, check_port, checkpoint, lab_server
from bench.overhead.processes import running

PROXY_LOG = ROOT / ".cache" / "lab" / "proxy.log"

_PROXY_SECONDS = 60.0
# How often a step shows that it goes on: in its own line at a terminal, in a new one elsewhere.
_TICK_SECONDS = 1.0
_LINE_SECONDS = 15.0


def main() -> None:
    """Run from the command line; a failure is one line and an exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.lab.run", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the sample requests")
    parser.add_argument("--port", type=int, default=8080, help="the proxy's (default: 8080)")
    parser.add_argument("--vllm-port", type=int, help="vLLM's (default: any that is free)")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint (default: the lab model)")
    options = parser.parse_args()
    script(lambda: run(options.port, options.vllm_port, options.model, once=options.once))


def run(port: int, vllm_port: int | None, model: Path | None, *, once: bool) -> None:
    """Bring everything up, ask, and stay until Ctrl-C unless it is to be `once`.

    Raises:
        BenchError: something is missing, in use or full, or a server has ended.
    """
    check_port(port)
    with ExitStack() as stack:
        if model is None:
            with step("making the lab model"):
                model = checkpoint()
        settings = Settings(model=model, port=vllm_port)
        with step(f"starting vLLM (log: {_shown(settings.log)})"):
            server = stack.enter_context(lab_server(settings))
        with step(f"starting the proxy (log: {_shown(PROXY_LOG)})"):
            proxy = stack.enter_context(_proxy(server.url, port))
        print(sample(server.url, proxy.url))
        print(f"\nproxy  {proxy.url}/v1\npage   {proxy.url}/seam/\nvLLM   {server.url}", flush=True)
        if not once:
            print("Ctrl-C ends them all.", flush=True)
            _stay(server, proxy)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Show that a step goes on, and in the end how long it took."""
    began = time.monotonic()
    live = sys.stdout.isatty()

    def tell(end: str) -> None:
        line = f"· {what}{end}"
        print("\r" + line if live else line, end="" if live else "\n", flush=True)

    def tick() -> None:
        while not done.wait(_TICK_SECONDS if live else _LINE_SECONDS):
            tell(f": {time.monotonic() - began:.0f} s")

    done = threading.Event()
    tell("")
    # A daemon, since a signal may come before there is anyone to stop it.
    threading.Thread(target=tick, daemon=True).start()
    try:
        yield
        done.set()
        tell(f": {time.monotonic() - began:.0f} s, done")
    finally:
        done.set()
        if live:
            print()


@contextmanager
def _proxy(upstream: str, port: int) -> Iterator[Service]:
    command = [sys.executable, "-m", "proxy.cli", "serve", "--upstream", upstream, "--port", str(port)]
    PROXY_LOG.unlink(missing_ok=True)
    with running(command, PROXY_LOG) as process:
        proxy = Service("the proxy", f"http://127.0.0.1:{port}", PROXY_LOG, process)
        proxy.await_ready("/readyz", _PROXY_SECONDS)
        yield proxy


def _stay(*services: Service) -> None:
    """Stay until Ctrl-C, or until one of them has ended.

    Raises:
        ServerUnreachable: it ended by itself.
    """
    try:
        while True:
            time.sleep(1)
            for service in services:
                service.check_alive()
    except KeyboardInterrupt:
        print("\n· stopping", flush=True)


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
