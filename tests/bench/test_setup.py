"""`bench setup`: benchmarks' own environments, pinned and mended."""

import re
from pathlib import Path

import pytest

from bench import environments
from bench.benchmarks import BENCHMARKS, Benchmark
from bench.errors import InputError
from tests.bench.scoring import Bench, Shown


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The names of the environments that are made, which are only marked as made."""
    names: list[str] = []

    def run(command: list[str]) -> None:
        if "install" in command:
            names.append(Path(command[0]).parents[1].name)
        else:
            Path(command[-1]).mkdir(exist_ok=True)

    monkeypatch.setattr(environments, "place", lambda name: tmp_path / name)
    monkeypatch.setattr(environments, "_run", run)
    return names


def faults(monkeypatch: pytest.MonkeyPatch, *found: str | None) -> None:
    left = list(found)
    monkeypatch.setattr(Benchmark, "fault", lambda self: left.pop(0))


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=BENCHMARKS)
def test_every_package_is_pinned_and_nothing_else_is_installed(benchmark: Benchmark) -> None:
    options, *packages = benchmark.requirements
    assert options == "--no-deps"
    assert benchmark.package in packages
    assert [line for line in packages if not re.fullmatch(r"[\w.-]+==[\w.!+]+", line)] == []
    names = [re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in packages]
    assert len(names) == len(set(names))


def test_an_environment_that_works_is_left_alone(
    bench: Bench, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults(monkeypatch, None, None)
    assert "bfcl-eval==2026.3.23 is ready in" in bench.text("setup", "bfcl")
    assert bench.document("setup", "bfcl")["package"] == "bfcl-eval==2026.3.23"
    assert made == ["bfcl"]


def test_a_damaged_environment_is_made_anew(
    bench: Bench, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults(monkeypatch, None, "ModuleNotFoundError: No module named 'tau2'", None)
    bench.text("setup", "tau2")
    bench.text("setup", "tau2")
    assert made == ["tau2", "tau2"]


@pytest.mark.usefixtures("made")
def test_one_that_does_not_work_anew_either_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    faults(monkeypatch, "ImportError: glibc", "ImportError: glibc")
    with pytest.raises(Shown, match="ImportError: glibc; this Python cannot run it") as shown:
        bench.text("setup", "bfcl")
    assert shown.value.code == 2


@pytest.mark.usefixtures("made")
def test_a_python_too_new_for_its_packages_is_told_which_one_to_bring() -> None:
    old = BENCHMARKS["bfcl"]._replace(newest_python=(3, 10))
    with pytest.raises(InputError, match=r"has no builds for Python 3\.\d+; put Python 3"):
        old.ready()
