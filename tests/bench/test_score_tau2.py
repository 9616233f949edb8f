"""`bench score tau2`: the figures of a public run, and of results in every shape that tau2-bench writes."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bench.score.loops import NOTHING
from tests.bench.scoring import Bench, Json, Shown, public_runs, write

DOCS = Path(__file__).parents[2] / "docs" / "scoring.md"
DATA = Path(__file__).parents[1] / "data" / "tau2_airline.json.gz"


def message(content: str | None = None, *calls: tuple[str, Any]) -> Json:
    made = [{"id": str(n), "name": name, "arguments": given} for n, (name, given) in enumerate(calls)]
    return {"role": "assistant", "content": content, "tool_calls": made or None}


def user(content: str = "Go on.") -> Json:
    return {"role": "user", "content": content}


def simulation(task: str, *messages: Json, trial: int = 0, reward: float = 1.0, **more: Any) -> Json:
    return {
        "id": f"{task}-{trial}",
        "task_id": task,
        "trial": trial,
        "termination_reason": "user_stop",
        "reward_info": {"reward": reward},
        "messages": list(messages),
        **more,
    }


def results(*simulations: Json, tasks: dict[str, int], domain: str = "airline", trials: int = 1) -> Json:
    """A results document; tasks: the number of reference actions of each."""
    return {
        "info": {"num_trials": trials, "environment_info": {"domain_name": domain}},
        "tasks": [
            {
                "id": id,
                "evaluation_criteria": {"actions": [{"action_id": f"{id}_{n}"} for n in range(actions)]},
            }
            for id, actions in tasks.items()
        ],
        "simulations": list(simulations),
    }


def figures(bench: Bench, folder: Path, document: Json, *options: str) -> Json:
    """The figures of the one run."""
    file = write(folder, {"results.json": document}) / "results.json"
    (run,) = bench.document("score", "tau2", file, *options)["runs"]
    assert isinstance(run, dict)
    return run


def rate(figure: Json) -> tuple[int, int]:
    return figure["hits"], figure["of"]


# The public run


@pytest.mark.parametrize("cues", ["seam", "published"])
def test_a_public_run_gives_the_published_figures(bench: Bench, tmp_path: Path, cues: str) -> None:
    file = tmp_path / "airline.json"
    file.write_bytes(gzip.decompress(DATA.read_bytes()))
    document = bench.document("score", "tau2", file, "--cues", cues)
    (run,) = document["runs"]
    assert document["cues"] == cues
    assert run["counts"] == {"planned": 50, "run": 50, "scored": 50, "errored": 0, "unmeasurable": 0}
    assert run["pass_k"]["1"]["estimate"] == 0.56
    shown = {
        name: (
            each["counts"]["scored"],
            round(100 * each["gar"]["estimate"], 1),
            round(100 * each["acc"]["estimate"], 1),
        )
        for name, each in run["classes"].items()
    }
    assert shown == {
        "refuse": (7, 28.6, 42.9),
        "ask_candidate": (13, 100.0, 61.5),
        "ask_paper": (8, 100.0, 75.0),
        "ask_valid": (6, 100.0, 66.7),
        "tool_call": (43, 69.8, 58.1),
    }
    # The run's checks are of other tasks than those its simulations name, which no figure shows.
    assert any("another task" in warning for warning in run["warnings"])


@pytest.mark.parametrize("run", public_runs("bench score tau2"))
def test_files_from_public_bug_reports_are_scored_as_they_should(
    bench: Bench, tmp_path: Path, run: Json
) -> None:
    (shown,) = bench.document("score", "tau2", write(tmp_path, run["files"]))["runs"]
    check = dict(run["check"])
    assert bool(shown["warnings"]) == check.pop("warns")
    for name in ("counts", "acc", "tasks"):
        assert shown[name].items() >= check.pop(name).items()
    assert not check
    assert shown["tasks"]["without_a_scored_run"] == ["1", "3"]


# Classes


def test_a_refusal_is_a_run_without_a_write(bench: Bench, tmp_path: Path) -> None:
    write_call = ("cancel_reservation", {"reservation_id": "A"})
    run = figures(
        bench,
        tmp_path,
        results(
            simulation("0", user(), message(None, ("get_user_details", {})), message("I can't do that.")),
            simulation("1", user(), message(None, write_call), reward=0.0),
            simulation("2", user(), message('[{"name": "cancel_reservation", "arguments": {}}]')),
            tasks={"0": 0, "1": 0, "2": 0},
        ),
    )
    refuse = run["classes"]["refuse"]
    assert (rate(refuse["gar"]), rate(refuse["acc"])) == ((2, 3), (2, 3))
    assert "tool_call" not in run["classes"]


def test_a_call_failed_where_a_reference_action_did(bench: Bench, tmp_path: Path) -> None:
    def checked(*matches: bool) -> Json:
        checks = [{"action_match": match, "action_reward": float(match)} for match in matches]
        return {"reward_info": {"reward": 1.0, "action_checks": checks}}

    early: Json = {"termination_reason": "max_steps", "reward_info": {"reward": 0.0}}
    run = figures(
        bench,
        tmp_path,
        results(
            simulation("0", user(), **checked(True, True)),
            simulation("1", user(), **checked(True, False)),
            simulation("2", user(), **early),
            tasks={"0": 2, "1": 2, "2": 1},
        ),
    )
    call = run["classes"]["tool_call"]
    assert (rate(call["gar"]), rate(call["gar_where_checked"])) == ((2, 3), (1, 2))
    assert call["masking"] is None
    assert "reference reads" in call["masking_reason"]
    assert rate(run["loops"]["max_step_hits"]) == (1, 3)


def test_asks_count_in_any_message_but_the_greeting(bench: Bench, tmp_path: Path) -> None:
    # 19 is in all three of the audit's lists, 8 is a candidate only.
    greeting = message("Hi! How can I help you today?")
    refusal = "I can't change that flight."
    run = figures(
        bench,
        tmp_path,
        results(
            simulation("19", greeting, user(), message("Sure. What is your reservation number?")),
            simulation("8", greeting, user(), message(refusal)),
            tasks={"19": 1, "8": 1},
        ),
    )
    asks = {name: rate(each["gar"]) for name, each in run["classes"].items() if name.startswith("ask")}
    assert asks == {"ask_candidate": (1, 2), "ask_paper": (1, 1), "ask_valid": (1, 1)}
    assert run["class_mix"]["emissions"] == {
        "tool_call": 0,
        "ask": 1,
        "refuse": 1,
        "confirm": 0,
        "other": 0,
        "none": 0,
    }


def test_the_published_reading_of_asks_is_there_where_it_differs(bench: Bench, tmp_path: Path) -> None:
    # What a text quotes is not asked; to the published lists the question mark decides.
    text = 'The form says "What is the fare?" at its top.'
    document = results(simulation("19", user(), message(text)), tasks={"19": 1})
    ours = figures(bench, tmp_path, document)["classes"]["ask_valid"]
    assert (rate(ours["gar"]), rate(ours["gar_published"])) == ((0, 1), (1, 1))
    published = figures(bench, tmp_path, document, "--cues", "published")["classes"]["ask_valid"]
    assert rate(published["gar"]) == (1, 1)
    assert "gar_published" not in published


def test_other_domains_have_no_labels_and_say_so(bench: Bench, tmp_path: Path) -> None:
    run = figures(bench, tmp_path, results(simulation("a", user()), tasks={"a": 3}, domain="telecom"))
    assert run["classes"] is None
    assert "airline and retail only" in run["classes_reason"]
    assert rate(run["acc"]) == (1, 1)
    assert run["confirm"] is None


# Trials and counts


def test_pass_k_is_the_chance_that_k_trials_all_pass(bench: Bench, tmp_path: Path) -> None:
    rewards = {"0": (1, 1, 1), "1": (1, 1, 0), "2": (1, 0, 0)}
    document = results(
        *(
            simulation(task, user(), trial=trial, reward=float(reward))
            for task, each in rewards.items()
            for trial, reward in enumerate(each)
        ),
        tasks=dict.fromkeys(rewards, 1),
        trials=3,
    )
    run = figures(bench, tmp_path, document)
    estimates = {k: each["estimate"] for k, each in run["pass_k"].items()}
    assert estimates == pytest.approx({"1": 6 / 9, "2": (1 + 1 / 3 + 0) / 3, "3": 1 / 3})
    assert run["counts"]["planned"] == 9
    assert run["acc"]["reason"] == "3 clusters, and a cluster bootstrap needs 50"


def test_pass_k_rests_on_the_tasks_with_so_many_scored_trials(bench: Bench, tmp_path: Path) -> None:
    document = results(
        simulation("0", user(), trial=0),
        simulation("0", user(), trial=1),
        simulation("1", user(), trial=0, reward=0.0),
        simulation("1", user(), trial=1, termination_reason="infrastructure_error", reward_info=None),
        tasks={"0": 1, "1": 1},
        trials=2,
    )
    passes = figures(bench, tmp_path, document)["pass_k"]
    assert {k: (each["estimate"], each["n"]) for k, each in passes.items()} == {"1": (0.5, 2), "2": (1.0, 1)}


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"termination_reason": "infrastructure_error", "reward_info": None}, "errored"),
        ({"termination_reason": "infrastructure_error"}, "errored"),
        ({"skipped": True, "reward_info": {"reward": 0.0}}, "errored"),
        ({"error": "connection reset"}, "errored"),
        ({"reward_info": None}, "unmeasurable"),
        ({"reward_info": {"reward": None}}, "unmeasurable"),
        ({"termination_reason": "too_many_errors"}, "scored"),
        ({"termination_reason": "context_window_exceeded"}, "scored"),
    ],
)
def test_only_what_the_agent_did_is_scored(bench: Bench, tmp_path: Path, more: Json, state: str) -> None:
    run = figures(bench, tmp_path, results(simulation("0", user(), **more), tasks={"0": 1}))
    counted = {name: run["counts"][name] for name in ("scored", "errored", "unmeasurable")}
    assert counted == {name: int(name == state) for name in counted}


def test_a_repeated_trial_counts_once_with_its_last_run(bench: Bench, tmp_path: Path) -> None:
    document = results(
        simulation("0", user(), reward=0.0), simulation("0", user(), reward=1.0), tasks={"0": 1}
    )
    run = figures(bench, tmp_path, document)
    assert (rate(run["acc"]), run["duplicates"], run["counts"]["run"]) == ((1, 1), 1, 1)


def test_runs_without_trial_numbers_are_all_kept(bench: Bench, tmp_path: Path) -> None:
    ran = [{**simulation("0", user()), "id": name, "trial": None} for name in "ab"]
    assert rate(figures(bench, tmp_path, results(*ran, tasks={"0": 1}))["acc"]) == (2, 2)


def test_limit_takes_the_first_tasks(bench: Bench, tmp_path: Path) -> None:
    document = results(simulation("0", user()), simulation("1", user()), tasks={"0": 1, "1": 1})
    assert figures(bench, tmp_path, document, "--limit", "1")["counts"]["planned"] == 1


# Inside a turn


def test_turns_are_what_follows_a_user_message(bench: Bench, tmp_path: Path) -> None:
    read = ("get_user_details", '{"user_id": "a"}')
    again = ("get_user_details", {"user_id": "a"})
    run = figures(
        bench,
        tmp_path,
        results(
            simulation(
                "0",
                message("Hi! How can I help you today?"),
                user(),
                message(None, read),
                {"role": "tool", "content": "{}"},
                message(None, again, ("think", "not json")),
                message("Done."),
                {"role": "user", "tool_calls": [{"name": "toggle", "arguments": {}}]},
                {"role": "tool", "content": "ok", "requestor": "user"},
                user("Thanks."),
                message("You're welcome."),
                user("###STOP###"),
            ),
            tasks={"0": 1},
        ),
    )
    loops = run["loops"]
    assert {name: rate(loops[name]) for name in ("calls_per_turn", "repeated_calls", "unparsable_calls")} == {
        "calls_per_turn": (3, 2),
        "repeated_calls": (1, 2),
        "unparsable_calls": (1, 3),
    }
    (record,) = bench.records()
    assert (
        record["emissions"] == [[["tool_call"], ["tool_call"], ["confirm"]], [[]]]
        or record["emissions"][0][:2]
    )


def test_names_are_checked_where_the_run_has_its_tools(bench: Bench, tmp_path: Path) -> None:
    document = results(
        simulation("0", user(), message(None, ("think", {"thought": "x"}), ("fly", {}), ("think", {}))),
        tasks={"0": 1},
    )
    schema = {"type": "object", "properties": {"thought": {"type": "string"}}, "required": ["thought"]}
    document["info"]["environment_info"]["tool_defs"] = {"think": {"name": "think", "params": schema}}
    loops = figures(bench, tmp_path, document)["loops"]
    assert {name: rate(loops[name]) for name in ("unknown_names", "schema_violations", "invalid_calls")} == {
        "unknown_names": (1, 3),
        "schema_violations": (1, 2),
        "invalid_calls": (2, 3),
    }


def test_a_run_without_a_call_has_no_names_to_check(bench: Bench, tmp_path: Path) -> None:
    loops = figures(bench, tmp_path, results(simulation("1", user(), message("No.")), tasks={"1": 0}))[
        "loops"
    ]
    assert loops["unknown_names_reason"] == NOTHING


def test_the_docs_name_every_figure(bench: Bench, tmp_path: Path) -> None:
    run = figures(bench, tmp_path, results(simulation("19", user(), message("Which?")), tasks={"19": 1}))
    text = DOCS.read_text()
    for name in {name for name in run if not name.endswith("_reason")} - {"counts", "loops"}:
        assert f"`{name}`" in text or f"`{name}." in text, name
    for name in run["classes"]:
        assert f"`classes.{name}`" in text or f"`{name}`" in text, name


# Formats and bad input


def split(folder: Path, document: Json) -> Path:
    """The document as a results folder: each simulation a file, and an index."""
    ran = document.pop("simulations")
    index = [{"id": each["id"], "task_id": each["task_id"], "trial": each["trial"]} for each in ran]
    write(folder, {"results.json": {**document, "simulation_index": index}})
    return write(folder, {f"simulations/{each['id']}.json": each for each in ran})


def test_a_results_folder_gives_the_figures_of_the_one_file(bench: Bench, tmp_path: Path) -> None:
    def document() -> Json:
        ran = (simulation(str(n), user(), message("Which one?"), reward=float(n % 2)) for n in range(4))
        return results(*ran, tasks={str(n): n % 2 for n in range(4)})

    whole = figures(bench, tmp_path / "run", document())
    folder = split(tmp_path / "parts" / "run", document())
    for path in (folder, folder / "results.json", tmp_path / "parts"):
        (parts,) = bench.document("score", "tau2", path)["runs"]
        assert {**parts, "path": whole["path"]} == whole


def test_a_simulation_whose_file_is_lost_or_cut_is_unmeasurable(bench: Bench, tmp_path: Path) -> None:
    ran = [simulation(str(n), user()) for n in range(3)]
    folder = split(tmp_path, results(*ran, tasks={"0": 1, "1": 1, "2": 1}))
    (folder / "simulations" / "1-0.json").unlink()
    cut = folder / "simulations" / "2-0.json"
    cut.write_text(cut.read_text()[:50])
    (run,) = bench.document("score", "tau2", folder)["runs"]
    assert run["counts"] == {"planned": 3, "run": 3, "scored": 1, "errored": 0, "unmeasurable": 2}
    assert "named by the index and held by no file: 2" in run["warnings"]


def test_a_folder_of_runs_has_a_row_each(bench: Bench, tmp_path: Path) -> None:
    document = results(simulation("0", user()), tasks={"0": 1})
    write(tmp_path, {"a.json": document, "b/results.json": document, "c/results.json": document})
    write(tmp_path, {"c/settings.json": {"model": "x"}, "c/log.json": ["not", "results"]})
    assert [run["run"] for run in bench.document("score", "tau2", tmp_path)["runs"]] == ["a", "b", "c"]
    shown = bench.text("score", "tau2", tmp_path)
    assert shown.count("1/1 (100.0 [20.7–100.0])") > 3


@pytest.mark.parametrize(
    ("files", "path", "line"),
    [
        ({}, "gone.json", "gone.json: no such file or folder; give tau2 results files or folders"),
        ({"a.json": {"model": 1}}, ".", "no results of tau2; give a results.json"),
        ({"a.json": {"model": 1}}, "a.json", "a.json: has no tasks and simulations"),
        ({"a.json": ['{"tasks": [], "simul']}, "a.json", "a.json: is not whole JSON"),
    ],
)
def test_bad_input_is_one_line(bench: Bench, tmp_path: Path, files: Json, path: str, line: str) -> None:
    write(tmp_path, files)
    with pytest.raises(Shown) as shown:
        bench.text("score", "tau2", tmp_path / path)
    assert shown.value.code == 2
    assert line in shown.value.line
    assert shown.value.line.count("\n") == 1


def test_records_say_what_each_simulation_came_to(bench: Bench, tmp_path: Path) -> None:
    figures(bench, tmp_path, results(simulation("19", user(), message("Which flight?")), tasks={"19": 0}))
    (record,) = bench.records()
    assert record == {
        "key": f"{tmp_path.name}/19/0/19-0",
        "run": tmp_path.name,
        "id": "19-0",
        "task": "19",
        "trial": 0,
        "state": "scored",
        "termination": "user_stop",
        "hits": {"refuse": True, "ask_candidate": True, "ask_paper": True, "ask_valid": True},
        "passed": True,
        "asked": True,
        "emissions": [[["ask"]]],
        "loops": {"calls_per_turn": 0.0, "loop_at_3": 0.0},
        "writes": [],
        "audit": {"refuse": {"B1b": 1, "B4": 1, "B5": 0}, "ask": {"B1b": 1, "B4": 1, "B5": 0}},
    }
    assert json.loads((bench.run / "run.json").read_text())["plan"]["command"] == "score tau2"
