"""`bench drift` on decision logs that were made for it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from bench.drift.simulate import USUAL, Traffic, looks
from calibrators.drift import Seen
from tests.bench.scoring import Bench, Json, Shown

START = datetime(2026, 9, 1, tzinfo=UTC)
BIASED = "bias=-1.5/processor"


def record(seen: Seen, second: int, **fields: object) -> Json:
    """A record of the decision log, as far as drift reads one."""
    kind, _, turn = seen.kind.partition(", turn ")
    return {
        "schema": 1,
        "time": (START + timedelta(seconds=second)).isoformat(timespec="milliseconds"),
        "case_id": f"case-{seen.case}",
        "turn": int(turn.rstrip("+").split("-")[0]),
        "model": "lab",
        "profile": "strict",
        "tools": 3 if kind == "tools" else 0,
        "status": 200,
        "outcome": "ok",
        "applied": BIASED,
        "margin": seen.margin,
        "action": None if seen.action == "none" else seen.action,
        **fields,
    }


def traffic(kind: Traffic, count: int, seed: int, **fields: object) -> list[Json]:
    seen = islice(kind.replies(Random(seed), first=seed * 100_000), count)
    return [record(each, number, **fields) for number, each in enumerate(seen)]


def later(records: Iterable[Json], seconds: int) -> list[Json]:
    shift = timedelta(seconds=seconds)
    return [{**r, "time": (datetime.fromisoformat(r["time"]) + shift).isoformat()} for r in records]


def log(folder: Path, records: Sequence[Json], name: str = "decisions.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    return file


def moved(folder: Path, kind: Traffic, **fields: object) -> Path:
    """A log of 1,500 replies of the usual traffic, and as many of this one."""
    return log(folder, traffic(USUAL, 1500, 1) + later(traffic(kind, 1500, 2, **fields), 1500))


def one(result: Json) -> Json:
    (group,) = result["groups"]
    assert isinstance(group, dict)
    return group


# What is said ----------------------------------------------------------------------------------


def test_traffic_that_stays_as_it_was_is_steady(bench: Bench, tmp_path: Path) -> None:
    file = moved(tmp_path, USUAL)
    group = one(bench.document("drift", file))
    assert (group["model"], group["profile"]) == ("lab", "strict")
    assert (group["classes"]["verdict"], group["margins"]["verdict"]) == ("steady", "steady")
    assert group["classes"]["mix_share"] is None
    assert "lab / strict: steady" in bench.text("drift", file, "--check")


def test_lower_margins_are_laid_to_the_model_and_its_mean_shift_is_told(bench: Bench, tmp_path: Path) -> None:
    group = one(bench.document("drift", moved(tmp_path, replace(USUAL, margin=-1.2))))
    assert group["margins"]["verdict"] == "model"
    shift = group["margins"]["shift"]
    assert shift["change"]["low"] < -2 < shift["change"]["high"]
    call = group["classes"]["changes"]["tool_call"]
    assert call["change"]["high"] < -0.1
    assert call["change"]["estimate"] == pytest.approx(
        call["by_mix"]["estimate"] + call["same_mix"]["estimate"]
    )
    assert call["change"]["estimate"] == pytest.approx(call["after"] - call["before"])
    assert "the model, its template or its prompts" in bench.text("drift", tmp_path / "decisions.jsonl")


def test_a_mix_that_moves_alone_is_laid_to_the_traffic(bench: Bench, tmp_path: Path) -> None:
    file = moved(tmp_path, replace(USUAL, tools=0.4))
    group = one(bench.document("drift", file))
    assert group["classes"]["verdict"] == "traffic"
    assert group["classes"]["mix_share"] == pytest.approx(1, abs=0.25)
    call = group["classes"]["changes"]["tool_call"]
    assert call["by_mix"]["high"] < 0
    assert call["same_mix"]["low"] < 0 < call["same_mix"]["high"]
    assert group["kinds"]["no tools, turn 1"]["current"] > 2 * group["kinds"]["no tools, turn 1"]["reference"]
    assert "at the same mix of traffic nothing is left" in bench.text("drift", file)


def test_classes_that_move_with_what_seam_does_are_laid_to_seam_first(bench: Bench, tmp_path: Path) -> None:
    refusing = replace(USUAL, others=(0.25, 0.40, 0.20, 0.10, 0.05))
    file = moved(tmp_path, refusing, applied="none; reason=tool_choice is none")
    group = one(bench.document("drift", file))
    assert group["seam"]["moved"] == 1
    assert group["seam"]["applied"][BIASED] == {"reference": 1500, "current": 0}
    assert "look at Seam first" in bench.text("drift", file)
    same = moved(tmp_path, refusing)
    assert "margins did not, and Seam does as before" in bench.text("drift", same)


def test_steps_show_when_it_moved(bench: Bench, tmp_path: Path) -> None:
    records = traffic(USUAL, 3000, 1) + later(traffic(replace(USUAL, margin=-3), 1500, 2), 3000)
    group = one(bench.document("drift", log(tmp_path, records), "--window", "2026-09-01T00:25:00.."))
    verdicts = [step["margins"]["verdict"] for step in group["steps"]]
    assert verdicts == sorted(verdicts, key=["steady", "model"].index)
    first = datetime.fromisoformat(group["steps"][verdicts.index("model")]["to"])
    assert START + timedelta(seconds=3000) < first < START + timedelta(seconds=3700)


def test_models_and_profiles_are_compared_apart(bench: Bench, tmp_path: Path) -> None:
    other = [{**each, "profile": "off", "applied": "none; reason=off"} for each in traffic(USUAL, 600, 3)]
    result = bench.document("drift", log(tmp_path, traffic(USUAL, 1500, 1) + other))
    assert [
        (g["profile"], g["reference"]["replies"] + g["current"]["replies"]) for g in result["groups"]
    ] == [
        ("strict", 1500),
        ("off", 600),
    ]


def test_below_the_minimum_there_is_no_number_and_no_alarm(bench: Bench, tmp_path: Path) -> None:
    records = traffic(USUAL, 150, 1) + later(traffic(replace(USUAL, margin=-3), 150, 2), 150)
    file = log(tmp_path, records)
    group = one(bench.document("drift", file, "--check"))
    assert group["classes"]["verdict"] == "too few"
    assert group["classes"]["psi"] is None
    assert "too few replies" in bench.text("drift", file)


# What is read ----------------------------------------------------------------------------------


def test_only_good_replies_count(bench: Bench, tmp_path: Path) -> None:
    records = traffic(USUAL, 1000, 1)
    bad = [{**records[0], "outcome": "upstream_error", "status": 500, "action": None}] * 500
    bad += [{**records[0], "outcome": "ok", "status": 400, "action": None}] * 500
    group = one(bench.document("drift", log(tmp_path, records + bad)))
    assert group["reference"]["replies"] + group["current"]["replies"] == 1000


def test_parts_of_a_rotated_log_are_one_log_in_the_order_of_time(bench: Bench, tmp_path: Path) -> None:
    records = traffic(USUAL, 1000, 1)
    whole = bench.document("drift", log(tmp_path, records))
    newer, older = log(tmp_path, records[400:]), log(tmp_path, records[:400], "decisions.jsonl.1")
    assert bench.document("drift", newer, older)["groups"] == whole["groups"]


def test_another_log_may_be_the_reference(bench: Bench, tmp_path: Path) -> None:
    before = log(tmp_path, traffic(USUAL, 1500, 1), "before.jsonl")
    after = log(tmp_path, traffic(replace(USUAL, margin=-3), 1200, 2), "after.jsonl")
    group = one(bench.document("drift", after, "--against", before))
    assert (group["reference"]["replies"], group["current"]["replies"]) == (1500, 1200)
    assert group["margins"]["verdict"] == "model"


@pytest.mark.parametrize(
    ("options", "reference", "current"),
    [
        (["--reference", "..2026-09-01T00:10", "--window", "2026-09-01T00:20.."], 600, 300),
        (["--window", "2026-09-01T00:20..2026-09-01T00:21"], 1200, 60),
        (["--reference", "2026-09-01T02:10+02:00..2026-09-01T02:15+02:00"], 300, 600),
    ],
)
def test_windows_are_named_by_time(
    bench: Bench, tmp_path: Path, options: list[str], reference: int, current: int
) -> None:
    group = one(bench.document("drift", log(tmp_path, traffic(USUAL, 1500, 1)), *options))
    assert (group["reference"]["replies"], group["current"]["replies"]) == (reference, current)


@pytest.mark.whole
def test_the_same_log_gives_the_same_figures_again(bench: Bench, tmp_path: Path) -> None:
    file = moved(tmp_path, USUAL)
    assert bench.document("drift", file) == bench.document("drift", file)
    assert bench.document("drift", file, "--seed", "1") != bench.document("drift", file)


# Mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--window", "yesterday"], "'yesterday' is no FROM..TO; write 2026-09-01.."),
        (["--window", "1.9.2026..2.9.2026"], "Invalid isoformat string: '1.9.2026'"),
        (["--window", "2030-01-01.."], "the window holds no reply; give other times"),
        (["--reference", "..2026-09-02", "--window", "2026-09-01.."], "the two windows overlap; end the"),
        (["--against", "no.jsonl"], "no.jsonl: cannot be read (No such file or directory); give"),
        (["--against", "no.jsonl", "--window", "2026-09-01.."], "--against names the reference already"),
    ],
)
def test_a_mistake_in_the_options_is_one_line(
    bench: Bench, tmp_path: Path, options: list[str], line: str
) -> None:
    with pytest.raises(Shown) as shown:
        bench.text("drift", log(tmp_path, traffic(USUAL, 100, 1)), *options)
    assert shown.value.code == 2
    assert line in shown.value.line
    assert shown.value.line.count("\n") == 1


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"action": "shout"},
            "record 3: action 'shout' is no action class; give a decision log of seam serve",
        ),
        ({"time": "noon"}, "record 3: Invalid isoformat string: 'noon'"),
        ({"turn": None}, "record 3: "),
        ({"margin": "low"}, "record 3: could not convert string to float: 'low'"),
    ],
)
def test_a_line_that_is_no_record_is_named(bench: Bench, tmp_path: Path, fields: Json, line: str) -> None:
    records = traffic(USUAL, 3, 1)
    records[2] |= fields
    with pytest.raises(Shown) as shown:
        bench.text("drift", log(tmp_path, records))
    assert shown.value.code == 2
    assert line in shown.value.line
    assert shown.value.line.count("\n") == 1


def test_a_record_without_a_member_is_named(bench: Bench, tmp_path: Path) -> None:
    records = traffic(USUAL, 3, 1)
    del records[1]["case_id"]
    with pytest.raises(Shown, match="record 2: has no case_id"):
        bench.text("drift", log(tmp_path, records))
    with pytest.raises(Shown, match="record 1: has no outcome"):
        bench.text("drift", log(tmp_path, [{"text": "Hello."}]))


def test_check_exits_1_and_names_what_moved(bench: Bench, tmp_path: Path) -> None:
    file = moved(tmp_path, replace(USUAL, margin=-3))
    with pytest.raises(Shown) as shown:
        bench.text("drift", file, "--check")
    assert shown.value.code == 1
    assert "moved: lab / strict; see " in shown.value.line


# The page and the simulation -------------------------------------------------------------------


def test_the_report_has_a_chart_of_each_kind_and_can_be_made_again(bench: Bench, tmp_path: Path) -> None:
    bench.document("drift", moved(tmp_path, replace(USUAL, margin=-3)))
    folder = bench.run
    html = (folder / "report.html").read_text("utf-8")
    assert {file.name for file in (folder / "charts").glob("*.svg")} == {
        "g1-classes.svg",
        "g1-margins.svg",
        "g1-steps.svg",
    }
    assert "moved at the same traffic" in html
    assert "Changes, with 95 % intervals by conversation" in html
    again = tmp_path / "again"
    bench.text("report", folder, "--out", again)
    assert (again / "report.html").read_text("utf-8") == html


def test_labels_of_a_log_are_text_in_the_report(bench: Bench, tmp_path: Path) -> None:
    bench.text("drift", log(tmp_path, traffic(USUAL, 600, 1, model="<b>lab", applied="<i>x")))
    html = (bench.run / "report.html").read_text("utf-8").partition("<script")[0]  # there it is JSON
    assert "<b>lab" not in html
    assert "<i>x" not in html
    assert "&lt;b&gt;lab / strict" in html


def test_a_simulated_shift_is_seen_and_a_mix_is_not_taken_for_the_model() -> None:
    lower = list(looks(replace(USUAL, margin=-1.2), 1000, 2, Random(1)))
    assert lower[-1].margins.verdict == "model"
    mix = list(looks(replace(USUAL, tools=0.4), 1000, 2, Random(1)))
    assert mix[-1].classes.verdict == "traffic"
    assert {look.classes.verdict for look in mix} <= {"steady", "traffic"}
