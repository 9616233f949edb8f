"""Fixtures of several bench tests."""

import signal
from pathlib import Path

import pytest

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
