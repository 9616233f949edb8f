from dataclasses import dataclass, replace

import pytest

from calibrators.case import History
from calibrators.cri import Cri
from calibrators.flow import Ask, Flow, Query, Report, Role, at_once, calibrated, first_event, whole
from calibrators.probes import Seat
from calibrators.reply import Reply
from calibrators.skip import Skip
from calibrators.sri import Sri
from tests.calibrators.playing import play, refused, request, said


@dataclass(frozen=True, slots=True)
class Adds:
    """A calibrator of somebody's own, written against the public interface."""

    name: str

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        report.applied[self.name] = "on"
        return (yield from ask(query.with_body(query.body.with_json(**{self.name: True}))))


@dataclass(frozen=True, slots=True)
class AsksTwice:
    """A probe: looks at the whole reply and asks once more."""

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        yield from ask(query.until(whole))
        again = replace(query, body=query.body.with_json(again=True), role=Role.SRI)
        return (yield from ask(again))


def test_a_request_without_calibrators_is_asked_as_it_came() -> None:
    asked, reply = request(), said()
    played = play(asked, [], reply)
    assert played.served is reply
    assert [query.body for query in played.queries] == [asked]
    assert played.queries[0].settled is at_once
    assert played.report.header() == "none"


def test_a_second_query_of_a_probe_carries_what_is_inside_it() -> None:
    played = play(request(), [Adds("bias"), AsksTwice()], said(), said())
    assert [query.role for query in played.queries] == [Role.FIRST, Role.SRI]
    assert all(played.sent(number)["bias"] for number in (0, 1))
    assert "again" not in played.sent(0)
    assert played.sent(1)["again"]


def test_the_reply_served_is_the_last_one_asked_for() -> None:
    second = said("Second.")
    assert play(request(), [AsksTwice()], said("First."), second).served is second


@pytest.mark.parametrize("no", [refused(), refused(status=422), refused(status=200)])
def test_what_the_server_refuses_of_ours_is_asked_again_without_it(no: Reply) -> None:
    asked, good = request(), said()
    played = play(asked, [Adds("odd")], no, good)
    assert played.served is good
    assert played.queries[1].body is asked
    assert played.report.header() == "none; reason=the upstream refused what was added: out of vocabulary"


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_errors_that_are_not_about_our_addition_are_served_at_once(status: int) -> None:
    no = refused(status=status)
    assert play(request(), [Adds("odd")], no).served is no


def test_an_overloaded_server_is_not_asked_again_where_it_says_so_inside_a_stream() -> None:
    overloaded = Reply(200)
    overloaded.add({"error": {"message": "overloaded", "code": 503}})
    assert play(request(), [Adds("odd")], overloaded).served is overloaded


def test_a_refusal_of_what_the_client_sent_itself_is_served() -> None:
    no = refused("unknown field")
    assert play(request(), [], no).served is no
    twice = play(request(), [Adds("odd")], refused("unknown field"), no)
    assert twice.served is no


def test_a_query_is_held_until_all_who_asked_for_it_are_content() -> None:
    query = Query(request(), request().fields).until(first_event).until(whole)
    begun = Reply(200)
    begun.add({"choices": [{"index": 0, "delta": {"content": "It"}}]})
    assert first_event(begun)
    assert not query.settled(begun)
    begun.ended = True
    assert query.settled(begun)


def test_the_report_says_what_acted_and_what_did_not() -> None:
    report = Report()
    report.applied["bias"] = "-1.5/processor"
    report.skipped["sri"] = Skip("tools", "no tools offered")
    assert report.header() == "bias=-1.5/processor; sri=none (no tools offered)"


def test_the_report_names_every_reason_where_nothing_acted() -> None:
    report = Report(skipped={"bias": Skip("a", "the bias is 0"), "sri": Skip("b", "no tools offered")})
    assert report.header() == "none; reason=the bias is 0, no tools offered"


def test_a_refusal_of_what_was_added_leaves_the_clients_own_query_however_few_may_be_made() -> None:
    asked, good = request(), said()
    report = Report(most=1)
    flow = calibrated(Query(asked, asked.fields), [Adds("odd")], report)
    next(flow)
    assert flow.send(refused()).body is asked
    with pytest.raises(StopIteration) as stop:
        flow.send(good)
    assert stop.value.value is good


def test_a_probe_adds_nothing_to_a_server_that_has_refused_what_was_added() -> None:
    asked, good = request(messages=[]), said()
    seat = Seat(History({}))
    played = play(asked, [Adds("odd"), Sri(seat), Cri(seat)], refused(), good)
    assert played.served is good
    assert {name: why.code for name, why in played.report.skipped.items()} == {
        "sri": "refused",
        "cri": "refused",
    }
