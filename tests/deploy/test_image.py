"""The image: what it installs is small, has no torch, and serves; its file passes hadolint."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError

import pytest

from tests.deploy.files import ROOT, run

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
NOBODY = 65534


def test_the_dockerfile_passes_hadolint() -> None:
    run(ROOT / ".venv/bin/hadolint", ROOT / "Dockerfile")


def test_what_it_copies_is_there_and_not_ignored() -> None:
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M) for name in line.split()
    }
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


def test_it_runs_as_nobody_in_particular() -> None:
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", DOCKERFILE, re.M)


def test_its_health_check_tells_a_proxy_that_serves_from_one_that_does_not(tmp_path: Path) -> None:
    found = re.search(r'^HEALTHCHECK .* CMD \["python", "-c", "(.*)"\]$', DOCKERFILE, re.M)
    assert found is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = found[1].replace(":8080/", f":{port}/")
    assert code != found[1]
    down = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert down.returncode != 0
    process = _serving(Path(sys.executable), port, tmp_path)
    try:
        _until_healthy(process, port)
        run(sys.executable, "-c", code)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def installed() -> Iterator[Path]:
    """A clean environment with what the image installs, in a folder that every user may read."""
    extras = re.search(r"^RUN pip .* install .* '\.(\S*)'$", DOCKERFILE, re.M)
    assert extras is not None
    with TemporaryDirectory(prefix="seam-image-") as folder:
        Path(folder).chmod(0o755)
        python = Path(folder) / "seam/bin/python"
        run(sys.executable, "-m", "venv", "--without-pip", python.parents[1])
        quiet = ("--quiet", "--disable-pip-version-check")
        run(sys.executable, "-m", "pip", *quiet, "--python", python, "install", f"{ROOT}{extras[1]}")
        yield python


@pytest.mark.whole
def test_it_installs_no_torch_and_serves(installed: Path, tmp_path: Path) -> None:
    found = installed.parents[1].glob("lib/*/site-packages/*.dist-info")
    names = {path.name.split("-")[0].lower() for path in found}
    assert {"seam", "uvicorn", "opentelemetry_sdk"} <= names
    assert not names & {"torch", "vllm", "transformers", "numpy", "rich"}
    size = int(run("du", "-sk", installed.parents[1]).split()[0])
    assert size < 200 * 1024, f"{size} KiB"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # As nobody where another user may read the interpreter, which it mayn't in root's home.
    open_to_all = all(path.stat().st_mode & 0o1 for path in Path(os.path.realpath(installed)).parents)
    process = _serving(installed, port, tmp_path, NOBODY if os.geteuid() == 0 and open_to_all else None)
    try:
        _until_healthy(process, port)
    finally:
        process.kill()
        process.wait()


def _serving(python: Path, port: int, folder: Path, user: int | None = None) -> subprocess.Popen[bytes]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SEAM_")}
    where = {"SEAM_DECISIONS__SINK": "off", "SEAM_DRIFT__REFERENCE": "off"}
    command = [
        str(python),
        "-m",
        "proxy.cli",
        "serve",
        "--upstream",
        "http://127.0.0.1:9",
        "--port",
        str(port),
    ]
    return subprocess.Popen(
        command, cwd="/" if user else folder, env={**kept, **where}, user=user, stderr=subprocess.DEVNULL
    )


def _until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + 60
    while True:
        assert process.poll() is None, "it has ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                assert answer.read() == b'{"status":"ok"}'
                return
        except (URLError, OSError):
            assert time.monotonic() < end, "it does not serve"
            time.sleep(0.1)
