"""Contextual bias: b(x) = b0 + g·f(x), with a few features f of the request that a person can check.

calibration.md section 5, beyond the papers. The margin says how readily the model calls; these say what it
hardly sees: whether any offered tool fits what is asked, and whether the values that this tool needs stand in
the conversation at all. They are cheap lexical measures, computed for each request; `bench calibrate` fits
g by logistic regression with the margin as offset.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from calibrators.body import dumped
from calibrators.conversation import Conversation
from calibrators.request import Fields, messages_of, tools_of

REQUEST_MOST = 4000
"""Characters of the current request that are looked at."""
SAID_MOST = 12_000
"""Characters of all that user and tools said, latest first, in which values are looked for."""


class Features(NamedTuple):
    """What b(x) is computed from; each a number of about one, more where more is meant.

    Attributes:
        fit: the share of the best tool's name that the request says, in words.
        missing: required parameters of this tool for which the conversation shows no value, at most 3.
        required: required parameters of this tool, at most 5.
        length: log(1 + words of the request).
        tools: log of the number of tools offered.
        answered: 1 where the last message is a tool's result: the turn has begun to be served.
    """

    fit: float = 0.0
    missing: float = 0.0
    required: float = 0.0
    length: float = 0.0
    tools: float = 0.0
    answered: float = 0.0


NO_FEATURES = Features()


@dataclass(frozen=True, slots=True)
class Contextual:
    """The coefficients of b(x).

    Attributes:
        b0: nats, where all features are 0.
        weights: nats for one unit of a feature, by its name.
        low: b(x) is never below.
        high: b(x) is never above.
    """

    b0: float
    weights: Mapping[str, float]
    low: float
    high: float

    def value(self, features: Features) -> float:
        """b(x) in nats, clipped to its range."""
        return min(self.high, max(self.low, self.b0 + math.fsum(self.parts(features).values())))

    def parts(self, features: Features) -> Mapping[str, float]:
        """What each feature adds, in nats, before clipping."""
        return {name: weight * getattr(features, name) for name, weight in self.weights.items()}


def features_of(fields: Fields, raw_tools: str | None = None) -> Features:
    """The features of a chat request; all 0 where it offers no tool or asks nothing.

    `raw_tools` is the JSON text of its tools where that is at hand: what is read from them is kept by it.
    """
    offered = tools_of(fields)
    conversation = Conversation.of(fields)
    if not offered or not conversation.requests:
        return NO_FEATURES
    toolset = _toolset(raw_tools if raw_tools is not None else dumped(offered))
    if not toolset.tools:
        return NO_FEATURES
    request = conversation.requests[-1][:REQUEST_MOST]
    asked = set(_words(request))
    best = toolset.best(asked)
    said = _latest([*conversation.results, *conversation.requests], SAID_MOST)
    return Features(
        fit=best.fit(asked),
        missing=min(3.0, best.missing(said)),
        required=min(5.0, float(best.required)),
        length=math.log1p(len(request.split())),
        tools=math.log(len(toolset.tools)),
        answered=float(messages_of(fields)[-1].get("role") in ("tool", "function")),
    )


def _latest(texts: Sequence[str], most: int) -> str:
    """The texts, the last ones whole, within `most` characters."""
    return "\n".join(texts)[-most:]


@dataclass(frozen=True, slots=True)
class _Tool:
    """What is read from one offered tool.

    Attributes:
        name: the words of its name.
        weights: the words of name, description and parameters; those that few of the tools share weigh more.
        required: how many parameters it requires.
        numbers: how many of them need a number.
        times: how many need a date or time.
        texts: how many need any other text.
        choices: the words of each one's values, where the schema lists them.
    """

    name: Set[str]
    weights: Mapping[str, float]
    required: int
    numbers: int
    times: int
    texts: int
    choices: Sequence[Set[str]]

    def fit(self, asked: Set[str]) -> float:
        """The share of its name that is asked for, by weight."""
        return sum(self.weights[word] for word in self.name & asked) / max(1, len(self.name))

    def missing(self, said: str) -> float:
        """How many required parameters have no value in what was said.

        Numbers and times are counted by their form. Another text may be a quoted, capitalised or mixed word;
        any word that the tool's own definition does not hold counts half.
        """
        # Nothing is counted beyond what is needed: a conversation shows most values soon.
        numbers = self.numbers - _count(_NUMBER, said, self.numbers) if self.numbers else 0
        if numbers:
            numbers = max(0, numbers - sum(word in _NUMERALS for word in said.lower().split()))
        times = self.times - _count(_TIME, said, self.times) if self.times else 0
        texts = float(self.texts)
        if texts:
            texts -= _count(_VALUE, said, self.texts)
            texts = max(0.0, texts - self._novel(said, math.ceil(2 * texts)) / 2)
        words = set(_words(said)) if self.choices else set()
        return numbers + times + texts + sum(not choice & words for choice in self.choices) / 2

    def _novel(self, said: str, most: int) -> int:
        """How many words, up to `most`, its own definition does not hold."""
        found: set[str] = set()
        for word in _words(said):
            if len(found) >= most:
                break
            if word not in self.weights:
                found.add(word)
        return len(found)


def _count(pattern: re.Pattern[str], text: str, most: int) -> int:
    """How often a pattern is found, up to `most` times."""
    return sum(1 for _ in islice(pattern.finditer(text), most))


class _Use(NamedTuple):
    """A word in a tool's definition: which tool's, the word's weight, and its share of the tool's name."""

    tool: int
    weight: float
    fit: float


class _Toolset(NamedTuple):
    """The tools of a request, and where each of their words is used."""

    tools: Sequence[_Tool]
    uses: Mapping[str, Sequence[_Use]]

    def best(self, asked: Set[str]) -> _Tool:
        """The tool whose name and definition say most of what is asked."""
        scores = [0.0] * len(self.tools)
        for word in asked:
            for use in self.uses.get(word, ()):
                scores[use.tool] += use.weight / len(asked) + use.fit
        return self.tools[scores.index(max(scores))]


@lru_cache(maxsize=512)
def _toolset(raw: str) -> _Toolset:
    """What is read from the tools of a request; agents send the same ones again and again."""
    definitions = [d for tool in json.loads(raw) if (d := _definition(tool)) is not None]
    texts = [set(_words(" ".join(_texts_of(definition)))) for definition in definitions]
    shared = Counter(word for words in texts for word in words)
    most = math.log1p(len(texts))
    tools = [
        _tool(definition, {word: math.log1p(len(texts) / shared[word]) / most for word in words})
        for definition, words in zip(definitions, texts, strict=True)
    ]
    uses: dict[str, list[_Use]] = {}
    for at, tool in enumerate(tools):
        for word, weight in tool.weights.items():
            fit = weight / len(tool.name) if word in tool.name else 0.0
            uses.setdefault(word, []).append(_Use(at, weight, fit))
    return _Toolset(tools, uses)


def _definition(tool: Any) -> Mapping[str, Any] | None:
    """Name, description and parameters of a tool, in each API's shape."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return function if isinstance(function, Mapping) and isinstance(function.get("name"), str) else None


def _schema(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = definition.get("parameters", definition.get("input_schema"))
    return schema if isinstance(schema, Mapping) else {}


def _properties(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = _schema(definition).get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _texts_of(definition: Mapping[str, Any]) -> Iterable[str]:
    yield definition["name"]
    yield str(definition.get("description") or "")
    for name, property_ in _properties(definition).items():
        yield name
        if isinstance(property_, Mapping):
            yield str(property_.get("description") or "")


def _tool(definition: Mapping[str, Any], weights: Mapping[str, float]) -> _Tool:
    required = _schema(definition).get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    properties = _properties(definition)
    needs = [_need(name, properties.get(name)) for name in names]
    return _Tool(
        name=set(_words(definition["name"])),
        weights=weights,
        required=len(names),
        numbers=needs.count("number"),
        times=needs.count("time"),
        texts=needs.count("text"),
        choices=[need for need in needs if isinstance(need, Set) and not isinstance(need, str)],
    )


def _need(name: str, property_: object) -> str | Set[str]:
    """What a required parameter's value looks like; "none" where it needs no word of anybody's."""
    told = property_ if isinstance(property_, Mapping) else {}
    options, kind = told.get("enum"), told.get("type")
    if isinstance(options, list) and options:
        return set(_words(" ".join(map(str, options)))) | {str(option).lower() for option in options}
    if kind == "boolean" or "default" in told:
        return "none"
    items = told.get("items")
    if kind in ("array", "tuple") and isinstance(items, Mapping):
        kind = items.get("type")
    if kind in _NUMERIC:
        return "number"
    described = f"{name} {told.get('description') or ''}"[:80].lower().replace("_", " ")
    return "time" if _TIMELY.search(described) else "text"


_NUMERIC = ("integer", "number", "float")
_TIMELY = re.compile(r"\b(?:dates?|days?|times?|when|months?|years?)\b")

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]{2,}")  # camelCase is two words
_NUMBER = re.compile(r"(?<![A-Za-z])[-+]?\d+(?:[.,:/-]\d+)*")
_VALUE = re.compile(
    r"[\"“‘`][^\"”’`\n]{2,60}[\"”’`]"  # quoted
    # Ids, addresses, paths: a word with a digit or a sign in it that is no number.
    r"|(?<!\S)(?=[^\s\d@_/\\]*+[\d@_/\\])(?=[^\sA-Za-z@_/\\]*+[A-Za-z@_/\\])\S++"
    r"|(?<=[a-z,:;)] )[A-Z][\w'-]{0,40}"  # a name inside a sentence
)
_TIME = re.compile(
    r"\d{4}-\d\d|\d+/\d+|\b\d{1,2}(?::\d\d)? ?[ap]m\b|\b\d{4}\b|\d(?:st|nd|rd|th)\b"
    r"|\b(?:january|february|march|april|may|june|july|august|september|october|november|december|monday|tuesday"
    r"|wednesday|thursday|friday|saturday|sunday|today|tomorrow|tonight|yesterday|next|last|weekend|now|current"
    r"|noon|midnight|this (?:week|month|year|morning|evening|afternoon))\b",
    re.IGNORECASE,
)
_NUMERAL_WORDS = """
    one two three four five six seven eight nine ten eleven twelve dozen hundred thousand million half
    quarter twice double
"""
_NUMERALS = frozenset(_NUMERAL_WORDS.split())
_COMMON_WORDS = """
    about above after again all also am an and any are as at be because been before being below between
    both but by can could did do does doing down during each few for from further get give given had has
    have having he her here hers him his how if in into is it its itself just know let like make me more
    most my need no nor not now of off on once only or other our out over own please same she should so
    some such than that the their them then there these they this those through to too under until up us
    use using value very want was we were what when where which while who whom why will with would you
    your
"""
"""They say nothing of what is asked for."""
_COMMON = frozenset(_COMMON_WORDS.split())
_ENDINGS = ("ations", "ation", "ings", "ing", "ies", "ied", "ers", "er", "ed", "es", "s", "e")


def _words(text: str) -> Iterable[str]:
    """The telling words of a text, in lower case and without their endings; names are taken apart."""
    for match in _WORD.finditer(text):
        word = match[0].lower()
        if word not in _COMMON:
            yield _stem(word)


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
