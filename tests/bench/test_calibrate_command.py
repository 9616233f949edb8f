"""`bench calibrate` from end to end, in front of a scripted vLLM, with a real proxy in between."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.calibrate.asking import TRIES, asking
from bench.calibrate.pace import Pace
from bench.cli import main
from bench.errors import ServerUnreachable
from bench.seam import proxy
from proxy.profiles import read_profiles
from tests.bench.deciding import Deciding, rows, running

pytestmark = pytest.mark.whole

COUNT = 96
"""Just enough to be chosen on, and too few for a bootstrap, which would take most of a test's time."""


class Served(NamedTuple):
    url: str
    model: Deciding


@pytest.fixture
def served() -> Iterator[Served]:
    model = Deciding()
    with running(model) as url:
        yield Served(url, model)


@pytest.fixture
def decisions(tmp_path: Path) -> Path:
    return written(tmp_path, rows(COUNT))


def written(folder: Path, lines: Any) -> Path:
    path = folder / "decisions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def result_of(folder: Path) -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads((folder / "result.json").read_text())
    return document


def test_one_command_gives_a_profile_a_page_and_the_figures(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, decisions = tmp_path / "run", written(tmp_path, rows(240))
    arguments = ("--upstream", served.url, "--requests", decisions, "--out", out, "--rerun", "--json")
    assert run(*arguments, "--arm", 'everywhere={"scope": "everywhere"}') == 0
    result = json.loads(capsys.readouterr().out)
    assert result == result_of(out)

    bias = result["choice"]["bias"]
    (profile,) = read_profiles(out / "profile").values()
    assert (profile.name, profile.model, profile.fingerprint) == ("calibrated", "m", result["fingerprint"])
    assert profile.bias is not None
    assert profile.bias.value == bias < 0
    assert profile.provenance["test"]["chosen"]["over_calling"]["method"] == "wilson"
    assert profile.reference is not None, "drift compares with it on request"
    assert profile.reference.n == result["counts"]["test"]["scored"] == profile.reference.value.margins.n

    # Whole replies decide as the first token does, since this model says nothing before a call.
    arms = result["generation"]["arms"]
    assert set(arms) == {"off", f"b = {bias:g}", f"b = {bias:g}, everywhere"}
    for name in ("over_calling", "call_recall"):
        assert arms["off"][name]["estimate"] == result["test"]["off"][name]["estimate"]
        assert arms[f"b = {bias:g}"][name]["estimate"] == result["test"]["chosen"][name]["estimate"]
    assert arms["off"]["valid_calls"]["estimate"] == arms["off"]["right_tool"]["estimate"] == 1
    assert result["generation"]["noise_floor"]["decision"]["estimate"] == 0
    assert [point["agrees"] for point in result["rerun"]] == [True] * 5

    page = (out / "report.html").read_text()
    assert page.count("<svg") == 6
    assert not re.search(r"""(src|href)=["']|@import|url\(""", page)  # no network
    names = {"curve-validation", "curve-test", "roc", "margins", "reliability", "rerun"}
    assert {chart.stem for chart in (out / "charts").glob("*.png")} == names
    assert {chart.stem for chart in (out / "charts").glob("*.svg")} == names


def test_each_decision_is_asked_once_and_its_row_has_request_label_and_reading(
    served: Served, decisions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert run("--upstream", served.url, "--requests", decisions, "--out", out, "--no-generate") == 0
    assert len(served.model.asked) == COUNT
    assert all(body["max_tokens"] == 1 and body["logprob_token_ids"] for body in served.model.asked)
    examples = [json.loads(line) for line in (out / "examples.jsonl").read_text().splitlines()]
    for row, given in zip(examples, rows(COUNT), strict=True):
        assert row["messages"] == given["messages"]
        assert row["should_call"] == given["should_call"]
        assert row["split"] in ("validation", "test")
        shown = re.search(r"\[m (\S+) g (\S+)\]", given["messages"][0]["content"])
        assert shown is not None
        assert (row["margin"], row["gap"]) == pytest.approx((float(shown[1]), float(shown[2])), abs=1e-6)


def test_the_rows_of_a_run_are_decisions_for_the_next(
    served: Served, decisions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    arguments = ("--upstream", served.url, "--no-generate")
    assert run(*arguments, "--requests", decisions, "--out", first) == 0
    assert run(*arguments, "--requests", first / "examples.jsonl", "--out", second) == 0
    assert "are not part of the request: gap (96), margin (96), probability (96)" in capsys.readouterr().err
    for name in ("choice", "validation", "test"):
        assert result_of(first)[name] == result_of(second)[name]


def test_a_run_that_was_cut_goes_on_where_it_stopped(served: Served, decisions: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ("--upstream", served.url, "--requests", decisions, "--out", out, "--no-generate")
    assert run(*arguments) == 0
    whole = result_of(out)
    kept = (out / "margins.jsonl").read_text().splitlines(keepends=True)[:40]
    (out / "margins.jsonl").write_text("".join(kept) + '{"key": "q1')
    served.model.asked.clear()
    assert run(*arguments) == 0
    assert len(served.model.asked) == COUNT - 40
    assert result_of(out) == whole


def test_other_data_in_the_same_folder_are_refused(
    served: Served, decisions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "--upstream",
        served.url,
        "--requests",
        decisions,
        "--out",
        tmp_path / "run",
        "--no-generate",
    )
    assert run(*arguments) == 0
    written(tmp_path, rows(COUNT, seed=1))
    assert run(*arguments) == 2
    assert "sha256 was" in capsys.readouterr().err


def test_test_is_looked_at_once_unless_a_second_look_is_asked_for_and_marked(
    served: Served, decisions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ("--upstream", served.url, "--requests", decisions, "--out", out, "--no-generate")
    assert run(*arguments) == 0
    assert not result_of(out)["exploratory"]
    served.model.asked.clear()
    other = (*arguments, "--objective", "over-calling:0.05")
    assert run(*other) == 2
    assert "the test split has been looked at for risk:1 (greedy)" in capsys.readouterr().err
    assert run(*other, "--look-again") == 0
    assert result_of(out)["exploratory"]
    assert "Exploratory: the test split had been looked at" in (out / "report.html").read_text()
    assert not served.model.asked  # margins serve every objective
    assert run(*arguments) == 0  # the first look, again
    assert not result_of(out)["exploratory"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--objective", "recall:0.9"), 2, "'recall:0.9' is none of risk:RHO"),
        (("--fields", "[1]"), 2, "'[1]' is no JSON object"),
        (("--arm", "sri"), 2, "'sri' is no NAME=JSON object"),
        (("--requests", "missing.jsonl"), 2, "missing.jsonl: cannot be read"),
        (("--limit", "30"), 1, "too few examples"),
        (("--arm", 'odd={"odd": 1}'), 1, "arm b = "),
        (("--model", "other"), 2, "the server has no model 'other'"),
        (("--name", "a b"), 2, "name: string should match pattern"),
    ],
)
def test_what_can_t_be_done_is_one_line_with_its_reason(
    served: Served,
    decisions: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    common = ("--upstream", served.url, "--requests", decisions, "--out", tmp_path / "run")
    assert run(*common, *arguments) == code
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("bench")
    assert told in last


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--apply", "processor"), "the server has not loaded Seam's logits processor"),
        (("--scope", "everywhere"), "resample acts at the decision only"),
    ],
)
def test_what_the_server_can_t_apply_is_told_before_anything_is_measured(
    decisions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    model = Deciding(processor=False)
    with running(model) as url:
        common = ("--upstream", url, "--requests", decisions, "--out", tmp_path / "run")
        assert run(*common, *arguments) == 2
    assert told in capsys.readouterr().err
    assert not model.asked


def test_without_the_processor_no_bias_above_0_is_chosen(decisions: Path, tmp_path: Path) -> None:
    shy = [
        {**row, "messages": [{"role": "user", "content": _shifted(row["messages"][0]["content"], -3)}]}
        for row in rows(COUNT)
    ]
    chosen = []
    for processor in (True, False):
        out = tmp_path / str(processor)
        with running(Deciding(processor=processor)) as url:
            path = written(tmp_path, shy)
            assert run("--upstream", url, "--requests", path, "--out", out, "--no-generate") == 0
        chosen.append(result_of(out)["choice"]["bias"])
    assert chosen[0] > 0 >= chosen[1]


def _shifted(question: str, nats: float) -> str:
    return re.sub(
        r"([mg]) (\S+?)(?=[ \]])", lambda found: f"{found[1]} {float(found[2]) + nats:.6f}", question
    )


def test_an_example_that_the_server_refuses_is_errored_and_stops_nothing(
    served: Served, tmp_path: Path
) -> None:
    lines = [dict(row) for row in rows(COUNT)]
    for line in lines:
        if line["id"] in ("q0", "q1"):
            words = line["messages"][0]["content"]
            line |= {"messages": [{"role": "user", "content": f"too long {words}"}], "split": "test"}
    path, out = written(tmp_path, lines), tmp_path / "run"
    arguments = ("--upstream", served.url, "--requests", path, "--out", out)
    assert run(*arguments) == 0
    for arm in result_of(out)["generation"]["arms"].values():
        assert arm["counts"]["errored"] == 2
        assert arm["counts"]["run"] == arm["counts"]["planned"] == arm["counts"]["scored"] + 2
    assert run(*arguments) == 0


def test_a_bias_that_does_not_act_as_the_curve_says_exits_1(
    decisions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(Deciding(deaf=True)) as url:
        common = ("--upstream", url, "--requests", decisions, "--out", tmp_path / "run")
        assert run(*common, "--no-generate", "--rerun") == 1
    printed = capsys.readouterr()
    assert "curve against the server: 0 of 5 biases agree" in printed.out
    assert "the curve does not hold at b = " in printed.err


def test_a_proxy_that_runs_already_needs_no_profile_of_ours(
    served: Served, decisions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    (tmp_path / "profiles").mkdir()
    with proxy(tmp_path / "proxy", tmp_path / "profiles", served.url, None) as url:
        arguments = ("--upstream", served.url, "--requests", decisions, "--out", out)
        assert run(*arguments, "--proxy", url) == 0
    result = result_of(out)
    arm = result["generation"]["arms"][f"b = {result['choice']['bias']:g}"]
    assert arm["over_calling"]["estimate"] == result["test"]["chosen"]["over_calling"]["estimate"]


def test_a_server_that_is_gone_exits_3_and_leaves_nothing(decisions: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("--upstream", "http://127.0.0.1:9", "--requests", decisions, "--out", out) == 3
    assert not out.exists()


def test_a_log_is_labelled_once_and_its_margins_are_taken_as_they_stand(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "run"
    with log.open("w") as file:
        for number in range(160):
            margin = (2.0 if number % 2 else -1.0) + number / 100
            record = {"request_id": f"r{number}", "choice": 0, "case_id": f"c{number}", "tools": 1}
            record |= {"tool_choice": "auto", "action": "other", "entry_probability": 0.5}
            record |= {"margin": margin, "gap": margin + 0.3, "text": "due" if number % 2 else "not due"}
            file.write(json.dumps(record) + "\n")
    asked: list[str] = []

    def reader(*_: Any, **__: Any) -> str:
        """Labels as the text says that is shown, and has enough of it once."""
        asked.append(capsys.readouterr().err.splitlines()[-1])
        if len(asked) == 61:
            return "q"
        return "c" if asked[-1] == "says  due" else "r"

    monkeypatch.setattr("bench.decisions.log.click.prompt", reader)
    arguments = ("--upstream", served.url, "--from-log", log, "--labels", "150", "--out", out)
    assert run(*arguments) == 1  # 60 labels are too few
    log.write_text(log.read_text() + log.read_text().splitlines()[0] + "\n")  # logs grow
    assert run(*arguments) == 0
    assert len(asked) == 61 + 90
    assert not served.model.asked
    result = result_of(out)
    assert result["counts"]["validation"]["scored"] + result["counts"]["test"]["scored"] == 150
    assert result["generation"] is None
    assert "without requests" in result["generation_reason"]


# Asking many things at once ---------------------------------------------------------------------------------


async def test_a_busy_server_is_asked_again_more_slowly(tmp_path: Path) -> None:
    model, pauses = Deciding(busy=3), []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    body = json.dumps(dict(rows(1)[0]))
    with running(model) as url:
        async with asking(url, None, 8, pause) as server:
            before = server.pace.limit
            answer = await server.chat(body)
            assert (answer.status, answer.retries) == (200, 3)
            assert server.pace.limit < before
            assert pauses == [0.5, 1.0, 2.0]
            model.busy = TRIES
            with pytest.raises(ServerUnreachable, match="429 too many requests, 6 times"):
                await server.chat(body)


async def test_never_more_are_in_flight_than_the_pace_allows() -> None:
    pace = Pace(3)
    for _ in range(50):
        pace.answered()
    assert pace.limit == 3
    pace.pushed_back()
    pace.pushed_back()
    assert pace.limit == 1
    async with pace.turn():
        entered = False

        async def second() -> None:
            nonlocal entered
            async with pace.turn():
                entered = True

        task = asyncio.create_task(second())
        await asyncio.sleep(0)
        assert not entered
    await task
    assert entered
