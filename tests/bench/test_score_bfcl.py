"""`bench score bfcl`: the figures of result folders as bfcl-eval writes them, odd ones too."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.intervals import wilson
from bench.score.bfcl_turns import turns_due
from bench.score.decision_log import LoggedReply, classes, last_attempts
from calibrators.actions import Action
from tests.bench.scoring import Bench, Json, Shown, public_runs, write

DOCS = Path(__file__).parents[2] / "docs" / "scoring.md"
CALL: list[Json] = [{"ls": "{}"}]
ASK = "Which file should I sort?"
REFUSE = "I can't measure that with the tools I have here."
DONE = "The folder tmp holds two files."


def row(category: str, entry: int, result: Any, **more: Any) -> Json:
    return {"id": f"multi_turn_{category}_{entry}", "result": result, **more}


def v4(category: str, kind: str = "result") -> str:
    return f"multi_turn/BFCL_v4_multi_turn_{category}_{kind}.json"


def score_rows(category: str, total: int, *failed: int) -> list[Json]:
    header = {
        "accuracy": 1 - len(failed) / total,
        "correct_count": total - len(failed),
        "total_count": total,
    }
    return [header, *({"id": f"multi_turn_{category}_{n}", "valid": False, "error": {}} for n in failed)]


def only(document: Json) -> Json:
    """The one category of the one model."""
    (model,) = document["models"]
    (category,) = model["categories"]
    assert isinstance(category, dict)
    return category


def result(bench: Bench, folder: Path, category: str, *rows: str | Json) -> Json:
    """The category's figures of a file with these rows."""
    return only(bench.document("score", "bfcl", write(folder, {v4(category): rows})))


# Cases from public bug reports


@pytest.mark.parametrize("run", public_runs("bench score bfcl"))
def test_files_from_public_bug_reports_are_scored_as_they_should(
    bench: Bench, tmp_path: Path, run: Json
) -> None:
    figures = only(bench.document("score", "bfcl", write(tmp_path, run["files"])))
    check = dict(run["check"])
    if check.pop("gar_reason_given", False):
        assert figures["gar_reason"]
    gar, counts = check.pop("gar"), check.pop("counts", {})
    assert figures["gar"] == gar if gar is None else figures["gar"].items() >= gar.items()
    assert figures["counts"].items() >= counts.items()
    assert figures["emissions"].items() >= check.pop("emissions", {}).items()
    assert figures.items() >= check.items()


def test_broken_arguments_are_a_call_and_an_invalid_one(bench: Bench, tmp_path: Path) -> None:
    figures = result(bench, tmp_path, "base", row("base", 0, [[[{"mv": '{"source": '}], CALL, DONE]]))
    assert figures["gar"]["hits"] == 1
    assert (figures["loops"]["unparsable_calls"]["hits"], figures["loops"]["unparsable_calls"]["of"]) == (
        1,
        2,
    )


# Formats


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_both_layouts_of_result_and_score_folders_are_read(
    bench: Bench, tmp_path: Path, version: str
) -> None:
    group = "multi_turn/" if version == "v4" else ""
    name = f"my_model/{group}BFCL_{version}_multi_turn_miss_param"
    write(
        tmp_path,
        {
            f"result/{name}_result.json": [row("miss_param", n, [[CALL, ASK]]) for n in range(4)],
            f"score/{name}_score.json": score_rows("miss_param", 4, 2),
        },
    )
    for path in ("result", "result/my_model", f"result/{name}_result.json", "."):
        document = bench.document("score", "bfcl", tmp_path / path)
        assert document["models"][0]["model"] == "my_model"
        assert (only(document)["gar"]["hits"], only(document)["acc"]["hits"]) == (4, 3)


def test_a_score_folder_elsewhere_is_named(bench: Bench, tmp_path: Path) -> None:
    write(tmp_path, {f"a/{v4('base')}": [row("base", 0, [[CALL]])]})
    write(tmp_path, {f"other/a/{v4('base', 'score')}": score_rows("base", 1)})
    assert only(bench.document("score", "bfcl", tmp_path / "a"))["acc"] is None
    figures = only(bench.document("score", "bfcl", tmp_path / "a", "--scores", tmp_path / "other"))
    assert figures["acc"]["hits"] == 1


def test_score_files_alone_give_the_accuracy(bench: Bench, tmp_path: Path) -> None:
    figures = only(
        bench.document("score", "bfcl", write(tmp_path, {v4("base", "score"): score_rows("base", 9, 3, 4)}))
    )
    assert (figures["acc"]["hits"], figures["acc"]["of"]) == (7, 9)
    assert (figures["gar"], figures["gar_reason"]) == (None, "no result file")


def test_several_models_have_a_row_each(bench: Bench, tmp_path: Path) -> None:
    rows = [row("base", 0, [[CALL]])]
    write(tmp_path, {f"result/{name}/{v4('base')}": rows for name in ("beta", "alpha")})
    write(tmp_path, {f"again/alpha/{v4('base')}": rows})
    document = bench.document("score", "bfcl", tmp_path)
    assert [model["model"] for model in document["models"]] == ["again/alpha", "beta", "result/alpha"]


def test_files_of_other_categories_are_passed_over(bench: Bench, tmp_path: Path) -> None:
    write(tmp_path, {"non_live/BFCL_v4_irrelevance_result.json": [{"id": "irrelevance_0", "result": "no"}]})
    assert result(bench, tmp_path, "base", row("base", 0, [[CALL]]))["counts"]["run"] == 1


@pytest.mark.parametrize(
    ("reply", "action", "calls"),
    [
        ([{"ls": "{}"}, {"cd": {"folder": "tmp"}}], "tool_call", 2),
        ([{"tool_name": "ls", "parameters": {}}], "tool_call", 1),
        ({"ls": {}}, "tool_call", 1),
        ("[ls(), cd(folder='tmp')]", "tool_call", 2),
        ('<tool_call>{"name": "ls", "arguments": {}}</tool_call>', "tool_call", 1),
        ('```json\n[{"name": "ls", "arguments": {}}]\n```', "tool_call", 1),
        ("[{'name': 'ls', 'parameters': {'all': True}}]", "tool_call", 1),
        ([ASK, ""], "ask", 0),
        (ASK, "ask", 0),
        ("", None, 0),
        (None, None, 0),
        ([], None, 0),
    ],
)
def test_every_handlers_way_of_writing_a_reply_is_read(
    bench: Bench, tmp_path: Path, reply: Any, action: str | None, calls: int
) -> None:
    figures = result(bench, tmp_path, "miss_param", row("miss_param", 0, [[reply, DONE]]))
    assert figures["emissions"]["multi_turn_miss_param_0"] == [[action, "other"]]
    assert figures["loops"]["calls_per_turn"]["hits"] == calls
    assert figures["loops"]["unparsable_calls"] is None or not figures["loops"]["unparsable_calls"]["hits"]


def test_a_repeated_id_counts_once_with_its_last_row(bench: Bench, tmp_path: Path) -> None:
    figures = result(
        bench,
        tmp_path,
        "miss_func",
        row("miss_func", 1, "Error during inference: timeout"),
        row("miss_func", 0, [[CALL]]),
        row("miss_func", 1, [[REFUSE]]),
    )
    assert figures["counts"] == {"planned": 200, "run": 2, "scored": 2, "errored": 0, "unmeasurable": 0}
    assert figures["duplicates"] == 1
    assert figures["hit_ids"] == ["multi_turn_miss_func_1"]


def test_a_cut_last_line_is_left_out_and_said(bench: Bench, tmp_path: Path) -> None:
    file = write(tmp_path, {v4("base"): [row("base", 0, [[CALL]])]}) / v4("base")
    file.write_text(file.read_text() + '{"id": "multi_turn_base_1", "res')
    assert only(bench.document("score", "bfcl", tmp_path))["counts"]["run"] == 1
    assert "not written to its end" in bench.text("score", "bfcl", tmp_path)


# Recall


def test_errored_rows_are_left_out_and_the_published_reading_counts_them_as_misses(
    bench: Bench, tmp_path: Path
) -> None:
    error = "Error during inference: Request timed out."
    figures = result(
        bench,
        tmp_path,
        "miss_func",
        row("miss_func", 0, [[REFUSE]]),
        row("miss_func", 1, [[CALL]]),
        row("miss_func", 2, error),
        row("miss_func", 3, None),
    )
    assert figures["counts"] == {"planned": 200, "run": 4, "scored": 2, "errored": 2, "unmeasurable": 0}
    assert (figures["gar"]["hits"], figures["gar"]["of"]) == (1, 2)
    assert (figures["gar_published"]["hits"], figures["gar_published"]["of"]) == (1, 4)
    assert figures["errors"] == {error: 1, "result is null": 1}


def test_cues_decide_how_a_text_is_classified(bench: Bench, tmp_path: Path) -> None:
    both = "I can't find the report. Did you mean report_1.txt or report_2.txt?"
    folder = write(tmp_path, {v4("miss_param"): [row("miss_param", 0, [[both]])]})
    ours = bench.document("score", "bfcl", folder)
    assert ours["cues"] == "seam"
    assert (only(ours)["gar"]["hits"], only(ours)["gar_published"]["hits"]) == (1, 0)
    published = bench.document("score", "bfcl", folder, "--cues", "published")
    assert published["cues"] == "published"
    assert only(published)["gar"]["hits"] == 0
    assert "gar_published" not in only(published)


def test_at_the_gold_turn_only_that_turn_counts(bench: Bench, tmp_path: Path) -> None:
    # BFCL's entry 0 withholds the function at turn 2, entry 3 at turn 0.
    figures = result(
        bench,
        tmp_path,
        "miss_func",
        row("miss_func", 0, [[REFUSE], [CALL], [CALL, DONE], [CALL], [DONE]]),
        row("miss_func", 3, [[REFUSE], [CALL], [DONE]]),
    )
    assert figures["gar"]["hits"] == 2
    assert (figures["gar_at_gold_turn"]["hits"], figures["gar_at_gold_turn"]["of"]) == (1, 2)
    assert figures["emissions"]["multi_turn_miss_func_0"][2] == ["tool_call", "other"]


def test_a_rate_has_wilsons_interval_and_its_counts(bench: Bench, tmp_path: Path) -> None:
    rows = [row("base", n, [[CALL if n < 30 else DONE]]) for n in range(50)]
    figures = result(bench, tmp_path, "base", *rows)
    assert figures["gar"] == {"hits": 30, "of": 50, **wilson(30, 50)._asdict()}
    assert "60.0 [46.2–72.4] 30/50" in bench.text("score", "bfcl", tmp_path)
    few = bench.text("score", "bfcl", tmp_path, "--limit", "5")
    assert "5/5 (100.0 [56.6–100.0])" in few


# Lost text


def lost(log: list[Any] | None = None) -> Json:
    more = {} if log is None else {"inference_log": log}
    return row("miss_param", 3, [[[], CALL, []], [CALL, []]], **more)


def test_lost_text_makes_recall_unmeasurable_and_not_zero(bench: Bench, tmp_path: Path) -> None:
    figures = result(bench, tmp_path, "miss_param", lost(), row("miss_param", 4, "Error during inference: x"))
    assert figures["counts"] == {"planned": 200, "run": 2, "scored": 0, "errored": 1, "unmeasurable": 1}
    assert (figures["gar"], figures["gar_at_gold_turn"], figures["loops"]["non_tool_final"]) == (None,) * 3
    assert "text is lost, so ASK cannot be seen" in figures["gar_reason"]
    assert figures["class_mix"]["lost"] == 3
    assert "GAR is not measurable: text replies are recorded as []" in bench.text("score", "bfcl", tmp_path)


def test_calls_are_counted_where_text_is_lost(bench: Bench, tmp_path: Path) -> None:
    figures = result(bench, tmp_path, "base", row("base", 0, [[CALL, []], [[]]]), row("base", 1, [[[]]]))
    assert figures["text_recorded"] is False
    assert (figures["gar"]["hits"], figures["gar"]["of"]) == (1, 2)


def test_an_empty_list_beside_recorded_text_is_an_empty_reply(bench: Bench, tmp_path: Path) -> None:
    figures = result(
        bench, tmp_path, "miss_param", row("miss_param", 0, [[ASK]]), row("miss_param", 1, [[[]]])
    )
    assert figures["text_recorded"] is True
    assert (figures["gar"]["hits"], figures["gar"]["of"]) == (1, 2)


def test_text_that_the_inference_log_has_is_used(bench: Bench, tmp_path: Path) -> None:
    log = [
        [{"role": "state_info", "class_name": "GorillaFileSystem", "content": {}}],
        {
            "begin_of_turn_query": [{"role": "user", "content": "Sort it."}],
            "step_0": [{"role": "assistant", "content": DONE}],
            "step_1": [{"role": "assistant", "content": CALL}],
            "step_2": [{"role": "assistant", "content": [ASK]}],
        },
        {
            "step_0": [{"role": "assistant", "content": CALL}],
            "step_1": [{"role": "assistant", "content": DONE}],
        },
    ]
    figures = result(bench, tmp_path, "miss_param", lost(log))
    assert figures["emissions"]["multi_turn_miss_param_3"] == [
        ["other", "tool_call", "ask"],
        ["tool_call", "other"],
    ]
    assert figures["gar"]["hits"] == 1
    assert figures["texts_recovered"] == 3


def test_text_is_found_in_the_logged_input_of_later_steps(bench: Bench, tmp_path: Path) -> None:
    messages = (
        "[{'role': 'user', 'content': 'Sort it.'}, "
        f"ChatCompletionMessage(content={ASK!r}, refusal=None, role='assistant', tool_calls=[]), "
        "ChatCompletionMessage(content=None, role='assistant', tool_calls=[ChatCompletionMessageToolCall("
        "id='a', function=Function(arguments='{}', name='ls'), type='function')]), "
        "{'role': 'tool', 'tool_call_id': 'a', 'content': 'x'}]"
    )
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
    inputs = [
        {"role": "inference_input", "content": {"message": said, "tools": tools}} for said in ("[]", messages)
    ]
    log = [
        {"step_0": [inputs[0], {"role": "assistant", "content": []}]},
        {
            "step_0": [{"role": "assistant", "content": CALL}],
            "step_1": [inputs[1], {"role": "assistant", "content": []}],
        },
    ]
    # BFCL's entry 3 withholds the parameter at turn 1, entry 2 at turn 0.
    figures = result(
        bench,
        tmp_path,
        "miss_param",
        row("miss_param", 2, [[[]], [CALL, []]], inference_log=log),
    )
    assert figures["emissions"]["multi_turn_miss_param_2"] == [["ask"], ["tool_call", "lost"]]
    assert figures["gar"] is None
    assert (figures["gar_at_gold_turn"]["hits"], figures["gar_at_gold_turn"]["of"]) == (1, 1)


def decisions(*actions: str | None, case: str = "multi_turn_miss_param_3/b0/1") -> list[Json]:
    return [
        {
            "case_id": case,
            "time": f"2026-11-29T10:00:{9 - n:02}Z",
            "outcome": "ok",
            "choice": 0,
            "action": action,
        }
        for n, action in enumerate(reversed(actions))
    ]


def test_the_proxys_decision_log_gives_the_classes_of_lost_replies(bench: Bench, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", {v4("miss_param"): [lost()]})
    failed = {**decisions(None)[0], "outcome": "upstream_error"}
    log = [
        *decisions("other", "tool_call", "ask", "tool_call", None),
        failed,
        {"case_id": "77f0", "outcome": "ok"},
    ]
    write(tmp_path, {"log.jsonl": log})
    figures = only(bench.document("score", "bfcl", folder, "--decisions", tmp_path / "log.jsonl"))
    assert figures["emissions"]["multi_turn_miss_param_3"] == [
        ["other", "tool_call", "ask"],
        ["tool_call", None],
    ]
    assert (figures["gar"]["hits"], figures["texts_recovered"]) == (1, 3)


@pytest.mark.parametrize(
    "actions",
    [("other", "tool_call", "ask"), ("tool_call", "other", "ask", "tool_call", "ask")],
    ids=["fewer replies", "calls elsewhere"],
)
def test_a_decision_log_of_other_replies_is_not_used(
    bench: Bench, tmp_path: Path, actions: tuple[str, ...]
) -> None:
    folder = write(tmp_path / "m", {v4("miss_param"): [lost()]})
    write(tmp_path, {"log.jsonl": decisions(*actions)})
    assert only(bench.document("score", "bfcl", folder, "--decisions", tmp_path / "log.jsonl"))["gar"] is None


def test_a_decision_log_of_two_runs_is_refused(bench: Bench, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", {v4("miss_param"): [lost()]})
    twice = [*decisions("ask"), *decisions("ask", case="multi_turn_miss_param_3/b1/1")]
    write(tmp_path, {"log.jsonl": twice})
    with pytest.raises(Shown, match="holds 2 runs of multi_turn_miss_param_3"):
        bench.text("score", "bfcl", folder, "--decisions", tmp_path / "log.jsonl")


def test_a_log_with_the_published_classes_gives_the_published_reading_of_lost_replies(
    bench: Bench, tmp_path: Path
) -> None:
    folder = write(tmp_path / "m", {v4("miss_param"): [lost()]})
    log = decisions("other", "tool_call", "ask", "tool_call", None)
    log[2] |= {"action_published": "refuse"}
    write(tmp_path, {"log.jsonl": log})
    scored = ("score", "bfcl", folder, "--decisions", tmp_path / "log.jsonl")
    figures = only(bench.document(*scored))
    assert (figures["gar"]["hits"], figures["gar_published"]["hits"]) == (1, 0)
    assert only(bench.document(*scored, "--cues", "published"))["gar"]["hits"] == 0


def test_the_log_knows_a_lost_reply_beside_texts_that_arrived(bench: Bench, tmp_path: Path) -> None:
    # A probe's own words come as text from a server that loses the model's.
    folder = write(tmp_path / "m", {v4("miss_param"): [row("miss_param", 3, [[[]], [DONE]])]})
    write(tmp_path, {"log.jsonl": decisions("ask", "other")})
    figures = only(bench.document("score", "bfcl", folder, "--decisions", tmp_path / "log.jsonl"))
    assert figures["emissions"]["multi_turn_miss_param_3"] == [["ask"], ["other"]]
    assert (figures["gar"]["hits"], figures["texts_recovered"]) == (1, 1)


def test_of_a_case_that_was_begun_anew_the_last_attempt_counts(tmp_path: Path) -> None:
    case = "multi_turn_miss_param_3"
    log = [
        *decisions("tool_call", "ask", case=f"{case}/b-1/2"),
        *decisions("tool_call", case=f"{case}/b-1/10"),
        *decisions("refuse", case=f"{case}/off/11"),
    ]
    found = last_attempts([write(tmp_path, {"log.jsonl": log}) / "log.jsonl"])["b-1"]
    assert {id: classes(records) for id, records in found.items()} == {
        case: [LoggedReply(Action.TOOL_CALL, Action.TOOL_CALL)]
    }


# Accuracy, masking, slack


def test_masking_and_slack_come_from_the_same_cases(bench: Bench, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            f"result/m/{v4('miss_param')}": [
                row("miss_param", 0, [[ASK]]),
                row("miss_param", 1, [[CALL]]),
                row("miss_param", 2, [[CALL]]),
                row("miss_param", 3, [[CALL]]),
                row("miss_param", 4, "Error during inference: x"),
            ],
            f"score/m/{v4('miss_param', 'score')}": score_rows("miss_param", 5, 3, 4),
        },
    )
    figures = only(bench.document("score", "bfcl", tmp_path / "result"))
    assert figures["crosstab"] == {"hit_passed": 1, "hit_failed": 0, "miss_passed": 2, "miss_failed": 1}
    assert (figures["acc"]["hits"], figures["acc"]["of"]) == (3, 5)
    assert (figures["masking"], figures["slack"]) == (0.5, 0.0)
    assert figures["difference"]["estimate"] == -0.5
    assert figures["difference"]["method"] == "newcombe"
    passed = {record["id"][-1]: record.get("passed") for record in bench.records()}
    assert passed == {"0": True, "1": True, "2": True, "3": False, "4": None}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (score_rows("base", 3, 1), "graded 3 cases, the results hold 2"),
        (score_rows("base", 2, 7), "graded 2 cases, the results hold 2"),
        ([{"accuracy": 0.0, "correct_count": 0, "total_count": 2}], "names 0 of 2 failed cases"),
    ],
)
def test_a_score_file_of_other_cases_gives_no_verdict_of_a_case(
    bench: Bench, tmp_path: Path, rows: list[Json], reason: str
) -> None:
    write(tmp_path, {v4("base", "score"): rows})
    figures = result(bench, tmp_path, "base", *(row("base", n, [[CALL]]) for n in range(2)))
    assert figures["acc"] is not None
    assert figures["crosstab"] is None
    assert reason in figures["crosstab_reason"]


def test_a_limit_keeps_the_verdicts_of_the_cases_it_takes(bench: Bench, tmp_path: Path) -> None:
    write(tmp_path, {v4("base", "score"): score_rows("base", 4, 1, 3)})
    write(tmp_path, {v4("base"): [row("base", n, [[CALL]]) for n in range(4)]})
    figures = only(bench.document("score", "bfcl", tmp_path, "--limit", "2"))
    assert figures["crosstab"] == {"hit_passed": 1, "hit_failed": 1, "miss_passed": 0, "miss_failed": 0}


# Loops


def test_loops_are_counted_by_turn(bench: Bench, tmp_path: Path) -> None:
    again = [{"cd": '{"folder": "tmp", "deep": true}'}]
    reordered = [{"cd": '{"deep": true, "folder": "tmp"}'}]
    loops = result(
        bench,
        tmp_path,
        "base",
        row("base", 0, [[CALL, again, reordered, DONE], [CALL], [], [CALL * 2, DONE]]),
        row("base", 1, [[CALL] * 21]),
    )["loops"]
    counted = {
        name: (loops[name]["hits"], loops[name]["of"]) for name in loops if isinstance(loops[name], dict)
    }
    assert counted == {
        "calls_per_turn": (27, 5),
        "loop_at_2": (2, 5),
        "loop_at_3": (2, 5),
        "loop_at_5": (1, 5),
        "loop_at_10": (1, 5),
        "repeated_calls": (22, 27),
        "non_tool_final": (2, 4),
        "unparsable_calls": (0, 27),
        "required_turn_coverage": (4, 5),
        "max_step_hits": (1, 5),
    }
    assert loops["max_steps"] == 20
    assert loops["unreached_turns"] == 3
    for name in ("unknown_names", "schema_violations", "invalid_calls", "dialogue_exact_success"):
        assert loops[name] is None
        assert loops[f"{name}_reason"]


def test_a_call_in_the_turn_that_must_stay_empty_is_seen(bench: Bench, tmp_path: Path) -> None:
    # BFCL's miss_param entries 2 and 6 withhold the parameter at turns 0 and 3.
    loops = result(
        bench,
        tmp_path,
        "miss_param",
        row("miss_param", 2, [[CALL, ASK], [CALL], [CALL], [CALL], [CALL], [DONE]]),
        row("miss_param", 6, [[CALL], [CALL], [CALL], [ASK], [CALL], [CALL]]),
    )["loops"]
    assert (loops["empty_turn_no_call"]["hits"], loops["empty_turn_no_call"]["of"]) == (1, 2)
    assert (loops["required_turn_coverage"]["hits"], loops["required_turn_coverage"]["of"]) == (9, 10)


def test_names_and_schemas_are_checked_where_the_log_has_the_tools(bench: Bench, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"folder": {"type": "string"}}, "required": ["folder"]}
    tools = [{"type": "function", "function": {"name": "cd", "parameters": schema}}]
    step = [{"role": "inference_input", "content": {"message": "[]", "tools": tools}}]
    replies = [[{"cd": json.dumps(given)}] for given in ({"folder": "a"}, {"folder": 1}, {})]
    loops = result(
        bench,
        tmp_path,
        "base",
        row("base", 0, [[*replies, [{"fly": "{}"}]]], inference_log=[{f"step_{n}": step for n in range(4)}]),
    )["loops"]
    counted = {
        name: (loops[name]["hits"], loops[name]["of"]) for name in ("unknown_names", "schema_violations")
    }
    assert counted == {"unknown_names": (1, 4), "schema_violations": (2, 3)}
    assert (loops["invalid_calls"]["hits"], loops["invalid_calls"]["of"]) == (3, 4)


def test_scenarios_are_the_clusters_over_all_categories(bench: Bench, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            v4(name): [row(name, n, [[CALL] * (1 + n % 3), [CALL]]) for n in range(60)]
            for name in ("base", "miss_func")
        },
    )
    loops = bench.document("score", "bfcl", tmp_path)["models"][0]["all_categories"]["loops"]
    assert (loops["loop_at_3"]["n"], loops["loop_at_3"]["clusters"]) == (120, 60)
    assert loops["loop_at_3"]["method"] == "cluster bootstrap"


def test_the_turns_of_bfcl_are_known() -> None:
    assert turns_due("multi_turn_base", 0) == [True] * 4
    assert turns_due("multi_turn_miss_func", 0) == [True, True, False, True, True]
    assert turns_due("multi_turn_base", 180) == [True, True, True, False, False, True]
    assert turns_due("multi_turn_miss_param", 180) == [True, False, True, True, False, False, True]
    assert turns_due("multi_turn_base", 200) == []


# Docs


def test_the_docs_name_every_figure(bench: Bench, tmp_path: Path) -> None:
    document = bench.document("score", "bfcl", write(tmp_path, {v4("base"): [row("base", 0, [[CALL]])]}))
    (model,) = document["models"]
    names = set(model) | set(only(document)) | set(only(document)["loops"]) | set(only(document)["counts"])
    text = DOCS.read_text()
    for name in {name for name in names if not name.endswith("_reason")} - {"categories", "counts", "loops"}:
        word = "loop_at_K" if name.startswith("loop_at_") else name
        assert f"`{word}`" in text or f"*{word}*" in text, name


# The run folder, and bad input


def test_records_hold_what_each_case_came_to(bench: Bench, tmp_path: Path) -> None:
    result(bench, tmp_path, "miss_param", row("miss_param", 2, [[ASK], [CALL]]))
    (record,) = bench.records()
    assert record == {
        "key": f"{tmp_path.name}/multi_turn_miss_param_2",
        "model": tmp_path.name,
        "category": "multi_turn_miss_param",
        "id": "multi_turn_miss_param_2",
        "emissions": [["ask"], ["tool_call"]],
        "loops": {"calls_per_turn": 0.5, "loop_at_3": 0.0},
        "hit": True,
        "hit_published": True,
        "hit_at_gold_turn": True,
        "passed": None,
        "audit": {"B1a": 1, "B1b": 1, "B3": "n.a.", "B4": 1, "B5": 0},
    }
    plan = json.loads((bench.run / "run.json").read_text())["plan"]
    assert plan["command"] == "score bfcl"
    assert [Path(name).name for name in plan["data"]] == ["BFCL_v4_multi_turn_miss_param_result.json"]


def test_the_same_call_with_the_same_folder_gives_the_same_result(bench: Bench, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", {v4("base"): [row("base", n, [[CALL]]) for n in range(60)]})
    out = ("--out", tmp_path / "out")
    assert bench.text("score", "bfcl", folder, *out) == bench.text("score", "bfcl", folder, *out)
    write(folder, {v4("base"): [row("base", 0, [[DONE]])]})
    with pytest.raises(Shown, match="sha256 was"):
        bench.text("score", "bfcl", folder, *out)


@pytest.mark.parametrize(
    ("files", "path", "line"),
    [
        ({}, "gone", "gone: no such file or folder; give BFCL result files or folders"),
        (
            {"notes.txt": {}},
            ".",
            "no multi-turn result file of BFCL; give BFCL_v4_multi_turn_*_result.json files",
        ),
        ({"x.json": ["{", "{}"]}, "x.json", "x.json line 1: is not JSON; take the line out"),
        ({"x.json": ["[1]"]}, "x.json", "x.json line 1: is no JSON object"),
        (
            {"x.json": [{"id": "irrelevance_3", "result": ""}]},
            "x.json",
            'id "irrelevance_3" is none of multi_turn_base',
        ),
        ({"x.json": [{"result": ""}]}, "x.json", "a row without an id, so none of multi_turn_base"),
        (
            {v4("base"): [row("base", 0, [[]])], v4("base", "score"): [{"accuracy": 0.5}]},
            ".",
            "_score.json: its first line has no correct_count and total_count",
        ),
    ],
)
def test_bad_input_is_one_line(bench: Bench, tmp_path: Path, files: Json, path: str, line: str) -> None:
    write(tmp_path, files)
    with pytest.raises(Shown) as shown:
        bench.text("score", "bfcl", tmp_path / path)
    assert shown.value.code == 2
    assert line in shown.value.line
    assert shown.value.line.count("\n") == 1
