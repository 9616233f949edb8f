import re
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from calibrators.sse import Event, Splitter

# Everything that may stand in a stream, in pieces small enough to meet each other in every order.
FIELDS = [b"data: ", b"data:", b":", b": beat", b"event: e", b"id"]
PIECES = [*FIELDS, b"x", b"{}", b"[DONE]", "☂".encode(), b" ", b"\n", b"\r", b"\r\n"]
streams = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)


def written_out(stream: bytes) -> list[bytes]:
    """The data of each event by the letter of the standard: lines first, then blank lines."""
    blocks = re.split(b"\n\n", re.sub(b"\r\n|\r", b"\n", stream))
    lines = [[line[5:] for line in block.split(b"\n") if line[:5] == b"data:"] for block in blocks]
    return [b"\n".join(line.removeprefix(b" ") for line in data) for data in lines if data]


def read(stream: bytes, cuts: list[int]) -> tuple[list[bytes], bytes]:
    """The data and all bytes of the events, where the stream comes cut at these places."""
    splitter = Splitter()
    events: list[Event] = []
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        events += splitter.feed(stream[start:end])
    rest = splitter.flush()
    events += [rest] if rest else []
    return [e.data for e in events if e.data is not None], b"".join(e.raw for e in events)


@given(streams, st.lists(st.integers(0, 120), max_size=12))
@example(b"data: x\r\r\ndata: y\r\n\r\n", [8, 9])
@example(b"data: x\n\r\ndata: y\n\n", [9])
def test_events_are_the_same_wherever_the_writes_are_cut(stream: bytes, cuts: list[int]) -> None:
    data, raw = read(stream, cuts)
    assert data == written_out(stream)
    assert raw == stream


@given(streams)
def test_events_are_the_same_byte_by_byte(stream: bytes) -> None:
    assert read(stream, list(range(len(stream)))) == (written_out(stream), stream)


def test_an_event_is_told_as_soon_as_its_blank_line_is_there() -> None:
    splitter = Splitter()
    assert splitter.feed(b"data: a\n") == []
    assert splitter.feed(b"\ndata: b\n") == [Event(b"data: a\n\n", b"a")]
    assert splitter.feed(b"\n") == [Event(b"data: b\n\n", b"b")]


def test_several_data_lines_are_one_text_with_line_ends_between() -> None:
    assert Splitter().feed(b"event: e\ndata: [1,\ndata:2]\nid: 7\n\n")[0].data == b"[1,\n2]"


def test_a_comment_carries_no_data() -> None:
    assert Splitter().feed(b": data: no\n\n") == [Event(b": data: no\n\n", None)]


def test_what_is_too_long_for_an_event_is_handed_on_unread() -> None:
    splitter = Splitter(limit=100)
    long = b"data: " + b"x" * 200
    assert splitter.feed(b"data: a\n\n" + long) == [Event(b"data: a\n\n", b"a"), Event(long, None)]
    assert splitter.blind
    assert splitter.feed(b"\n\ndata: y\n\n") == [Event(b"\n\ndata: y\n\n", None)]
    assert splitter.flush() is None
