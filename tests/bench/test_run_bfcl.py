"""`bench run bfcl`: upstream's own code drives whole cases to outcomes worked out by hand."""

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from bench.errors import CheckFailed, InputError
from bench.run import power
from bench.run.arms import Asked, asked, probe_grid
from bench.run.bfcl import cases
from bench.run.bfcl.results import heal
from bench.run.dry import DryPass
from bench.run.rounds import DRY, rounds
from tests.bench.playing import ASK, DONE, REFUSE, TOO_LONG, Bfcl, Json, Model, Trajectory, killed, served
from tests.bench.scoring import Bench, Shown, write

FOUR = [f"multi_turn_miss_func_{n}" for n in range(4)]


def results(run: Path, arm: str) -> list[Json]:
    files = (run / "bfcl" / "result" / arm).rglob("*_result.json")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def by_category(document: Json, model: int = 0) -> dict[str, Json]:
    return {each["category"]: each for each in document["models"][model]["categories"]}


# Through upstream's own code -------------------------------------------------------------------


@pytest.mark.benchmarks
def test_a_replay_of_the_ground_truth_passes_upstreams_graders(bench: Bench, bfcl: Bfcl) -> None:
    answers: dict[str, Trajectory] = {
        "multi_turn_base_0": bfcl.gold("multi_turn_base_0"),
        "multi_turn_long_context_1": bfcl.gold("multi_turn_long_context_1"),
        "multi_turn_miss_func_2": bfcl.gold("multi_turn_miss_func_2", at_empty_turn=REFUSE),
        "multi_turn_miss_param_3": bfcl.gold("multi_turn_miss_param_3", at_empty_turn=ASK),
        "simple_python_0": bfcl.single("simple_python_0"),
        "irrelevance_0": [["The area is 25."]],
    }
    too_long = "multi_turn_base_5"
    plays = {bfcl.first(id): trajectory for id, trajectory in answers.items()}
    with served(Model(plays, too_long=frozenset({bfcl.first(too_long)}))) as model:
        ids = ",".join([*answers, too_long])
        document = bench.document("run", "bfcl", "--upstream", model.url, "--ids", ids)

    four = by_category(document)
    assert {name: (each["gar"]["hits"], each["acc"]["hits"]) for name, each in four.items()} == dict.fromkeys(
        four, (1, 1)
    )
    strict = ("multi_turn_miss_func", "multi_turn_miss_param")
    assert [four[name]["gar_at_gold_turn"]["hits"] for name in strict] == [1, 1]
    # The server loses texts, so ASK and REFUSE were seen in the proxy's log.
    assert [four[name]["text_recorded"] for name in strict] == [False, False]
    # A prompt that does not fit is an errored case: counted, failed for upstream, no miss for recall.
    base = four["multi_turn_base"]
    assert base["counts"] == {"planned": 2, "run": 2, "scored": 1, "errored": 1, "unmeasurable": 0}
    assert (base["gar"]["of"], base["acc"]["of"]) == (1, 2)
    assert [TOO_LONG in error for error in base["errors"]] == [True]
    assert {
        each["category"]: (each["acc"]["hits"], each["called"]["hits"]) for each in document["single_turn"]
    } == {
        "simple_python": (1, 1),
        "irrelevance": (1, 0),
    }
    assert document["dry_pass"]["prompt_tokens"] == {"least": 1200, "most": 1200}
    assert document["dry_pass"]["context"] == 8192

    assert {row["id"] for row in results(bench.run, "off")} == {*answers, too_long}
    assert {row["key"] for row in bench.records()} == {f"off/{id}" for id in (*answers, too_long)}
    logged = [
        json.loads(line) for line in (bench.run / "proxy-1" / "decisions.jsonl").read_text().splitlines()
    ]
    assert {record["case_id"] for record in logged} == {f"{id}/off/1" for id in (*answers, too_long)}
    assert all("action_published" in record for record in logged)
    told = {name for _, headers in model.asked for name in headers}
    assert not {name for name in told if name.startswith("x-case") or name == "x-calibration"}


@pytest.mark.benchmarks
def test_what_is_killed_goes_on_and_an_over_caller_is_masked_unless_its_calls_are_taken_back(
    bench: Bench, bfcl: Bfcl, tmp_path: Path
) -> None:
    """Four cases whose function is missing at one turn; there three of them call one that does not exist.

    Off: case 0 refuses (hit, passes); 1 and 2 call, and pass, since the grader skips that turn; 3 calls, and
    fails later. So GAR 1/4, Acc 3/4, masking 50 points. With CRI's bypass, which needs the caller's mark, the
    calls become abstentions: GAR 4/4, Acc as before, slack 25 points.
    """
    wild: list[str] = ["look_it_up(name='x')"]
    plays: dict[str, list[list[str | list[str]]]] = {}
    for place, id in enumerate(FOUR):
        turns = bfcl.gold(id, at_empty_turn=REFUSE)
        gold = cases.marks({"multi_turn_miss_func": [id]})[id]["empty"][0]
        if place:
            turns[gold] = [wild, DONE]
        plays[bfcl.first(id)] = (
            turns if place < 3 else [turns[n] if n == gold else [DONE] for n in range(len(turns))]
        )
    profile = tmp_path / "bypass.yaml"
    profile.write_text(yaml.safe_dump({"name": "bypass", "cri": "bypass"}))

    with served(Model(plays, seconds=0.1)) as model:
        command = ["run", "bfcl", "--upstream", model.url, "--ids", ",".join(FOUR), "--threads", "1"]
        command += ["--arm", "off=", "--arm", f"bypass=profile={profile}", "--out", str(tmp_path / "run")]
        killed(command, lambda: len(results(tmp_path / "run", "off")) >= 2)
        finished = [row["id"] for row in results(tmp_path / "run", "off")]
        before = len(model.asked)
        model.seconds = 0
        document = bench.document(*command)
        again = Counter(first for first, _ in model.asked[before:])

    arms = {each["model"]: each["categories"][0] for each in document["models"]}
    assert [*arms["off"]["crosstab"].values()] == [1, 0, 2, 1]
    assert (arms["off"]["gar"]["hits"], arms["off"]["acc"]["hits"], arms["off"]["masking"]) == (1, 3, 0.5)
    assert [*arms["bypass"]["crosstab"].values()] == [3, 1, 0, 0]
    assert (arms["bypass"]["gar"]["hits"], arms["bypass"]["acc"]["hits"], arms["bypass"]["slack"]) == (
        4,
        3,
        0.25,
    )
    assert [each["gar_at_gold_turn"]["hits"] for each in arms.values()] == [1, 4]

    assert finished, "it was killed too early or too late"
    for arm in ("off", "bypass"):
        assert sorted(row["id"] for row in results(tmp_path / "run", arm)) == FOUR
    # What the off arm had finished was asked for by the bypass arm alone.
    bypassed = {id: _replies(results(tmp_path / "run", "bypass"), id) for id in finished}
    assert {id: again[bfcl.first(id)] for id in finished} == bypassed
    # Off, nothing is applied; a call that is taken back is, once a case, and costs no query.
    assert set(document["applied"]["off"]) == {"none"}
    assert [count for words, count in document["applied"]["bypass"].items() if "cri" in words] == [3]
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert [record["queries"] for record in records] == [record["replies"] for record in records]
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (manifest["state"], len(manifest["sessions"])) == ("done", 2)
    # The audit looks at turn 0, where the first three call as they should and the fourth as it should not;
    # once they are offered, three call the missing functions.
    audit = bench.document("score", "audit", tmp_path / "run", "--model", "off")
    rates = audit["rates"]["multi_turn_miss_func"]
    assert [rates[name]["hits"] for name in ("B1a", "B1b", "B3", "B4", "B5")] == [0, 1, 3, 0, 3]


def _replies(rows: list[Json], id: str) -> int:
    return sum(len(turn) for row in rows if row["id"] == id for turn in row["result"])


@pytest.mark.benchmarks
def test_a_server_that_goes_away_ends_the_run_and_is_no_result(
    bench: Bench, bfcl: Bfcl, tmp_path: Path
) -> None:
    """Through a proxy that runs already, in whose place the stand-in sees what a proxy is told."""
    id = "multi_turn_miss_param_3"
    with served(Model({bfcl.first(id): bfcl.gold(id, at_empty_turn=ASK)}, gone=True)) as model:
        command = ["run", "bfcl", "--proxy", model.url, "--profile", "strict", "--ids", id]
        command += ["--out", str(tmp_path / "run")]
        with pytest.raises(Shown, match="repeat the same command") as shown:
            bench.text(*command)
        assert shown.value.code == 3
        assert results(tmp_path / "run", "strict") == []
        model.gone = False
        model.asked.clear()
        document = bench.document(*command)
        assert "run folder" in bench.text(*command)  # a finished run prints its result again
    figures = by_category(document)["multi_turn_miss_param"]
    assert figures["acc"]["hits"] == 1
    # The server lost the texts, and without the proxy's log nobody knows them.
    assert (figures["gar"], document["applied"]) == (None, {"strict": None})
    headers = [headers for _, headers in model.asked]
    assert {(each["x-case-id"], each["x-calibration"]) for each in headers} == {(f"{id}/strict/2", "strict")}
    # Of its three turns the second must stay empty.
    marks = ["miss_param", "miss_param", "miss_param,empty_turn", "miss_param", "miss_param"]
    assert [each["x-case-marks"] for each in headers] == marks


# Without it ------------------------------------------------------------------------------------


def test_an_arm_takes_what_it_leaves_out_from_the_other_options() -> None:
    arms = asked(["off=", "b-1=http://h:1/v1,model=n,profile=p.yaml"], "http://h", "m", None)
    assert arms == [Asked("off", "http://h", "m", None), Asked("b-1", "http://h:1/v1", "n", "p.yaml")]
    assert asked([], "http://h", None, "profiles/strict_1.yaml")[0].name == "strict-1"


@pytest.mark.parametrize("text", ["off", "a_b=", "=x", "a=strict.yaml", "a=profile=", "a=colour=red"])
def test_an_arm_that_is_none_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"--arm: .* write NAME=URL"):
        asked([text], "http://h", None, None)


def test_two_arms_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="'a' stands twice"):
        asked(["a=", "a="], "http://h", None, None)


def site(folder: Path, category: str, ids: list[str]) -> Path:
    rows = [{"id": id, "question": []} for id in ids]
    return write(folder, {f"bfcl_eval/data/BFCL_v4_{category}.json": rows})


def test_a_limit_takes_the_first_cases_of_each_category(tmp_path: Path) -> None:
    for category in ("irrelevance", "multiple"):
        site(tmp_path, category, [f"{category}_{n}" for n in range(3)])
    assert cases.planned(tmp_path, ["irrelevance", "multiple"], 2, []) == {
        "irrelevance": ["irrelevance_0", "irrelevance_1"],
        "multiple": ["multiple_0", "multiple_1"],
    }


def test_an_unknown_case_or_category_is_told_with_the_nearest(tmp_path: Path) -> None:
    for category in (*cases.MULTI_TURN, *cases.SINGLE_TURN):
        site(tmp_path, category, [f"{category}_0"])
    with pytest.raises(InputError, match="no case 'multi_turn_bass_0'; the nearest is 'multi_turn_base_0'"):
        cases.planned(tmp_path, [], None, ["multi_turn_bass_0"])
    with pytest.raises(InputError, match="no category 'multiturn'; the nearest is 'multi_turn'"):
        cases.categories("multiturn")


def test_rounds_go_scenario_by_scenario_and_every_arm_begins_some() -> None:
    planned = {category: [f"{category}_{n}" for n in range(20)] for category in cases.MULTI_TURN}
    order = cases.order(planned)
    assert order[:DRY] == [*(f"{category}_0" for category in cases.MULTI_TURN), "multi_turn_base_1"]
    found = rounds(order, ["a", "b", "c"])
    assert [each.arm for each in found] == ["a", "b", "c", "b", "c", "a", "c", "a", "b", *"abc", *"bca"]
    assert [len(each.cases) for each in found[::3]] == [5, 20, 20, 20, 15]
    for arm in "abc":
        assert [id for each in found if each.arm == arm for id in each.cases] == order
    assert [len(each.cases) for each in rounds(order, ["a"])] == [
        5,
        75,
    ]  # one arm has nothing to alternate with


def test_the_proxy_is_told_of_missing_parameters_and_of_turns_without_a_call() -> None:
    planned = {
        "multi_turn_base": ["multi_turn_base_0", "multi_turn_base_167"],
        "multi_turn_miss_param": ["multi_turn_miss_param_2"],
        "irrelevance": ["irrelevance_0"],
        "multiple": ["multiple_0"],
    }
    assert cases.marks(planned) == {
        "multi_turn_base_167": {"case": [], "empty": [4]},
        "multi_turn_miss_param_2": {"case": ["miss_param"], "empty": [0]},
        "irrelevance_0": {"case": [], "empty": [0]},
    }


def test_entry_n_of_the_four_categories_is_one_scenario() -> None:
    planned = {category: [f"{category}_{n}" for n in range(3)] for category in cases.MULTI_TURN}
    assert cases.scenarios(planned) == 3
    assert cases.scenarios({**planned, "irrelevance": ["irrelevance_0"]}) == 4


def test_a_small_run_is_told_what_it_cannot_show() -> None:
    assert power.words(power.shown(1), "scenarios").startswith("1 scenario cannot show any difference")
    # 4.4, 6.2 and 8.7 points by the normal approximation (rigor.md).
    found = power.shown(200)["smallest_difference_by_discordance"].values()
    assert [*found] == pytest.approx([0.044, 0.062, 0.087], abs=0.005)


def test_a_line_that_a_kill_cut_short_is_taken_out(tmp_path: Path) -> None:
    file = tmp_path / "result" / "off" / "multi_turn" / "BFCL_v4_multi_turn_base_result.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(b'{"id": "a"}\n{"id": "b", "res')
    heal(tmp_path, ["off"])
    assert file.read_bytes() == b'{"id": "a"}\n'


def test_a_dry_pass_of_errors_only_ends_the_run() -> None:
    dry = DryPass({("off", "a"), ("off", "b")}, [8192, None], "bench run bfcl")
    dry.add(("off", "a"), f"Error during inference: {TOO_LONG}", [])
    dry.settle(left=1)
    dry.add(("off", "b"), f"Error during inference: {TOO_LONG}", [])
    with pytest.raises(CheckFailed, match=r"every case of the dry pass ended in an error: .*8192 tokens"):
        dry.settle(left=0)


def test_a_dry_pass_tells_the_longest_prompt_beside_what_the_server_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dry = DryPass({("off", "a"), ("off", "b")}, [None, 8192], "bench run bfcl")
    dry.begin()
    for case, tokens in (("a", [3000, 7000]), ("b", [1200]), ("later", [9000])):
        dry.add(("off", case), None, tokens)
    dry.settle(left=100)
    told = capsys.readouterr().err
    assert "prompts of 1,200 to 7,000 tokens, the server takes 8,192" in told
    assert "100 cases are left, about" in told
    # What an earlier call has run tells nothing of the time.
    again = DryPass({("off", "a")}, [], "bench run bfcl")
    again.add(("off", "a"), None, [])
    again.begin()
    again.settle(left=100)
    assert "left" not in capsys.readouterr().err


def test_the_probe_grid_is_ten_arms_of_one_server() -> None:
    arms = probe_grid("http://h", "m", "published")
    assert [arm.name for arm in arms] == [
        "off",
        *(
            f"sri-{name}"
            for name in ("v1", "no-history", "no-state", "no-recon", "gate", "gate-miss-param", "lite")
        ),
        "cri-retry",
        "cri-bypass",
    ]
    assert arms[3].probes == {"sri": {"variant": "no_state", "state": "published"}}
    assert {(arm.url, arm.model, arm.profile) for arm in arms} == {("http://h", "m", None)}


@pytest.mark.parametrize("also", ["--arm=a=", "--profile=p.yaml", "--proxy=http://h"])
def test_the_probe_grid_stands_alone(bench: Bench, also: str) -> None:
    with pytest.raises(Shown, match="--probe-grid: makes arms of its own, and --") as shown:
        bench.text("run", "bfcl", "--probe-grid", also)
    assert shown.value.code == 2
