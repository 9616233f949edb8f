"""The figures of `bench score` as text: one row a category or class, a reason for whatever is missing."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.score.actions import columns, wrong_lines
from bench.score.loops import NOTHING

Json = Mapping[str, Any]

# As wide as the tables need: a terminal wraps better than a cell.
_WIDTH = 400
# Below this a rate says little: counts first, per cent second (rigor.md point 3).
_FEW = 20
_COUNTS = ("planned", "run", "scored", "errored", "unmeasurable")
_LOOPS = (
    "calls_per_turn",
    "loop_at_3",
    "loop_at_5",
    "max_step_hits",
    "repeated_calls",
    "non_tool_final",
    "unparsable_calls",
    "unknown_names",
    "required_turn_coverage",
    "empty_turn_no_call",
)


def actions_text(result: Json, wrong: bool) -> str:
    """The confusion table with the recall of each gold class, and the wrong texts where asked for."""
    classes = columns(result["confusion"])
    console = _console()
    table = _table(
        f"classes of {result['texts']} texts (cues: {result['cues']})", ("gold", *classes, "recall")
    )
    for gold, counts in result["confusion"].items():
        found = [str(counts.get(name, 0)) for name in classes]
        table.add_row(gold, *found, rate_text(result["recall"][gold]))
    console.print(table)
    if time := result.get("time"):
        console.print(
            f"{time['microseconds_mean']:.0f} µs a reply of {time['characters']} characters"
            f" (most {time['microseconds_max']:.0f}, {time['replies']} replies); twice the hostile text takes"
            f" at worst {time['doubling_ratio_worst']:.1f} times as long ({time['doubling_ratio_of']!r})\n",
            markup=False,
        )
    if wrong:
        console.print("\n".join(wrong_lines(result["wrong"])), markup=False)
    return _finish(console, _Notes())


def bfcl_text(result: Json) -> str:
    """Tables of all models."""
    console = _console()
    recall = _table(
        f"recall of the gold action class and accuracy (cues: {result['cues']})",
        (
            "model",
            "category",
            "gold",
            "counts",
            "GAR",
            "published",
            "at gold turn",
            "Acc",
            "GAR − Acc",
            "2x2",
        ),
    )
    notes = _Notes()
    for model in result["models"]:
        for each in model["categories"]:
            notes.at(f"{model['model']} {_short(each['category'])}")
            recall.add_row(
                model["model"],
                _short(each["category"]),
                each["gold_class"],
                _counts(each["counts"]),
                notes.cell(each, "gar"),
                _optional(each, "gar_published"),
                notes.cell(each, "gar_at_gold_turn"),
                notes.cell(each, "acc"),
                notes.difference(each),
                notes.crosstab(each),
            )
            _remarks(each, notes)
    console.print(recall)
    console.print(_key())
    rows = [
        (f"{model['model']} {_short(each['category']) if 'category' in each else 'all four'}", each["loops"])
        for model in result["models"]
        for each in (
            *model["categories"],
            *([model["all_categories"]] if len(model["categories"]) > 1 else ()),
        )
    ]
    _print_loops(console, rows, notes)
    return _finish(console, notes)


def tau2_text(result: Json) -> str:
    """Tables of all runs."""
    console = _console()
    notes = _Notes()
    passes = _table(
        "pass^k", ("run", "domain", "agent", "tasks", "trials", "counts", "Acc (pass@1)", "pass^k")
    )
    recall = _table(
        f"recall by action class (cues: {result['cues']})",
        ("run", "class", "tasks", "counts", "GAR", "other reading", "Acc", "GAR − Acc", "2x2"),
    )
    for run in result["runs"]:
        notes.at(run["run"])
        passes.add_row(
            run["run"],
            run["domain"] or "?",
            run["agent"] or "?",
            str(run["tasks"]["planned"]),
            str(run["trials"]),
            _counts(run["counts"]),
            notes.cell(run, "acc"),
            "  ".join(f"{k}: {_estimate(each)}" for k, each in run["pass_k"].items()),
        )
        for warning in run["warnings"]:
            notes.add(warning)
        if run["classes"] is None:
            notes.add(run["classes_reason"])
            continue
        for name, each in run["classes"].items():
            notes.at(f"{run['run']} {name}")
            recall.add_row(
                run["run"],
                name,
                str(each["tasks"]),
                _counts(each["counts"]),
                notes.cell(each, "gar"),
                _optional(each, "gar_published") or _optional(each, "gar_where_checked", "where checked "),
                notes.cell(each, "acc"),
                notes.difference(each),
                notes.crosstab(each),
            )
    console.print(passes)
    if recall.rows:
        console.print(recall)
        console.print(_key())
    _print_confirm(console, result["runs"], notes)
    _print_mix(console, result["runs"])
    _print_loops(console, [(run["run"], run["loops"]) for run in result["runs"]], notes)
    return _finish(console, notes)


class _Notes:
    """What the tables have no room for; the same words once, with all the rows they are about."""

    def __init__(self) -> None:
        self._where = ""
        self._rows: dict[str, list[str]] = {}

    def at(self, where: str) -> None:
        """What follows is about this row."""
        self._where = where

    def add(self, text: str) -> None:
        """Say it of the row."""
        rows = self._rows.setdefault(text, [])
        if self._where not in rows:
            rows.append(self._where)

    def cell(self, figures: Json, name: str) -> str:
        """A rate, or a dash and the reason as a note."""
        if figures.get(name) is None:
            if figures[f"{name}_reason"] != NOTHING:
                self.add(f"{_words(name)} is not measurable: {figures[f'{name}_reason']}")
            return "–"
        return rate_text(figures[name])

    def difference(self, figures: Json) -> str:
        """GAR - Acc with its interval, and what it is."""
        if figures["difference"] is None:
            if figures["acc"] is not None:
                self.add(f"GAR − Acc is not measurable: {figures['difference_reason']}")
            return "–"
        kind = ""
        if figures["masking"]:
            kind = " masking"
        elif figures["slack"]:
            kind = " slack"
        difference = figures["difference"]
        if difference["low"] is None:
            self.add(f"GAR − Acc has no interval: {difference['reason']}")
        return f"{_points(difference)}{kind}"

    def crosstab(self, figures: Json) -> str:
        """hit and passed, hit and failed, missed and passed, missed and failed."""
        return "–" if figures["crosstab"] is None else " ".join(map(str, figures["crosstab"].values()))

    def lines(self) -> Iterable[str]:
        """One line a note."""
        for text, rows in self._rows.items():
            yield f"note: {text} ({', '.join(rows)})"


def _remarks(each: Json, notes: _Notes) -> None:
    counts = each["counts"]
    if each["partial"] and counts["run"]:
        notes.add(f"partial run: {counts['run']} of {counts['planned']}")
    if each["duplicates"]:
        notes.add(f"repeated ids, of which the last row is kept: {each['duplicates']}")
    if each["cut_lines"]:
        notes.add("the last line was not written to its end and is left out")
    if each["texts_recovered"]:
        notes.add(f"lost replies found in the log: {each['texts_recovered']}")
    if each.get("gar_at_gold_turn_unmeasurable"):
        notes.add(f"unmeasurable at the gold turn: {each['gar_at_gold_turn_unmeasurable']}")
    _errors(each["errors"], notes)


def _errors(errors: Json, notes: _Notes) -> None:
    for error, count in sorted(errors.items(), key=lambda item: -item[1])[:3]:
        notes.add(f"{count} × {' '.join(error.split())[:120]}")


def _print_loops(console: Console, rows: Sequence[tuple[str, Json]], notes: _Notes) -> None:
    names = [name for name in _LOOPS if any(name in loops for _, loops in rows)]
    table = _table("inside a turn", ("", *map(_words, names)))
    for label, loops in rows:
        notes.at(label)
        table.add_row(
            label,
            *(
                _estimate(loops[name], 2)
                if name == "calls_per_turn" and loops.get(name)
                else notes.cell(loops, name)
                for name in names
            ),
        )
    console.print(table)
    caps = sorted({str(loops["max_steps"] or "unknown") for _, loops in rows})
    console.print(f"step cap: {', '.join(caps)}; figures of runs with another cap do not compare")


def _print_confirm(console: Console, runs: Sequence[Json], notes: _Notes) -> None:
    counts = ("writes", "judged", "unparsable", "unjudged", "unmeasurable")
    table = _table(
        "CONFIRM: database writes whose details were told and approved before",
        ("run", "judge", *counts, "GAR", "Acc", "GAR − Acc", "2x2"),
    )
    for run in runs:
        notes.at(f"{run['run']} CONFIRM")
        confirm = run["confirm"]
        if confirm is None:
            notes.add(f"CONFIRM is not measurable: {run['confirm_reason']}")
            continue
        table.add_row(
            run["run"],
            f"{confirm['judge']['model']}, prompt {confirm['judge']['prompt']}",
            *(str(confirm[name]) for name in counts),
            notes.cell(confirm, "gar"),
            notes.cell(confirm, "acc"),
            notes.difference(confirm),
            notes.crosstab(confirm),
        )
        _errors(confirm["errors"], notes)
        if confirm["unmeasurable"]:
            notes.add(f"writes before which the file lacks what the user said: {confirm['unmeasurable']}")
        if confirm["unjudged"]:
            notes.add("unjudged writes are asked about again by the same command with the same --out")
    if table.rows:
        console.print(table)


def _print_mix(console: Console, runs: Sequence[Json]) -> None:
    names = list(runs[0]["class_mix"]["emissions"])
    table = _table(
        "emissions by class, and simulations with one (an emission may be of several classes)",
        ("run", *names, "of"),
    )
    for run in runs:
        mix = run["class_mix"]
        cells = (f"{mix['emissions'][name]} / {mix['simulations'][name]}" for name in names)
        table.add_row(run["run"], *cells, f"{mix['of_emissions']} / {mix['of_simulations']}")
    console.print(table)


def _console() -> Console:
    return Console(file=io.StringIO(), width=_WIDTH, highlight=False)


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 2 else "right", no_wrap=True)
    return table


def _key() -> str:
    return (
        f"counts: {', '.join(_COUNTS)}\n"
        "2x2: gold class emitted and passed, emitted and failed, missed and passed, missed and failed\n"
    )


def _finish(console: Console, notes: _Notes) -> str:
    for line in notes.lines():
        console.print(line)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _counts(counts: Json) -> str:
    return " ".join(str(counts[name]) for name in _COUNTS)


def rate_text(figure: Json) -> str:
    """Per cent, interval, counts; below 20 cases the counts first."""
    counts = f"{figure['hits']}/{figure['of']}"
    share = _estimate(figure)
    return f"{counts} ({share})" if figure["of"] < _FEW else f"{share} {counts}"


def _optional(figures: Json, name: str, said: str = "") -> str:
    """A reading that is there only where it differs."""
    return said + rate_text(figures[name]) if figures.get(name) else ""


def _estimate(figure: Json, decimals: int | None = None) -> str:
    """An estimate with its interval: per cent, or as it is with so many decimals."""
    if figure["estimate"] is None:
        return "–"
    scale, places = (100, 1) if decimals is None else (1, decimals)
    value = f"{figure['estimate'] * scale:.{places}f}"
    if figure["low"] is None:
        return value
    return f"{value} [{figure['low'] * scale:.{places}f}–{figure['high'] * scale:.{places}f}]"


def _points(figure: Json) -> str:
    value = f"{figure['estimate'] * 100:+.1f}"
    if figure["low"] is None:
        return value
    return f"{value} [{figure['low'] * 100:+.1f}, {figure['high'] * 100:+.1f}]"


def _short(category: str) -> str:
    return category.removeprefix("multi_turn_")


def _words(name: str) -> str:
    named = {
        "gar": "GAR",
        "acc": "Acc",
        "gar_published": "GAR as published",
        "gar_at_gold_turn": "GAR@gold-turn",
    }
    return named.get(name, name.replace("loop_at_", "loop@").replace("_", " "))
