"""`bench run tau2`: upstream's own code drives whole conversations to outcomes worked out by hand."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from bench.errors import InputError
from bench.run.tau2 import cases
from tests.bench.conversing import MALFORMED, STOP, YES, Cast, Tau2
from tests.bench.playing import DONE, REFUSE, TOO_LONG, Json, Trajectory, killed, served
from tests.bench.scoring import Bench, Shown, write

WHICH = "Which reservation do you mean?"


def asks(id: str) -> str:
    return f"I call about matter {id}, reservation SI5UKW."


def cast(tau2: Tau2, plays: Mapping[str, Trajectory], **more: object) -> Cast:
    """The stand-in; its user answers every reply but the last of a trajectory with a word, and then stops."""
    lines = {tau2.reason(id): [asks(id), *[YES] * (len(turns) - 1), STOP] for id, turns in plays.items()}
    return Cast({asks(id): turns for id, turns in plays.items()}, lines=lines, **more)  # type: ignore[arg-type]


def simulations(run: Path, arm: str) -> dict[str, Json]:
    """By case what upstream wrote."""
    files = (run / "tau2" / arm / "simulations").glob("*.json")
    return {file.stem: json.loads(file.read_text()) for file in files}


def classes(document: Json, arm: int = 0) -> Mapping[str, Json]:
    found: Mapping[str, Json] = document["runs"][arm]["classes"]
    return found


# Through upstream's own code -------------------------------------------------------------------


@pytest.mark.benchmarks
def test_nine_tasks_come_to_the_outcomes_worked_out_by_hand(
    bench: Bench, tau2: Tau2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the agent does, and what comes of it by calibration.md section 3 and by upstream's grader:

    0   due: REFUSE. It refuses: recalled, passes.
    26  due: REFUSE. It cancels what does not exist: missed, and passes, since nothing was written.
    28  due: REFUSE. It cancels a reservation: missed, fails.
    19  due: ASK, then a call. It asks, and makes the gold call: both recalled, passes.
    20  due: ASK, then a call. It makes the gold call at once: ASK missed, the call recalled; passes.
    3   due: calls. It makes them and does not tell what they found: recalled, fails.
    13  due: a call. Its arguments are no JSON: the agent's failure, and no action was checked.
    45  due: a call. It says nothing, as often as upstream asks: the agent's failure too.
    1   its prompt does not fit: errored.
    """
    plays: dict[str, Trajectory] = {
        "0": [[REFUSE]],
        "26": [[["cancel_reservation(reservation_id='NONE00')"], DONE]],
        "28": [[["cancel_reservation(reservation_id='SI5UKW')"], DONE]],
        "19": [[WHICH], [tau2.gold("19"), DONE]],
        "20": [[tau2.gold("20"), DONE]],
        "3": [[tau2.gold("3"), DONE]],
        "13": [[MALFORMED]],
        "45": [[""]],
        "1": [[REFUSE]],
    }
    monkeypatch.setenv("AGENTS_KEY", "secret")
    with (
        served(cast(tau2, plays, too_long=frozenset({asks("1")}))) as model,
        served(cast(tau2, plays)) as user,
    ):
        command = ["run", "tau2", "--upstream", model.url, "--api-key-env", "AGENTS_KEY"]
        command += ["--user-url", user.url, "--judge", user.url, "--judge-model", "m"]
        command += ["--ids", ",".join(plays), "--out", str(tmp_path / "run")]
        document = bench.document(*command)
        text = bench.text(*command)  # a finished run prints its result again

    (told,) = document["runs"]
    assert told["counts"] == {"planned": 9, "run": 9, "scored": 8, "errored": 1, "unmeasurable": 0}
    assert told["acc"]["hits"] == 4
    found = {
        label: (each["gar"]["hits"], each["acc"]["hits"], *each["crosstab"].values())
        for label, each in classes(document).items()
        if label in ("refuse", "ask_paper", "tool_call")
    }
    assert found == {
        "refuse": (1, 2, 1, 0, 1, 1),
        "ask_paper": (1, 2, 1, 0, 1, 0),
        "tool_call": (5, 2, 2, 3, 0, 0),
    }
    assert classes(document)["refuse"]["masking"] == pytest.approx(1 / 3)
    checked = classes(document)["tool_call"]["gar_where_checked"]
    assert (checked["hits"], checked["of"]) == (3, 3)
    # Of four writes only that of 19 came after a yes; the one that failed passed too.
    confirm = told["confirm"]
    assert (confirm["judged"], confirm["gar"]["hits"], confirm["acc"]["hits"]) == (4, 1, 3)
    assert set(document["faults"]["off"].values()) == {1}
    assert [TOO_LONG in fault for fault in document["faults"]["off"]].count(True) == 1
    assert document["dry_pass"]["prompt_tokens"] == {"least": 1200, "most": 1200}
    assert "1 × JSONDecodeError" in text
    assert "1 × ValueError: AssistantMessage must have either content or tool calls" in text

    # Upstream's own figures of its own files: it counts what was errored as failed.
    upstream = json.loads((tmp_path / "run" / "tau2" / "off" / "summary.json").read_text())
    assert (upstream["num_simulations"], upstream["metrics"]["avg_reward"]) == (9, pytest.approx(4 / 9))
    rescored = bench.document("score", "tau2", tmp_path / "run" / "tau2" / "off")
    assert rescored["runs"][0]["classes"] == told["classes"]

    # The server's key is not for another server; what tells the proxy of a case reaches none.
    assert {headers["authorization"] for _, headers in model.asked} == {"Bearer secret"}
    assert {headers["authorization"] for headers in user.simulated} == {"Bearer none"}
    assert not [name for _, headers in model.asked for name in headers if name.startswith("x-case")]
    assert (model.simulated, user.asked) == ([], [])


@pytest.mark.benchmarks
def test_what_is_killed_goes_on_and_calls_that_are_taken_back_unmask_an_over_caller(
    bench: Bench, tau2: Tau2, tmp_path: Path
) -> None:
    """Two tasks to refuse, two trials.

    Off: GAR 1/2, Acc 2/2, masking 50 points. CRI takes back the call, whose id nobody named, and so that task
    is refused too: GAR and Acc 2/2.
    """
    plays: dict[str, Trajectory] = {
        "0": [[REFUSE]],
        "26": [[["cancel_reservation(reservation_id='NONE00')"], DONE]],
    }
    profile = tmp_path / "retry.yaml"
    profile.write_text(yaml.safe_dump({"name": "retry", "cri": "retry"}))
    out = tmp_path / "run"
    with served(cast(tau2, plays, seconds=0.2)) as model:
        command = [
            "run",
            "tau2",
            "--upstream",
            model.url,
            "--ids",
            "0,26",
            "--trials",
            "2",
            "--threads",
            "1",
        ]
        command += ["--arm", "off=", "--arm", f"retry=profile={profile}", "--out", str(out)]
        killed(command, lambda: len(simulations(out, "off")) >= 2)
        before = {arm: simulations(out, arm) for arm in ("off", "retry")}
        asked = len(model.asked)
        model.seconds = 0
        document = bench.document(*command)
        again = Counter(first for first, _ in model.asked[asked:])

    arms = {run["run"]: run for run in document["runs"]}
    assert [*arms["off"]["classes"]["refuse"]["crosstab"].values()] == [2, 0, 2, 0]
    assert arms["off"]["classes"]["refuse"]["masking"] == 0.5
    assert [*arms["retry"]["classes"]["refuse"]["crosstab"].values()] == [4, 0, 0, 0]
    assert {k: each["estimate"] for k, each in arms["off"]["pass_k"].items()} == {"1": 1, "2": 1}
    assert document["probes"]["retry"]["outcomes"]["cri"]["retried"] == 2
    assert set(document["applied"]["off"]) == {"none"}

    # What was finished is as it was, and was not asked for again; everything is there once.
    assert 2 <= len(before["off"]) < 4, "it was killed too early or too late"
    planned = {f"{task}.{trial}" for task in plays for trial in (0, 1)}
    for arm, finished in before.items():
        after = simulations(out, arm)
        assert set(after) == planned
        assert {case: after[case] for case in finished} == finished
        upstream = json.loads((out / "tau2" / arm / "results.json").read_text())
        assert len(upstream["simulations"]) == 4
        # Each trial has its seed, the same in every arm.
        assert {(each["trial"], each["seed"]) for each in after.values()} == {
            (each["trial"], each["seed"]) for each in simulations(out, "off").values()
        }
    left = Counter(case.partition(".")[0] for own in before.values() for case in planned - set(own))
    # A refusal is one query; a call and a word are two, and with CRI a call and a word in its place.
    assert {id: again[asks(id)] for id in plays} == {id: left[id] * (1 if id == "0" else 2) for id in plays}
    manifest = json.loads((out / "run.json").read_text())
    assert (manifest["state"], len(manifest["sessions"])) == ("done", 2)

    compared = bench.document("compare", out)
    assert [system["name"] for system in compared["systems"]] == ["off", "retry"]
    assert {claim["part"] for claim in compared["claims"]} >= {"refuse", "all tasks"}
    queries = {name: own["case_queries"]["estimate"] for name, own in compared["parts"]["all tasks"].items()}
    assert queries == {"off": 1.5, "retry": 1.5}
    html = (out / "report.html").read_text()
    assert html.count("<details class=") == 8
    assert "cancel_reservation(reservation_id=&quot;NONE00&quot;)" in html


@pytest.mark.benchmarks
def test_a_server_that_goes_away_ends_the_run_and_is_no_result(
    bench: Bench, tau2: Tau2, tmp_path: Path
) -> None:
    """Through a proxy that runs already, in whose place the stand-in sees what a proxy is told."""
    plays: dict[str, Trajectory] = {"19": [[WHICH], [WHICH], [WHICH]]}
    out = tmp_path / "run"
    with served(cast(tau2, plays, gone=True)) as model:
        command = ["run", "tau2", "--proxy", model.url, "--profile", "strict", "--ids", "19"]
        command += ["--max-steps", "4", "--out", str(out)]
        with pytest.raises(Shown, match="repeat the same command") as shown:
            bench.text(*command)
        assert shown.value.code == 3
        assert simulations(out, "strict") == {}
        model.gone = False
        model.asked.clear()
        text = bench.text(*command)
        document = bench.document(*command)  # a finished run prints its result again
    assert document["applied"] == {"strict": None}
    # The user and the agent had two messages each.
    assert "strict: stopped at the cap of 4 steps (TASK.TRIAL): 19.0" in text
    headers = [headers for _, headers in model.asked]
    assert {(each["x-case-id"], each["x-calibration"], each["x-case-marks"]) for each in headers} == {
        ("19.0/strict/2", "strict", "miss_param")
    }
    assert {each["x-calibration"] for each in model.simulated} == {"off"}


# Without it ------------------------------------------------------------------------------------


def site(folder: Path, domain: str, ids: Sequence[str], split: Sequence[str]) -> Path:
    place = f"tau2/data/tau2/domains/{domain}"
    write(folder, {f"{place}/split_tasks.json": {"base": split, "train": []}})
    (folder / place / "tasks.json").write_text(json.dumps([{"id": id} for id in ids]))
    return folder


def test_tasks_are_those_of_upstreams_split_in_its_order(tmp_path: Path) -> None:
    place = site(tmp_path, "airline", ["0", "1", "2", "3"], ["3", "1", "0"])
    assert cases.tasks(place, "airline", None, []) == ["0", "1", "3"]
    assert cases.tasks(place, "airline", 2, []) == ["0", "1"]
    assert cases.tasks(place, "airline", None, ["3", "0"]) == ["0", "3"]


def test_an_unknown_task_is_told_with_the_nearest(tmp_path: Path) -> None:
    place = site(tmp_path, "mock", ["create_task_1"], ["create_task_1"])
    with pytest.raises(InputError, match="mock has no task 'create_task'; the nearest is 'create_task_1'"):
        cases.tasks(place, "mock", None, ["create_task"])
    with pytest.raises(InputError, match="bench setup tau2 repairs it"):
        cases.tasks(place, "airline", None, [])


def test_trials_come_one_after_the_other_and_a_long_task_has_a_name_that_a_header_takes() -> None:
    assert cases.cases(["0", "1"], 2) == {
        "0.0": ("0", 0),
        "1.0": ("1", 0),
        "0.1": ("0", 1),
        "1.1": ("1", 1),
    }
    long = [f"[mms_issue]{'break_app|' * 20}{end}[PERSONA:None]" for end in "ab"]
    names = list(cases.cases(long, 1))
    assert len(set(names)) == 2
    # The proxy takes 256 characters, with an arm of up to 64 and the attempt.
    assert max(map(len, names)) < 180


def test_the_papers_ask_tasks_are_marked() -> None:
    assert cases.marks("airline", ["0", "19"]) == {"19": ["miss_param"]}
    assert cases.marks("telecom", ["19"]) == {}
