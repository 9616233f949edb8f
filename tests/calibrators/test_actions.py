import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from calibrators.actions import Action, Cues, is_call_text, reply_action, text_action, text_labels
from calibrators.reply import Reply

SOURCE = resources.files("calibrators").joinpath("data/published_cues.yaml").read_text("utf-8")
LISTS: dict[str, list[str]] = yaml.safe_load(SOURCE)["bfcl"]
CUES = [cue for cues in LISTS.values() for cue in cues]
TAU2: dict[str, Any] = yaml.safe_load(SOURCE)["tau2"]
VERBS: list[str] = TAU2["confirm_verbs"]["participles"]
DONE = [
    *(f"{have} been {verb}" for have in ("has", "have") for verb in (*VERBS, "completed")),
    *(f"i've {verb}" for verb in VERBS),
    *(f"i have {verb}" for verb in VERBS if verb not in ("added", "changed")),
    *TAU2["confirm_adds"],
]


def published(text: str) -> Action:
    """The published cascade written out: refuse, then a question mark or ask, then confirm, else other."""
    for typographic in "‘’‚‛´ʼ":
        text = text.replace(typographic, "'")
    for typographic in "“”„‟":
        text = text.replace(typographic, '"')
    text = text.lower()
    if any(cue in text for cue in LISTS["refuse"]):
        return Action.REFUSE
    if "?" in text or any(cue in text for cue in LISTS["ask"]):
        return Action.ASK
    if any(cue in text for cue in LISTS["confirm"]):
        return Action.CONFIRM
    return Action.OTHER


def published_labels(text: str) -> set[Action]:
    """The published detector for tau2 written out; each class on its own, REFUSE only without an ask."""
    for typographic in "‘’‚‛´ʼ":
        text = text.replace(typographic, "'")
    text = text.lower()
    sentences = [part for whole in text.split(".") for part in whole.split("!")]
    asks = any(cue in text for cue in (*LISTS["ask"], *TAU2["ask_adds"])) or any(
        "?" in sentence and not any(greeting in sentence for greeting in TAU2["greeting"])
        for sentence in sentences
    )
    found = {Action.ASK} if asks else set()
    if not asks and any(cue in text for cue in LISTS["refuse"]):
        found.add(Action.REFUSE)
    if any(cue in text for cue in DONE):
        found.add(Action.CONFIRM)
    return found


ALL_CUES = [*CUES, *TAU2["ask_adds"], *TAU2["greeting"], *DONE]
pieces = st.sampled_from(
    [*ALL_CUES, *(cue.upper() for cue in CUES), *(cue.replace("'", "’") for cue in CUES), *"?.!"]
)
prose = st.lists(pieces | st.text(max_size=8), max_size=6).map(" ".join)


@given(prose.filter(lambda text: text.strip() and not is_call_text(text)))
def test_a_text_has_the_class_of_the_published_lists(text: str) -> None:
    assert text_action(text, Cues.PUBLISHED) == published(text)


@given(prose.filter(lambda text: text.strip() and not is_call_text(text)))
def test_a_text_has_the_labels_of_the_published_lists(text: str) -> None:
    assert text_labels(text, Cues.PUBLISHED) == published_labels(text)


def when2call() -> list[str]:
    lines = (Path(__file__).parents[1] / "data" / "when2call_dev.jsonl").read_text("utf-8").splitlines()
    return [text for line in lines for text in json.loads(line)["answers"].values()]


def test_the_published_lists_read_real_replies_as_published() -> None:
    texts = when2call()
    assert len(texts) == 471
    assert [text for text in texts if text_action(text, Cues.PUBLISHED) != published(text)] == []
    assert [text for text in texts if text_labels(text, Cues.PUBLISHED) != published_labels(text)] == []


def test_the_published_detector_reads_the_words_of_a_call_too() -> None:
    call = '{"name": "ask", "arguments": {"text": "Which one?"}}'
    assert text_labels(call, Cues.PUBLISHED) == {Action.TOOL_CALL, Action.ASK}
    assert text_action(call, Cues.PUBLISHED) is Action.TOOL_CALL


@pytest.mark.parametrize("cue", CUES)
def test_every_published_cue_decides_on_its_own(cue: str) -> None:
    assert text_action(f"Well, {cue} then.", Cues.PUBLISHED) == published(cue)


brackets = st.lists(st.sampled_from([*"[]{}()\"',:=-+*#\\ \n", "f", "1", "name", "```", "<tool_call>"])).map(
    "".join
)


@given(st.text() | brackets | brackets.map(lambda text: f"[f({text})]"))
@example("[" * 900 + "]" * 900)
@example("[" + "-" * 15_000 + "1]")
@example("[f(" + "(" * 5_000 + ")" * 5_000 + ")]")
@example("[f(x=" + "1+" * 9_000 + "1)]")
@example("[" + "f()," * 4_000 + "g(]")
@example('{"name": "f", "arguments": ' + "[" * 900 + "]" * 900 + "}")
@example("[f('\0')]")
@example('["\\d"]')
@example("{" * 100_000)
@example("```" * 10_000)
def test_no_text_is_too_odd_to_be_classified(text: str) -> None:
    assert text_action(text) in (*Action, None)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "ship", "arguments": {}}\n</tool_call>',
        "<tool_call> and then it broke",
        '{"name": "ship", "arguments": {"id": "A7"}}',
        '{"type": "function", "name": "ship", "parameters": {}}',
        '[{"name": "ship", "arguments": {}}, {"name": "list", "parameters": {}}]',
        "{'name': 'ship', 'arguments': {'fast': True}}",
        "[ship(order_id='A7', speed='air')]",
        "[ship(), fleet.list(limit=2)]",
        '```json\n{"name": "ship", "arguments": {}}\n```',
        "```python\n[ship(id=1)]\n```",
        '  \n{"name": "ship", "arguments": "{}"}\n',
    ],
)
def test_a_whole_text_in_a_wire_form_is_a_call(text: str) -> None:
    assert text_action(text) is Action.TOOL_CALL


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "parcel-ui", "version": "2.1.0"}',
        '[{"name": "Ada", "age": 36}]',
        'I will call it: {"name": "ship", "arguments": {}}',
        'Here it is:\n```json\n{"name": "ship", "arguments": {}}\n```',
        "[1, 2, 3]",
        "[]",
        "{}",
        "[see the manual](https://files.example/m)",
        "[ship(id=1) or list()]",
        '{"name": 7, "arguments": {}}',
    ],
)
def test_data_and_talk_about_calls_are_no_calls(text: str) -> None:
    assert not is_call_text(text)


def whole(message: dict[str, Any], finish_reason: str = "stop", status: int = 200) -> Reply:
    reply = Reply(status)
    reply.add({"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]})
    reply.ended = True
    return reply


CALL = {"id": "a", "function": {"name": "ship", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        (whole({"content": "It is noon."}), Action.OTHER),
        (whole({"content": "I can’t.", "tool_calls": [CALL]}), Action.TOOL_CALL),
        (whole({"content": None, "tool_calls": [CALL]}, "length"), Action.TOOL_CALL),
        (whole({"content": "I can't", "tool_calls": []}, "length"), None),
        (whole({"content": "I can't"}, "content_filter"), None),
        (whole({"content": " \n"}), None),
        (whole({"content": None, "reasoning": "I can't. Which one?"}), None),
        (whole({"content": "I can't."}, status=500), None),
        (whole({"content": None, "refusal": "I can't do that."}), Action.REFUSE),
    ],
)
def test_the_class_comes_from_calls_and_text_of_a_complete_reply(reply: Reply, action: Action | None) -> None:
    assert reply_action(reply, reply.first) == action


def test_a_reply_that_has_not_ended_has_no_class() -> None:
    reply = Reply(200)
    reply.add({"choices": [{"index": 0, "delta": {"content": "I can't"}}]})
    assert reply_action(reply, reply.first) is None
    reply.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    assert reply_action(reply, reply.first) is Action.REFUSE


def test_a_reply_that_could_not_be_read_has_no_class() -> None:
    reply = whole({"content": "It is noon."})
    reply.readable = False
    assert reply_action(reply, reply.first) is None


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"message": "Which city do you mean?"}', Action.ASK),
        ('{"message": "Here you are.", "next": {"questions": ["What is your user ID?"]}}', Action.ASK),
        ('{"temperature": 21, "unit": "C"}', Action.OTHER),
        ('{"message": "I can not', Action.OTHER),
    ],
)
def test_a_reply_written_as_a_json_object_says_what_its_strings_say(text: str, action: Action) -> None:
    assert text_action(text) is action


def test_the_published_lists_are_shipped_with_their_notice() -> None:
    assert "Apache License 2.0" in SOURCE
    assert json.dumps(LISTS)


CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "cases/classify.json").read_text("utf-8")
)


@pytest.mark.parametrize(
    "run", [pytest.param(run, id=f"{case['id']}-{run['run']}") for case in CASES for run in case["runs"]]
)
def test_texts_from_public_bug_reports_have_their_class(run: dict[str, Any]) -> None:
    check = run["check"]
    assert text_action(run["text"]) in check.get("class_in", [check.get("class")])
