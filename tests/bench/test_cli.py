"""The command line as a person and a script meet it: help, exit codes, one line an error, JSON alone."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bench import cli
from bench.errors import BenchError, CheckFailed, InputError, ServerUnreachable
from bench.group import LazyGroup, Subcommand
from bench.options import Shared, shared_options
from bench.progress import progress
from bench.runs import Git, Manifest, Plan, Session

BENCH = str(Path(sys.executable).with_name("bench"))
DOCS = Path(__file__).parents[2] / "docs" / "bench.md"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BENCH, *arguments], capture_output=True, text=True, check=False)


@click.command()
@click.option("--fail", type=click.Choice(["check", "input", "server", "interrupt"]))
@shared_options(limit="At most so many greetings.")
def greet(*, shared: Shared, fail: str | None) -> None:
    """Greet."""
    if fail == "check":
        raise CheckFailed("2 of 3 bars are met", where="greet", mend="see the table")
    if fail == "input":
        raise InputError("is no\nJSON", where="cases.jsonl line 3", mend="mend the line")
    if fail == "server":
        raise ServerUnreachable("connection refused", where="http://127.0.0.1:9", mend="start the server")
    if fail == "interrupt":
        raise KeyboardInterrupt
    with progress("greetings", 2) as advance:
        advance()
        advance(note="last")
    shared.show({"seed": shared.seed, "limit": shared.limit, "out": str(shared.out)}, lambda: "hello")


@pytest.fixture
def greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `bench greet` that fails as told, and the signal handler put back."""
    monkeypatch.setattr(cli.bench, "subcommands", {"greet": Subcommand(f"{__name__}:greet", "Greet.")})
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def commands(group: click.Command = cli.bench) -> Iterator[tuple[str, Subcommand, click.Command]]:
    """Every command by name, with its entry in the table: those of groups within groups too."""
    assert isinstance(group, LazyGroup)
    for name, entry in group.subcommands.items():
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield name, entry, command
        if isinstance(command, click.Group):
            yield from commands(command)


def code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit:
        cli.main(arguments)
    assert isinstance(exit.value.code, int)
    return exit.value.code


def test_help_lists_the_commands_without_importing_them() -> None:
    script = (
        "import sys\nfrom bench.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as exit: assert exit.code == 0\n"
        "heavy = {'numpy', 'pydantic', 'httpx', 'rich', 'fastapi', 'bench.overhead'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert re.search(r"overhead +Measure the proxy's own cost", shown)
    assert shown.endswith("[]\n")


def test_every_listed_command_exists_under_its_name() -> None:
    for name, entry, command in commands():
        assert command.name == name
        assert entry.summary.endswith(".")


def test_every_command_takes_the_shared_options() -> None:
    for name, _, command in commands():
        options = {option for parameter in command.params for option in parameter.opts}
        assert isinstance(command, click.Group) or options >= {"--json", "--seed", "--limit", "--out"}, name


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["overhed"], "bench: No such command 'overhed'; the nearest is 'overhead'; see bench --help"),
        (["overhead", "--round", "3"], "bench overhead: No such option '--round'"),
        (
            ["overhead", "--targets", "envoy"],
            "'envoy' is none of direct, nginx, bare, litellm",
        ),
        (["overhead", "--concurrency", "1,x"], "'1,x' is no list of whole numbers"),
        (["overhead", "--seconds", "0"], "0.0 is not in the range"),
    ],
)
def test_a_usage_mistake_is_one_line_and_2(arguments: list[str], line: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_command_at_all_shows_the_help_and_is_2() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Commands:" in done.stderr


@pytest.mark.usefixtures("greeting")
@pytest.mark.parametrize(
    ("fail", "code", "line"),
    [
        ("check", 1, "bench: greet: 2 of 3 bars are met; see the table\n"),
        ("input", 2, "bench: cases.jsonl line 3: is no JSON; mend the line\n"),
        ("server", 3, "bench: http://127.0.0.1:9: connection refused; start the server\n"),
        ("interrupt", 130, "bench: interrupted; the same command with the same --out goes on\n"),
    ],
)
def test_what_ends_a_command_has_its_code_and_one_line(
    capsys: pytest.CaptureFixture[str], fail: str, code: int, line: str
) -> None:
    assert code_of("greet", "--json", "--fail", fail) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.lstrip("\n") == line


@pytest.mark.usefixtures("greeting")
def test_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("greet", "--json", "--seed", "7", "--limit", "3", "--out", "runs/a") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"seed": 7, "limit": 3, "out": "runs/a"}
    assert printed.err == "greetings 1/2\ngreetings 2/2 last\n"


@pytest.mark.usefixtures("greeting")
def test_without_json_the_text_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("greet") == 0
    assert capsys.readouterr().out == "hello\n"


def test_a_value_that_json_lacks_is_a_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Shared(True, 0, None, None).show({"rate": float("nan")}, str)


def test_the_run_folder_is_as_given_or_named_by_command_and_time() -> None:
    assert Shared(False, 0, None, Path("a")).folder("entry") == Path("a")
    assert Shared(False, 0, None, None).folder("entry").match("runs/entry-????????-??????")


def test_the_docs_name_every_exit_code_option_and_field() -> None:
    text = DOCS.read_text()
    errors = BenchError.__subclasses__()
    assert {error.exit_code for error in errors} == {1, 2, 3}
    for error in errors:
        assert f"| {error.exit_code} |" in text
    for model in (Manifest, Plan, Session, Git):
        for field in model.model_fields:
            assert f"{field}`" in text, f"{model.__name__}.{field}"
    for option in ("--json", "--seed", "--limit", "--out"):
        assert f"`{option}" in text


def test_away_from_a_terminal_lines_tell_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(float(seconds) for seconds in range(0, 10_000, 20))
    monkeypatch.setattr("bench.progress.time.monotonic", lambda: next(clock))
    with progress("margins", 20, 10) as advance:
        for _ in range(10):
            advance(note="8 at once")
    assert capsys.readouterr().err.splitlines() == [
        "margins 12/20, 80 s left 8 at once",
        "margins 14/20, 60 s left 8 at once",
        "margins 16/20, 40 s left 8 at once",
        "margins 18/20, 20 s left 8 at once",
        "margins 20/20 8 at once",
    ]
