"""What must hold for any input of what faces strangers; `python -m tests.fuzz --minutes 20` looks long.

Each property is tried on its seeds, inputs that once broke it or are odd in a way of their own, and on what
hypothesis makes up. tests/test_fuzz.py runs them briefly. What a long run finds becomes a seed here.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from calibrators.actions import Cues, reply_action
from calibrators.body import Body, NotAnObject
from calibrators.dialects import DIALECTS
from calibrators.reply import Reply
from calibrators.request import case_of, tool_choice_of, tools_of
from calibrators.sse import Splitter
from proxy.config import Config, load
from proxy.errors import ConfigError
from proxy.settings import build
from tests.wire import event_data

# Events ----------------------------------------------------------------------------------------------


def check_events(pieces: list[bytes]) -> None:
    """However a stream is cut: no byte is lost, and its data are those of the plainest reader."""
    splitter = Splitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    rest = splitter.flush()
    events += [rest] if rest else []
    whole = b"".join(pieces)
    assert b"".join(event.raw for event in events) == whole
    one = Splitter()
    at_once = one.feed(whole)
    last = one.flush()
    assert [e.data for e in events if e.data is not None] == [
        e.data for e in (*at_once, *([last] if last else [])) if e.data is not None
    ]
    text = whole.decode("utf-8", "replace")
    assert [e.data.decode("utf-8", "replace") for e in events if e.data is not None] == event_data(
        text.encode()
    )


_STREAM = st.sampled_from(
    [b"data:", b"data: ", b"\n", b"\r", b"\r\n", b": x", b"{", b"[DONE]", b"id: 1", b""]
)
EVENTS = st.lists(st.lists(_STREAM | st.binary(max_size=3), max_size=6).map(b"".join), max_size=8)
EVENT_SEEDS: Sequence[Any] = (
    [b"data: a\r", b"\n\r", b"\n"],
    [b"data: a\n", b"\ndata: b\r\r\n\n"],
    [b"data:\n\ndata\n\n", b"data: \n\n"],
)

# Bodies ----------------------------------------------------------------------------------------------


def check_body(text: str) -> None:
    """A body is read as json reads it, or not at all; what is not changed stays to the byte."""
    try:
        body = Body.parse(text)
    except NotAnObject:
        return
    assert body.fields == json.loads(text) or "NaN" in text
    assert body.render() == text
    assert Body.parse(body.with_json(x=1).render()).fields["x"] == 1
    assert "x" not in Body.parse(body.with_raw(x=None).render()).fields
    fields = body.fields
    for dialect in DIALECTS.values():
        read = dialect.request(fields)
        case_of(read)
        tools_of(read)
        tool_choice_of(read)


_NAMES = st.sampled_from(
    ["model", "messages", "tools", "role", "content", "x", "type", "function", "input", "name"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6) | _NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)
_TOKENS = st.sampled_from(
    ['{"x"', ":", ",", "}", "{", "[", "]", " ", "1.10", '"a"', "\\u0000", "null", "-", "\ud800"]
)
BODIES = st.dictionaries(_NAMES, _JSON, max_size=5).map(json.dumps) | st.lists(_TOKENS, max_size=12).map(
    "".join
)
BODY_SEEDS: Sequence[Any] = ('{"x":1,"x":2}', ' {"a" : 1 , "x" :[] } ', "{", '{"x"', '{"x":}', "{}{", "")

# Replies ---------------------------------------------------------------------------------------------


def check_reply(document: Any) -> None:
    """Any reply has a class or none, by both lists and in every dialect, and always the same one."""
    for dialect in DIALECTS.values():
        if not isinstance(document, dict):
            return
        reply = Reply(200)
        reply.add(dialect.reply(document))
        reply.ended = True
        for cues in Cues:
            first = reply_action(reply, reply.first, cues)
            assert first == reply_action(reply, reply.first, cues)


_WORDS = st.sampled_from(
    ("I", "can't", "could", "you", "please", "?", ".", "```", "**", "done", "have", "not", "booked", "which")
) | st.sampled_from(("1.", "“", "请问", "لا", "'", '"', "Sorry", ",", "what", "\n", "\u200b", "unable"))
_PROSE = st.lists(_WORDS | st.text(max_size=3), max_size=30).map(" ".join)
_MESSAGE = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": _PROSE | _JSON},
    optional={"tool_calls": _JSON, "refusal": _JSON},
)
_CHOICE = st.fixed_dictionaries(
    {"index": st.just(0), "message": _MESSAGE | _JSON, "finish_reason": _NAMES | _JSON}
)
REPLIES = st.fixed_dictionaries({"choices": st.lists(_CHOICE, max_size=2) | _JSON}) | st.dictionaries(
    st.sampled_from(["choices", "output", "content", "delta", "type", "usage", "id", "response"]), _JSON
)
REPLY_SEEDS: Sequence[Any] = (
    {"choices": [{"index": 0, "message": {"content": "? " * 400}, "finish_reason": "stop"}]},
    {"choices": [{"index": 0, "message": {"content": None, "tool_calls": [None]}}]},
    {"choices": None},
)

# Configurations --------------------------------------------------------------------------------------


def check_config(text: str) -> None:
    """Any file is a configuration, or one line that says what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seam.yaml"
        path.write_text(text, "utf-8", "surrogatepass")
        told = "one line"
        try:
            assert isinstance(load(path), Config)
            build(path, {})
        except ConfigError as error:
            told = str(error)
        assert len(told.splitlines()) == 1, told


_KEYS = [
    *Config.model_fields,
    "$schema",
    "url",
    "keys",
    "sha256",
    "profiles",
    "default",
    "port",
    "how",
    "x",
    "folder",
]
_SETTING = st.recursive(
    _JSON | st.sampled_from(["http://h", "redis://h", "off", "auto", "profile", "0" * 64, "m", [], {}]),
    lambda inner: st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)
_WELL_MEANT = st.dictionaries(st.sampled_from(_KEYS), _SETTING, max_size=4).map(
    lambda more: yaml.safe_dump({"upstreams": {"default": {"url": "http://127.0.0.1:9"}}, **more})
)
CONFIGS = (
    _WELL_MEANT
    | st.text(max_size=40)
    | st.lists(
        st.sampled_from(
            ["a: ", "- ", "\n", "  ", "&a ", "*a", "!!python/object:x ", "<<: ", "{", "}", "? ", "|", "\t"]
        )
    ).map("".join)
)
CONFIG_SEEDS: Sequence[Any] = (
    "?",
    "1: 2",
    "a: " + "[" * 2000,
    "", "[]", "a: &a [*a]", "listen: {port: .inf}", "upstreams: {1: {url: 'http://h'}}", "!!python/name:os.x",
    "models: [{name: a}, {name: a}]", "? [1, 2]\n: 3",
)  # fmt: skip


class Target(NamedTuple):
    """One property, what it is tried on, and the inputs that are always tried."""

    check: Callable[[Any], None]
    inputs: st.SearchStrategy[Any]
    seeds: Sequence[Any]


TARGETS = {
    "events": Target(check_events, EVENTS, EVENT_SEEDS),
    "body": Target(check_body, BODIES, BODY_SEEDS),
    "reply": Target(check_reply, REPLIES, REPLY_SEEDS),
    "config": Target(check_config, CONFIGS, CONFIG_SEEDS),
}


def tried(target: Target, examples: int, number: int = 0) -> None:
    """Try a property on its seeds and on so many made-up inputs, the same ones for the same number."""
    for known in target.seeds:
        target.check(known)

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(target.inputs)
    def hold(made_up: Any) -> None:
        target.check(made_up)

    hold()


def main() -> None:
    """Try all properties in turns until the time is over, or one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given_ = parser.parse_args()
    end = time.monotonic() + given_.minutes * 60
    done = dict.fromkeys(TARGETS, 0)
    for number in itertools.count(given_.seed):
        for name, target in TARGETS.items():
            tried(target, 300, number)
            done[name] += 300
            if time.monotonic() > end:
                print(f"seeds {given_.seed} to {number}: all held; inputs tried: {done}")
                return


if __name__ == "__main__":
    main()
