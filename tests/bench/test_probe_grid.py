"""`bench run bfcl --probe-grid`: what each arm does to ten cases is what the definitions say, gate by gate.

The cases are BFCL's, driven by its own code; a stand-in for the model plays a trajectory for each. The table
was worked out by hand from calibration.md section 6.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.bench.playing import ASK, CUT, DONE, REFUSE, Bfcl, Emission, Json, Model, served
from tests.bench.scoring import Bench

HALF, WHICH = "I have found it.", "Which of them do you mean?"
WILD: list[str] = ["look_it_up(name='x')"]
WRITTEN = '<tool_call>{"name": "cd", "arguments": {"folder": "Documents"}}</tool_call>'

PLAYS: Mapping[str, Sequence[Sequence[Emission]]] = {
    # What is done is done; optional parameters are no business of UR.
    "multi_turn_base_3": [[["find(path='.', name='test')"], DONE], [DONE]],
    # Halts before the work: to SRI's message it makes the call, and halts again in that turn.
    "multi_turn_base_9": [[HALF, DONE], [DONE], [DONE]],
    # Asks, in a case without a mark.
    "multi_turn_base_7": [[ASK], [DONE], [DONE]],
    # Asks where a parameter is missing, as is marked; to SRI's message it guesses.
    "multi_turn_miss_param_13": [[WHICH, DONE], [DONE], [DONE]],
    # Calls what is not offered, at the turn that is marked as one to stay empty.
    "multi_turn_miss_func_3": [[WILD, DONE], [DONE], [DONE]],
    # Calls what is not offered at two turns, none of them marked.
    "multi_turn_base_4": [[WILD, DONE], [WILD, DONE], [DONE]],
    # A value from a result, then one that stands nowhere.
    "multi_turn_base_11": [
        [["ls(a=True)"], ["cat(file_name='file1.txt')"], DONE],
        [["cat(file_name='invented.txt')"], DONE],
    ],
    # Calls what is not offered after tools were added.
    "multi_turn_miss_func_13": [[REFUSE], [WILD, DONE], [DONE]],
    # A call written as text, and a reply that was cut.
    "multi_turn_base_12": [[WRITTEN], [CUT], [DONE]],
    # Does nothing at all.
    "multi_turn_base_0": [[DONE], [DONE], [DONE], [DONE]],
}
AGAIN = {HALF: ["cd(folder='Documentation')"], WHICH: ["cd(folder='documents')"]}

ALWAYS = ("sri-v1", "sri-no-history", "sri-no-state", "sri-no-recon", "sri-lite")
GATE, MARKED = "sri-gate", "sri-gate-miss-param"
SRI_ORDER = ("sri-v1", "sri-no-history", "sri-no-state", "sri-no-recon", GATE, MARKED, "sri-lite")
SRI = (*ALWAYS, GATE, MARKED)
RETRY, BYPASS = "cri-retry", "cri-bypass"
CRI = (RETRY, BYPASS)

ASKS = "gated: the reply asks"
TURN = "gated: SRI has acted in this turn"
CASE = "gated: CRI has acted in this case"
NO_MARK = "gated: bypass acts only on a turn that the caller marks as one to stay empty"
GROWN = "gated: the tools have grown since the case began"
NONE = "no look"

TABLE: Mapping[str, Mapping[tuple[str, ...], Sequence[str]]] = {
    "multi_turn_base_3": {
        SRI: ["passed", "retried", "retried"],
        CRI: ["passed", "passed", "passed"],
    },
    "multi_turn_base_9": {
        SRI: ["retried", TURN, "retried", "retried"],
        CRI: ["passed", "passed", "passed"],
    },
    "multi_turn_base_7": {
        (*ALWAYS, MARKED): ["retried", "retried", "retried"],
        (GATE,): [ASKS, "retried", "retried"],
        CRI: ["passed", "passed", "passed"],
    },
    "multi_turn_miss_param_13": {
        ALWAYS: ["retried", TURN, "retried", "retried"],
        (GATE, MARKED): [ASKS, "retried", "retried"],
        CRI: ["passed", "passed", "passed"],
    },
    "multi_turn_miss_func_3": {
        SRI: ["passed", "retried", "retried", "retried"],
        (RETRY,): ["retried", "passed", "passed"],
        (BYPASS,): ["bypassed", "passed", "passed"],
    },
    "multi_turn_base_4": {
        SRI: ["passed", "retried", "passed", "retried", "retried"],
        (RETRY,): ["retried", CASE, "passed", "passed"],
        (BYPASS,): [NO_MARK, "passed", NO_MARK, "passed", "passed"],
    },
    "multi_turn_base_11": {
        SRI: ["passed", "passed", "retried", "passed", "retried"],
        (RETRY,): ["passed", "passed", "passed", "retried"],
        (BYPASS,): ["passed", "passed", "passed", NO_MARK, "passed"],
    },
    "multi_turn_miss_func_13": {
        SRI: ["retried", "passed", "retried", "retried"],
        CRI: ["passed", GROWN, "passed", "passed"],
    },
    "multi_turn_base_12": {
        SRI: ["passed", NONE, "retried"],
        CRI: ["passed", NONE, "passed"],
    },
    "multi_turn_base_0": {
        SRI: ["retried", "retried", "retried", "retried"],
        CRI: ["passed", "passed", "passed", "passed"],
    },
}
"""What each arm's probe comes to at each reply of a case."""


@pytest.mark.benchmarks
def test_ten_cases_through_the_ten_arms_come_to_the_table(bench: Bench, bfcl: Bfcl) -> None:
    plays = {bfcl.first(id): trajectory for id, trajectory in PLAYS.items()}
    assert len(plays) == len(PLAYS) == 10
    with served(Model(plays, again=AGAIN)) as model:
        ids = ",".join(PLAYS)
        document = bench.document("run", "bfcl", "--upstream", model.url, "--probe-grid", "--ids", ids)
    run = bench.run
    looks = _looks(run)
    expected = {
        (id, arm): list(came) for id, groups in TABLE.items() for arms, came in groups.items() for arm in arms
    }
    assert {key: came for key, came in looks.items() if key[1] != "off"} == expected
    assert {came for (_, arm), all in looks.items() if arm == "off" for came in all} == {NONE}

    # Recall of what was served, of what the probe saw first, and of either: the guess lost an ASK, and taking
    # a wild call back won a REFUSE.
    recall = {
        (model["model"], each["category"]): tuple(
            each[name]["hits"] for name in ("gar", "gar_before", "gar_either")
        )
        for model in document["models"]
        for each in model["categories"]
    }
    param, func = "multi_turn_miss_param", "multi_turn_miss_func"
    assert {recall[arm, param] for arm in ("off", GATE, MARKED, *CRI)} == {(1, 1, 1)}
    assert {recall[arm, param] for arm in ALWAYS} == {(0, 1, 1)}
    assert {recall[arm, func] for arm in ("off", *SRI)} == {(1, 1, 1)}
    assert {recall[arm, func] for arm in CRI} == {(2, 1, 2)}
    assert document["probes"]["cri-bypass"]["moved"] == {"tool_call → refuse": 1}
    assert {each["counts"]["run"] for model in document["models"] for each in model["categories"]} == {
        1,
        2,
        7,
    }

    assert (run / "report.html").read_text().count("<details class=") == 100
    compared = bench.document("compare", run)
    assert [system["name"] for system in compared["systems"]] == ["off", *SRI_ORDER, *CRI]


def _looks(run: Path) -> dict[tuple[str, str], list[str]]:
    """By case and arm what came of the look at each reply; of gates also which one."""
    log = (run / "proxy-1" / "decisions.jsonl").read_text().splitlines()
    found: dict[tuple[str, str], list[str]] = {}
    for record in sorted(map(json.loads, log), key=lambda each: str(each["time"])):
        id, arm, _ = record["case_id"].split("/")
        found.setdefault((id, arm), []).append(_look(record))
    return found


def _look(record: Json) -> str:
    if not record["probes"]:
        return NONE
    (look,) = record["probes"]
    if look["outcome"] != "gated":
        return str(look["outcome"])
    return f"gated: {look['why'].partition(' (')[0]}"
