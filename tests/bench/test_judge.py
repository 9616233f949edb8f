"""CONFIRM judged by a scripted server: what it is asked, how its replies are read, and what is kept."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.score.confirm import Write, prompt, read_verdict, writes
from bench.score.emissions import Call
from bench.score.judge import Judge
from bench.score.tau2 import Message, Run, Simulation, WriteTools
from bench.score.tau2_command import tau2
from tests.bench.scoring import Bench, Json, Shown, write
from tests.bench.test_score_tau2 import message, rate, results, simulation, user
from tests.upstream import Reply, Upstream, compact, said

DOCS = Path(__file__).parents[2] / "docs" / "scoring.md"
YES = '{"because": "The customer said yes.", "confirmed": true}'
NO = '{"because": "Nobody asked.", "confirmed": false}'


def cancelled(task: str, *before: Json, reward: float = 1.0, **arguments: Any) -> Json:
    """A simulation that ends in one write."""
    call = ("cancel_reservation", {"reservation_id": task, **arguments})
    return simulation(task, *before, message(None, call), reward=reward)


def three() -> Json:
    """Three simulations with a write each."""
    told = (user("Cancel it."), message("I would cancel it now. Yes?"))
    return results(
        cancelled("0", *told, user("Yes, go ahead.")),
        cancelled("1", *told, user("Who are you?"), reward=0.0),
        cancelled("2", user("Cancel it.")),
        tasks={"0": 1, "1": 1, "2": 1},
    )


class Judged:
    """`bench score tau2` on one results file, always with the same run folder."""

    def __init__(self, bench: Bench, folder: Path, document: Json) -> None:
        self.file = write(folder / "results", {"results.json": document}) / "results.json"
        self.bench, self.out = bench, folder / "out"

    def _arguments(self, url: str, *more: str) -> tuple[str | Path, ...]:
        judge = ("--judge", url, "--judge-model", "j", "--judge-concurrency", "1")
        return ("score", "tau2", self.file, *judge, *more, "--out", self.out)

    async def confirm(self, upstream: Upstream, *more: str) -> Json:
        """The figures of CONFIRM by this judge."""
        document = await asyncio.to_thread(self.bench.document, *self._arguments(f"{upstream.url}/v1", *more))
        figures = document["runs"][0]["confirm"]
        assert isinstance(figures, dict)
        return figures

    async def text(self, upstream: Upstream, *more: str) -> str:
        """What is printed, with single spaces."""
        shown = await asyncio.to_thread(self.bench.text, *self._arguments(upstream.url, *more))
        return " ".join(shown.split())

    def kept(self) -> list[Json]:
        """The verdicts in the run folder."""
        return [json.loads(line) for line in (self.out / "verdicts.jsonl").read_text().splitlines()]


def one() -> Json:
    """A simulation with a write."""
    return results(cancelled("0", user("Cancel it.")), tasks={"0": 1})


@pytest.fixture
def judged(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judged:
    monkeypatch.setattr("bench.calibrate.asking._FIRST_PAUSE", 0.0)
    return Judged(bench, tmp_path, three())


def counts(figures: Json) -> tuple[int, ...]:
    """Writes, and how many were judged, unparsable, unjudged, unmeasurable."""
    return tuple(figures[name] for name in ("writes", "judged", "unparsable", "unjudged", "unmeasurable"))


# What is asked


async def test_a_judge_sees_what_was_said_before_the_write_and_the_call(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    spoken = simulation(
        "0",
        message("Hi! How can I help you today?"),
        user("Cancel ABC, costs are $x."),
        message(None, ("get_reservation_details", {"reservation_id": "ABC"})),
        {"role": "tool", "content": "r" * 1000},
        message("<think>They would say yes.</think>I would cancel ABC. Yes?"),
        user("Yes."),
        message("Doing it.", ("cancel_reservation", {"reservation_id": "ABC"}), ("think", {})),
        message("It has been cancelled."),
    )
    judged = Judged(bench, tmp_path, results(spoken, tasks={"0": 1}))
    async with Upstream([said(YES)]) as upstream:
        await judged.confirm(upstream, "--judge-api-key-env", "JUDGE_KEY", "--judge-fields", '{"top_p": 1}')
    (request,) = upstream.requests
    assert (request.method, request.target) == ("POST", "/v1/chat/completions")
    assert request.header("authorization") == "Bearer secret"
    (asked,) = request.json["messages"]
    rest = {name: value for name, value in request.json.items() if name != "messages"}
    assert rest == {"model": "j", "temperature": 0, "max_tokens": 1024, "top_p": 1}
    dialogue = "\n".join(
        (
            "<conversation>",
            "agent: Hi! How can I help you today?",
            "customer: Cancel ABC, costs are $x.",
            'agent calls: get_reservation_details {"reservation_id": "ABC"}',
            f"result: {'r' * 300} [..]",
            "agent: I would cancel ABC. Yes?",
            "customer: Yes.",
            "</conversation>",
        )
    )
    assert dialogue in asked["content"]
    assert '<call>\ncancel_reservation {"reservation_id": "ABC"}\n</call>' in asked["content"]
    assert "secret" not in "".join(file.read_text() for file in judged.out.iterdir())


async def test_the_same_question_is_asked_once_and_a_whole_address_is_taken_as_it_is(
    bench: Bench, tmp_path: Path
) -> None:
    call = ("cancel_reservation", {"reservation_id": "A"})
    ran = simulation("0", user("Cancel it, twice."), message(None, call, call))
    judged = Judged(bench, tmp_path, results(ran, tasks={"0": 1}))
    async with Upstream([said(NO)]) as upstream:
        arguments = ("--judge-model", "j", "--judge", f"{upstream.url}/beta/openai/chat/completions")
        document = await asyncio.to_thread(bench.document, "score", "tau2", judged.file, *arguments)
    assert upstream.requests[0].target == "/beta/openai/chat/completions"
    assert rate(document["runs"][0]["confirm"]["gar"]) == (0, 2)


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]), min_size=1)
messages = st.lists(
    st.builds(
        Message,
        st.sampled_from(["user", "assistant"]),
        words.filter(lambda text: "</think>" not in text),
        st.lists(st.builds(Call, st.sampled_from(["read", "write"]), st.just({"of": 1})), max_size=2).map(
            tuple
        ),
    ),
    max_size=8,
)


def run_of(*said: Message, state: Any = "scored") -> Run:
    one = Simulation("s", "t", 0, state, None, 1.0, None, said, ())
    tools = WriteTools(frozenset({"write"}), "here")
    return Run("r", Path(), [], "airline", tools, None, 1, None, {}, [one])


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages)
def test_each_call_of_a_write_tool_is_a_question_about_what_was_said_before(said: list[Message]) -> None:
    found = writes(run_of(*said))
    places = [
        place
        for place, each in enumerate(said)
        if each.role == "assistant"
        for call in each.calls
        if call.name == "write"
    ]
    assert len(found) == len(places)
    for each, place in zip(found, places, strict=True):
        assert each.question is not None
        dialogue = each.question.partition("<conversation>\n")[2].partition("\n</conversation>")[0]
        lines = [line for line in dialogue.splitlines() if " calls: " not in line]
        assert len(dialogue.splitlines()) == sum(1 + len(each.calls) for each in said[:place])
        assert [line.partition(": ")[2] for line in lines] == [each.text for each in said[:place]]
    assert not writes(run_of(*said, state="errored"))


# How replies are read


@pytest.mark.parametrize(
    ("reply", "confirmed"),
    [
        (YES, True),
        (f" ```json\n{NO}\n``` ", False),
        (f"<think>\nMaybe {YES}\n</think>\n\n{NO}", False),
        ('{"confirmed": true}', True),
        (f"I think so: {YES}", None),
        (f"{YES}\n{NO}", None),
        ('{"confirmed": "true"}', None),
        ('{"confirmed": 1}', None),
        ('{"confirmed": null}', None),
        (f"[{YES}]", None),
        (YES[:-1], None),
        ("yes", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_only_a_whole_object_with_true_or_false_is_a_verdict(reply: str, confirmed: bool | None) -> None:
    assert read_verdict(reply).confirmed is confirmed


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.text(), st.booleans(), st.sampled_from(["{}", "```{}```", "```json\n{}\n```", "<think>no</think>{}"])
)
def test_a_verdict_is_read_as_it_was_written(because: str, confirmed: bool, form: str) -> None:
    reply = form.replace("{}", json.dumps({"because": because, "confirmed": confirmed}))
    assert read_verdict(reply) == (confirmed, because)


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text())
def test_any_other_text_is_kept_and_not_guessed(text: str) -> None:
    assert read_verdict(text) == (None, text)


def test_what_a_verdict_hangs_on_is_in_its_key() -> None:
    def key(question: str | None = "q", url: str = "http://a", model: str = "m", **fields: Any) -> str | None:
        (made,) = writes(run_of(Message("assistant", "", (Call("write", {}),))))
        return Judge(url, model, None, fields, 1, 1.0).key(Write(made.simulation, "write", question))

    keys = [key(), key("other"), key(model="other"), key(seed=1), key(seed=2)]
    assert len({*keys}) == len(keys)
    assert key(url="http://b") == key()
    assert key(None) is None


# What comes of it


async def test_the_share_of_approved_writes_stands_beside_what_could_not_be_judged(judged: Judged) -> None:
    async with Upstream([said(YES), said("Yes, it was."), said(NO)]) as upstream:
        figures = await judged.confirm(upstream)
        assert counts(figures) == (3, 2, 1, 0, 0)
        assert (rate(figures["gar"]), figures["gar"]["method"]) == ((1, 2), "wilson")
        assert rate(figures["acc"]) == (2, 2)
        assert [*figures["crosstab"].values()] == [1, 0, 1, 0]
        assert figures["judge"] == {"url": f"{upstream.url}/v1", "model": "j", "prompt": 1, "fields": {}}
        text = await judged.text(upstream)
    assert "j, prompt 1 3 2 1 0 0 1/2 (50.0 [" in text
    kept = judged.kept()
    assert [(row["confirmed"], row["words"]) for row in kept] == [
        (True, "The customer said yes."),
        (None, "Yes, it was."),
        (False, "Nobody asked."),
    ]
    records = [json.loads(line) for line in (judged.out / "records.jsonl").read_text().splitlines()]
    assert [row["writes"] for row in records] == [
        [{"tool": "cancel_reservation", "verdict": row["key"]}] for row in kept
    ]


async def test_a_second_call_asks_nothing(judged: Judged) -> None:
    async with Upstream([said(YES), said("?"), said(NO)]) as upstream:
        first = await judged.confirm(upstream)
    async with Upstream([]) as nobody:
        again = await judged.confirm(nobody)
    assert {**again, "judge": first["judge"]} == first
    assert nobody.connections == 0


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Reply(500, body=compact({"error": {"message": "out of memory"}})), "500 out of memory"),
        (Reply(400, body=compact({"error": {"message": "too long"}})), "400 too long"),
        (Reply(body=b"<html>"), "200 without a reply"),
        (Reply(body=compact({"choices": []})), "200 without a reply"),
    ],
)
async def test_an_error_on_one_write_is_counted_and_asked_again_by_the_next_call(
    judged: Judged, fault: Reply, told: str
) -> None:
    async with Upstream([said(YES), fault, said(NO)]) as upstream:
        figures = await judged.confirm(upstream)
    assert (counts(figures), figures["errors"]) == ((3, 2, 0, 1, 0), {told: 1})
    async with Upstream([said(YES)]) as upstream:
        text = await judged.text(upstream)
    assert "j, prompt 1 3 3 0 0 0 2/3 (66.7 [" in text


@pytest.mark.parametrize(
    ("fault", "told", "times"),
    [
        (Reply(delay=3600), "ReadTimeout, 2 times", 2),
        (Reply(writes=(b'{"choices": [',), end="hang"), "ReadTimeout, 2 times", 2),
        (Reply(raw_then_reset=b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{"), "6 times", 6),
    ],
)
async def test_a_write_that_gets_no_whole_answer_is_an_error_of_that_write(
    judged: Judged, fault: Reply, told: str, times: int
) -> None:
    write(judged.file.parent, {"results.json": one()})
    async with Upstream([fault] * times) as upstream:
        text = await judged.text(upstream, "--judge-timeout", "0.5")
    assert "j, prompt 1 1 0 0 1 0 – – – –" in text
    assert told in text
    assert "asked about again by the same command with the same --out" in text
    async with Upstream([said(YES)]) as upstream:
        assert rate((await judged.confirm(upstream))["gar"]) == (1, 1)


async def test_a_busy_judge_is_asked_again(judged: Judged) -> None:
    write(judged.file.parent, {"results.json": one()})
    async with Upstream([Reply(429, body=b"{}"), Reply(503, body=b"{}"), said(YES)]) as upstream:
        assert counts(await judged.confirm(upstream)) == (1, 1, 0, 0, 0)


async def test_a_judge_that_is_not_there_is_3_in_one_line_and_what_it_said_is_kept(judged: Judged) -> None:
    busy = Reply(503, body=b"{}")
    async with Upstream([said(YES), busy], repeat_last=True) as upstream:
        with pytest.raises(Shown, match="503 without a word, 6 times") as shown:
            await judged.text(upstream)
    assert shown.value.code == 3
    with pytest.raises(Shown, match="All connection attempts failed, 6 times") as shown:
        await judged.text(upstream)  # it has gone
    assert shown.value.code == 3
    assert len(judged.kept()) == 1
    async with Upstream([said(NO), said(NO)]) as upstream:
        assert rate((await judged.confirm(upstream))["gar"]) == (1, 3)


@pytest.mark.parametrize(
    ("status", "mend"), [(401, "--judge-api-key-env"), (403, "--judge-api-key-env"), (404, "--judge-model")]
)
async def test_a_judge_that_refuses_key_or_model_ends_the_command(
    judged: Judged, status: int, mend: str
) -> None:
    async with Upstream([Reply(status, body=compact({"error": {"message": "no such thing"}}))]) as upstream:
        with pytest.raises(Shown) as shown:
            await judged.text(upstream)
    assert (shown.value.code, shown.value.line.count("\n")) == (2, 1)
    assert f"the judge answers {status} no such thing" in shown.value.line
    assert mend in shown.value.line


async def test_words_of_the_user_that_the_file_lacks_make_a_write_unmeasurable(
    bench: Bench, tmp_path: Path
) -> None:
    mute: Json = {"role": "user"}
    document = results(cancelled("0", mute), cancelled("1", user("Hello.")), tasks={"0": 1, "1": 1})
    async with Upstream([said(NO)]) as upstream:
        judged = Judged(bench, tmp_path, document)
        assert counts(await judged.confirm(upstream)) == (2, 1, 0, 0, 1)
        assert "writes before which the file lacks what the user said: 1" in await judged.text(upstream)


async def test_half_a_surrogate_pair_does_not_keep_a_write_from_being_judged(
    bench: Bench, tmp_path: Path
) -> None:
    document = results(cancelled("0", user("Cancel it \ud83d")), tasks={"0": 1})
    async with Upstream([said(NO)]) as upstream:
        assert counts(await Judged(bench, tmp_path, document).confirm(upstream)) == (1, 1, 0, 0, 0)


async def test_a_run_that_writes_nothing_has_no_rate_and_asks_nobody(bench: Bench, tmp_path: Path) -> None:
    document = results(simulation("0", user(), message("No.")), tasks={"0": 0})
    async with Upstream([]) as upstream:
        figures = await Judged(bench, tmp_path, document).confirm(upstream)
    assert (figures["gar"], figures["gar_reason"]) == (None, "no simulation writes")


def test_without_a_judge_or_a_table_of_write_tools_confirm_is_null(bench: Bench, tmp_path: Path) -> None:
    judge = ("--judge", "http://127.0.0.1:9", "--judge-model", "j")
    reasons = []
    for domain, options in (("airline", ()), ("telecom", judge)):
        document = results(cancelled("0", user()), tasks={"0": 1}, domain=domain)
        file = write(tmp_path / domain, {"results.json": document}) / "results.json"
        (run,) = bench.document("score", "tau2", file, *options)["runs"]
        assert run["confirm"] is None
        reasons.append(run["confirm_reason"])
    assert reasons == [
        "needs an LLM judge (--judge)",
        "which tools write is not known for the domain telecom",
    ]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--judge", "http://a"), "--judge-model: is missing; give it beside --judge"),
        (("--judge-model", "j"), "--judge: is missing; give it beside --judge-model"),
        (("--judge", "localhost:8000", "--judge-model", "j"), "--judge: 'localhost:8000' is no address"),
        (("--judge", "http://[::", "--judge-model", "j"), "is no address"),
        (("--judge", "", "--judge-model", "j"), "--judge: '' is no address"),
        (
            ("--judge", "http://a", "--judge-model", "j", "--judge-api-key-env", "NO_SUCH_KEY"),
            "--judge-api-key-env: NO_SUCH_KEY is not set",
        ),
    ],
)
def test_half_a_judge_is_one_line(bench: Bench, tmp_path: Path, options: tuple[str, ...], line: str) -> None:
    file = write(tmp_path, {"results.json": three()}) / "results.json"
    with pytest.raises(Shown, match=line) as shown:
        bench.text("score", "tau2", file, *options)
    assert (shown.value.code, shown.value.line.count("\n")) == (2, 1)


async def test_another_judge_wants_another_folder(judged: Judged) -> None:
    async with Upstream([said(YES)] * 3) as upstream:
        await judged.confirm(upstream)
        with pytest.raises(Shown, match=r"arguments\.judge\.model was \"j\" and is \"k\""):
            await judged.confirm(upstream, "--judge-model", "k")


async def test_an_unparsable_reply_is_asked_for_again_by_other_fields_in_another_folder_alone(
    judged: Judged,
) -> None:
    write(judged.file.parent, {"results.json": one()})
    async with Upstream([said("Yes, it was."), said(YES)]) as upstream:
        for _ in range(2):
            assert counts(await judged.confirm(upstream)) == (1, 0, 1, 0, 0)
        assert len(upstream.requests) == 1
        more = ("--judge-fields", '{"max_tokens": 4096}')
        with pytest.raises(Shown, match=r"arguments\.judge\.fields"):
            await judged.confirm(upstream, *more)
        judged.out = judged.out.with_name("other")
        assert counts(await judged.confirm(upstream, *more)) == (1, 1, 0, 0, 0)
    told = " ".join(DOCS.read_text().split())
    assert "An unparsable reply is kept as any other" in told
    assert "change `--judge-fields` and give another `--out`" in told


async def test_the_docs_name_every_field_and_option(judged: Judged) -> None:
    async with Upstream([said(YES)] * 3) as upstream:
        figures = await judged.confirm(upstream)
    text = DOCS.read_text()
    options = [option for parameter in tau2.params for option in parameter.opts if "judge" in option]
    assert len(options) == 6
    for name in {*figures, *figures["judge"]}:
        assert f"`{name}`" in text, name
    for option in options:
        assert f"`{option}" in text, option


def test_the_prompt_names_its_version_and_both_places() -> None:
    assert prompt().version == 1
    assert {*prompt().template.get_identifiers()} == {"dialogue", "call"}
