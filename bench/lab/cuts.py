"""Missing-parameter questions, made from real ones by cutting a value out.

BFCL's gold calls say which words of a question carry which argument. Taking those words away, or
making them vague, leaves a real question whose call can't be made yet. The same cuts on words
that no required argument needs give the control: odd phrasing alone must not read as missing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from random import Random
from typing import Any

from bench.decisions.source import Call, Item, Json, tool_name

STYLES = ("drop", "vague", "clause")


@dataclass(frozen=True)
class Span:
    """The only place in a question where an argument's value stands."""

    parameter: str
    start: int
    end: int
    required: bool


@dataclass(frozen=True)
class Cut:
    """A question without one value; `style` is one of STYLES, or `word` for the control."""

    question: str
    parameter: str
    style: str


_LEAD = re.compile(
    r"(?:\s*,?\s*\b(?:in|at|to|from|for|of|with|by|on|about|near|around|into|using|named|called|"
    r"titled|is|are|as|over|under|during|since|until|through|per|equals?|being|id)\b|\s*[=:])?"
    r"(?:\s*\b(?:the|a|an|my|our|approximately|exactly|say)\b)*\s*[\"'“‘(\[$€£#]*$",
    re.IGNORECASE,
)
_TAIL = re.compile(r"^(?:st|nd|rd|th)?[\"'”’)\]%]*")
_UNIT = re.compile(
    r"^\s*(?:%|°?[CF]\b|(?:units?|met(?:er|re)s?|cm|km|mm|m|kg|g|lbs?|pounds?|grams?|kilograms?|"
    r"years?|months?|weeks?|days?|hours?|minutes?|seconds?|dollars?|usd|euros?|percent|degrees?|"
    r"celsius|fahrenheit|miles?|kilomet(?:er|re)s?|feet|inch(?:es)?|people|persons?|adults?|"
    r"tickets?|passengers?|bedrooms?|m/s(?:\^2)?|joules?|newtons?|volts?|teslas?|liters?)\b)+",
    re.IGNORECASE,
)
_VAGUE = {
    "place": ("somewhere", "a place I like", "some city", "one of our usual places", "there"),
    "time": ("some day", "a date that suits", "one of these days", "a certain time", "then"),
    "person": ("someone", "a person I know", "that person", "a certain someone"),
    "number": ("some {p}", "a certain {p}", "the usual {p}", "a given {p}", "the right {p}"),
    "thing": ("some {p}", "a certain {p}", "the usual {p}", "that {p}", "the {p} I have in mind"),
}
_PLACE = re.compile(r"city|location|address|country|state|place|destination|origin|where|region")
_TIME = re.compile(r"date|time|day|when|year|month")
_PERSON = re.compile(r"artist|author|director|person|receiver|recipient|player|user_?name|actor")


def words(parameter: str) -> str:
    """A parameter's name as words: `departureDate` and `departure_date` are `departure date`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", parameter)
    return re.sub(r"[_\-\s]+", " ", spaced).strip().lower()


def cuttable(item: Item) -> bool:
    """Whether cuts make sense: one gold call, to a tool that is offered."""
    return len(item.gold) == 1 and _tool(item) is not None


def spans(item: Item) -> list[Span]:
    """Arguments whose value stands in the question exactly once, in order of position."""
    tool = _tool(item)
    if tool is None or len(item.gold) != 1:
        return []
    schema = tool["function"]["parameters"]
    properties = schema.get("properties", {})
    found = []
    for name, values in item.gold[0].accepted.items():
        described = properties.get(name)
        if described is None:
            continue
        required = name in schema.get("required", ()) and "default" not in described
        span = _locate(item.question, values)
        if span is not None:
            found.append(Span(name, *span, required))
    return sorted(found, key=lambda span: span.start)


def missing_cuts(item: Item) -> list[Cut]:
    """Every way to cut one required value, none of whose accepted forms is left anywhere."""
    cuts = []
    for span in spans(item):
        if not span.required:
            continue
        values = item.gold[0].accepted[span.parameter]
        for style in STYLES:
            for question in _cut(item.question, span, style):
                if _sound(question) and not any(_occurs(question, value) for value in values):
                    cuts.append(Cut(question, span.parameter, style))
    return cuts


def control_cut(item: Item, random: Random) -> Cut | None:
    """A cut of the same looks that takes nothing the call needs: it is still due.

    An optional argument's value where the question has one, else a word that is no value and
    isn't in the tool's name. None where the question has neither.
    """
    found = spans(item)
    optional = [span for span in found if not span.required]
    if optional:
        span = random.choice(optional)
        questions = [q for style in STYLES for q in _cut(item.question, span, style) if _sound(q)]
        if questions:
            return Cut(random.choice(questions), span.parameter, "optional")
    values = " ".join(str(value) for values in item.gold[0].accepted.values() for value in values).lower()
    name = words(item.gold[0].name)
    free = [
        match
        for match in re.finditer(r"\b[a-zA-Z]{4,}\b", item.question)
        if match[0].lower() not in values
        and match[0].lower() not in name
        and not any(span.start <= match.start() < span.end for span in found)
    ]
    if not free:
        return None
    match = random.choice(free)
    question = _tidy(item.question[: match.start()] + item.question[match.end() :])
    return Cut(question, "", "word") if _sound(question) else None


def without(call: Call, parameter: str) -> Call:
    """The gold call where an optional argument is no longer in the question."""
    return Call(call.name, {key: v for key, v in call.accepted.items() if key != parameter})


def _tool(item: Item) -> Json | None:
    named = [tool for tool in item.tools if tool_name(tool) == item.gold[0].name]
    return named[0] if named else None


def _locate(question: str, values: list[Any]) -> tuple[int, int] | None:
    """The span of the one accepted value that occurs once, or None.

    Of several that occur (`Paris`, `Paris, France`) the longest counts.
    """
    best: tuple[int, int] | None = None
    for value in values:
        if isinstance(value, list):
            inner = [_locate(question, [one]) for one in value]
            if not inner or any(span is None for span in inner):
                continue
            start = min(span[0] for span in inner if span)
            end = max(span[1] for span in inner if span)
            if end - start > 60:
                continue
            matches = [(start, end)]
        else:
            matches = [m.span() for form in _forms(value) for m in _find(question, form)]
            matches = sorted(set(matches))
            if len(matches) > 1 and not _nested(matches):
                return None
        for start, end in matches:
            if best is None or end - start > best[1] - best[0]:
                best = (start, end)
    return best


def _nested(matches: list[tuple[int, int]]) -> bool:
    longest = max(matches, key=lambda m: m[1] - m[0])
    return all(longest[0] <= start and end <= longest[1] for start, end in matches)


def _occurs(question: str, value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_occurs(question, one) for one in value)
    return any(True for form in _forms(value) for _ in _find(question, form))


def _find(question: str, form: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"(?<![\w.]){re.escape(form)}(?!\w|[.,]\d)", question, re.IGNORECASE)


_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)


def _forms(value: Any) -> list[str]:
    """How a value may be written in a question."""
    if isinstance(value, bool) or value is None or isinstance(value, dict):
        return []
    if isinstance(value, int | float):
        number = int(value) if float(value).is_integer() else value
        forms = [str(number), f"{number:,}"]
        if isinstance(number, int) and 0 <= number < len(_SMALL):
            forms.append(_SMALL[number])
        if isinstance(number, float) and 0 < number < 1:
            forms.append(f"{round(number * 100, 6):g}")
        return list(dict.fromkeys(forms))
    text = str(value).strip()
    if len(text) < 2 and not text.isdigit():
        return []
    forms = [text]
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        forms += _date_forms(text)
    elif "," in text and len(text.split(",")[0]) > 3:
        forms.append(text.split(",")[0])
    if text.replace("_", " ") != text:
        forms.append(text.replace("_", " "))
    return list(dict.fromkeys(forms))


def _date_forms(text: str) -> list[str]:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return []
    forms = []
    for month in (f"{day:%B}", f"{day:%b}"):
        for number in (f"{day.day}", f"{day.day}{_ordinal(day.day)}"):
            forms += [f"{month} {number}, {day.year}", f"{number} {month} {day.year}"]
            forms += [f"{month} {number} {day.year}", f"{month} {number}", f"{number} {month}"]
            forms += [f"{number} of {month}, {day.year}", f"{number} of {month}"]
    return [*forms, f"{day:%m/%d/%Y}", f"{day.month}/{day.day}/{day.year}"]


def _ordinal(day: int) -> str:
    if 10 < day < 14:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def _cut(question: str, span: Span, style: str) -> Iterator[str]:
    before, after = question[: span.start], question[span.end :]
    numeric = question[span.start : span.end].replace(",", "").replace(".", "").isdigit()
    after = _TAIL.sub("", after, count=1)
    if numeric:
        after = _UNIT.sub("", after, count=1)
    if style == "drop":
        yield _tidy(_LEAD.sub("", before, count=1) + after)
    elif style == "vague":
        before = re.sub(r"(?:\b(?:the|a|an|my|our)\s+)?[\"'“‘(\[$€£#]*$", "", before)
        for phrase in _VAGUE[_kind(span.parameter, numeric)]:
            yield _tidy(before + phrase.format(p=words(span.parameter)) + after)
    else:
        yield from _without_clause(question, span)


def _kind(parameter: str, numeric: bool) -> str:
    name = words(parameter)
    if numeric:
        return "number"
    for kind, pattern in (("place", _PLACE), ("time", _TIME), ("person", _PERSON)):
        if pattern.search(name):
            return kind
    return "thing"


def _without_clause(question: str, span: Span) -> Iterator[str]:
    """The question without the clause that holds the value, if it isn't the first one."""
    edges = [m.start() for m in re.finditer(r"[,;.!?]\s+|\s+(?:with|and|for|from|on|at)\s+", question)]
    starts = [edge for edge in edges if edge <= span.start]
    ends = [edge for edge in edges if edge >= span.end]
    if starts:
        start = starts[-1]
        end = ends[0] if ends else len(question.rstrip("?.! "))
        if start >= 20:
            yield _tidy(question[:start] + question[end:])


def _tidy(text: str) -> str:
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r"\s+([,.;:?!])", r"\1", text)
    text = re.sub(r"([,;:])\s*(?=[,.;:?!])", "", text)
    text = re.sub(r"\b(and|or|,)\s*(?=[.?!]|$)", "", text)
    return text.strip(" ,;:")


def _sound(question: str) -> bool:
    return len(question.split()) >= 3
