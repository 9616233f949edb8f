"""`bench audit` on stored sets and in front of a scripted vLLM; checkpoints are in tests/train."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pytest

from bench.audit.figures import figures
from tests.bench.deciding import ENTRY, TOOL, Deciding, running
from tests.bench.scoring import Bench, Json, Shown

OTHERS = range(100, 164)


def row(number: int, *, call: bool, rank: int | None, size: int = 32) -> Json:
    """A prompt whose support has the entry token (15) at a rank, or not at all."""
    ids = list(OTHERS[:size])
    if rank is not None:
        ids = [*ids[: rank - 1], 15, *ids[rank - 1 :]][:size]
    logprobs = [math.log(0.5) * (place + 1) for place in range(size)]
    return {"id": f"p{number}", "should_call": call, "top_ids": ids, "top_logprobs": logprobs}


def rows() -> list[Json]:
    """Forty prompts of either side: all tool prompts hold the entry, and one in ten response prompts."""
    response = [row(i, call=False, rank=20 if i % 10 == 0 else None) for i in range(40)]
    return [*response, *(row(100 + i, call=True, rank=1) for i in range(40))]


def stored(folder: Path, lines: Sequence[Json]) -> Path:
    file = folder / "set.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_a_stored_set_shows_which_supports_miss_the_entry(bench: Bench, tmp_path: Path) -> None:
    result = bench.document("audit", "--stored", stored(tmp_path, rows()), "--entry", "15")
    response, tool = result["sides"]["response"], result["sides"]["tool"]
    covered = response["coverage"]["32"]
    assert (covered["estimate"], covered["n"], covered["method"]) == (0.1, 40, "wilson")
    assert tool["coverage"]["32"]["estimate"] == 1
    assert response["absent"]["15"]["estimate"] == 0.9
    assert response["rank"] == {"median": None, "low": 20, "high": None, "beyond": 36}
    assert response["mass"]["32"]["estimate"] == pytest.approx(1 - 2**-32)
    assert len(bench.records()) == 80
    assert result["verdict"].startswith("Partial support omission. response prompts: the top 32 miss")
    assert "90.0 % (n = 40," in result["verdict"]


def test_supports_that_are_shorter_than_k_say_nothing_of_k(bench: Bench, tmp_path: Path) -> None:
    result = bench.document("audit", "--stored", stored(tmp_path, rows()), "--entry", "15")
    for part in ("coverage", "mass"):
        beyond = result["sides"]["response"][part]["64"]
        assert beyond["estimate"] is None
        assert beyond["reason"]


def test_parquet_reads_as_jsonl_does_and_any_order_of_a_support_is_the_same(
    bench: Bench, tmp_path: Path
) -> None:
    file, table = stored(tmp_path, rows()), tmp_path / "set.parquet"
    with duckdb.connect() as database:
        database.execute(f"COPY (SELECT * FROM read_json('{file}')) TO '{table}' (FORMAT parquet)")
    turned = [
        {**line, "top_ids": line["top_ids"][::-1], "top_logprobs": line["top_logprobs"][::-1]}
        for line in rows()
    ]
    found = [
        bench.document("audit", "--stored", each, "--entry", "15")["sides"]
        for each in (file, table, stored(tmp_path / "..", turned))
    ]
    assert found[0] == found[1] == found[2]


def test_of_a_set_with_every_position_the_decision_counts(bench: Bench, tmp_path: Path) -> None:
    lines = [
        {"should_call": False, "top_ids": [[1, 15], [1, 2], [15, 2]], "decision": i % 2} for i in range(4)
    ]
    result = bench.document("audit", "--stored", stored(tmp_path, lines), "--entry", "15", "--top", "2")
    assert result["sides"]["response"]["coverage"]["2"]["estimate"] == 0.5
    assert result["sides"]["tool"] is None
    assert result["sides"]["response"]["mass"]["2"]["reason"] == "no 2 log-probabilities are shown"


def test_the_page_has_its_chart_and_can_be_made_again(bench: Bench, tmp_path: Path) -> None:
    bench.text("audit", "--stored", stored(tmp_path, rows()), "--entry", "15")
    folder, again = bench.run, tmp_path / "again"
    html = (folder / "report.html").read_text("utf-8")
    assert "Support audit of" in html
    assert (folder / "charts" / "coverage.png").read_bytes().startswith(b"\x89PNG")
    bench.text("report", folder, "--out", again)
    assert (again / "report.html").read_text("utf-8") == html


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"should_call": False}, "top_ids"),
        ({"should_call": "no", "top_ids": [1]}, "should_call"),
        ({"should_call": False, "top_ids": [1], "top_logprobs": [0.4]}, "a log-probability is above 0"),
        ({"should_call": False, "top_ids": [1], "top_logprobs": [math.nan]}, "above 0 or no number"),
        (
            {"should_call": False, "top_ids": [1], "id": "p0"},
            "the id 'p0' stands twice; give each",
        ),
        ({"should_call": False, "top_ids": [1, 2], "top_logprobs": [-1.0]}, "not of the shape of top_ids"),
        ({"should_call": False, "top_ids": [[1]], "decision": 1}, "decision is 1 and top_ids has 1"),
    ],
    ids=["no-support", "no-label", "positive", "nan", "twice", "shape", "decision"],
)
def test_a_row_that_is_none_is_named(bench: Bench, tmp_path: Path, line: Json, told: str) -> None:
    with pytest.raises(Shown) as shown:
        bench.text("audit", "--stored", stored(tmp_path, [row(0, call=True, rank=1), line]), "--entry", "15")
    assert shown.value.code == 2
    assert "set.jsonl row 2: " in shown.value.line
    assert told in shown.value.line
    assert shown.value.line.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "give one of --teacher, --upstream, --stored; see bench audit --help"),
        (["--stored", "set.jsonl"], "--stored takes the entry tokens from --entry"),
        (["--stored", "set.jsonl", "--upstream", "http://127.0.0.1:1"], "not --upstream and --stored"),
        (["--upstream", "http://127.0.0.1:1", "--student", "x"], "--student replays against a --teacher"),
        (["--stored", "no.jsonl", "--entry", "1"], "no.jsonl: cannot be read"),
        (["--stored", "no.parquet", "--entry", "1"], "no.parquet: cannot be read"),
        (["--teacher", "nowhere", "--python", "/bin/sh"], "has neither config.json nor adapter_config.json"),
        (["--teacher", "nowhere", "--python", "/no/python"], "/no/python: no such Python; run"),
    ],
    ids=["none", "no-entry", "two", "student", "no-file", "no-parquet", "no-checkpoint", "no-python"],
)
def test_a_mistake_in_the_options_is_one_line(bench: Bench, options: list[str], told: str) -> None:
    with pytest.raises(Shown) as shown:
        bench.text("audit", *options)
    assert shown.value.code == 2
    assert told in shown.value.line
    assert shown.value.line.count("\n") == 1


def test_a_median_is_of_all_prompts_and_none_where_it_is_beyond_the_list() -> None:
    def record(number: int, rank: int | None) -> Json:
        shown = {"rank": rank, "beyond": None if rank else 32, "log_p": None, "mass": {"32": 0.9}}
        return {"side": "response", "group": str(number), **shown}

    ranks = (3, 5, 9, None)
    found = figures([record(i, rank) for i, rank in enumerate(ranks)], [32], 0)["sides"]["response"]["rank"]
    assert found == {"median": 5, "low": 3, "high": None, "beyond": 1}
    found = figures([record(i, rank) for i, rank in enumerate((3, None, None))], [32], 0)
    assert found["sides"]["response"]["rank"]["median"] is None
    assert "median rank beyond the list" in found["verdict"]


# A server ----------------------------------------------------------------------------------------


class Ranking(Deciding):
    """It answers completions of token ids too: E's rank and log-probability, and at most 64 alternatives."""

    listed = 64

    def answer(self, path: str, body: Json) -> tuple[int, object]:
        if path != "/v1/completions":
            return super().answer(path, body)
        *_, last = body["prompt"]
        if "prompt_logprobs" in body:
            assert last == ENTRY
            # The question's length tells whether a call is due.
            rank, logprob = (1, -0.1) if len(body["prompt"]) % 2 else (200, -9.0)
            shown = [None, {str(last): {"logprob": logprob, "rank": rank, "decoded_token": "<tool_call>"}}]
            return 200, {"choices": [{"text": "", "prompt_logprobs": shown}]}
        if body["logprobs"] > self.listed:
            return 400, {"error": {"message": f"greater than max allowed: {self.listed}"}}
        top = {f"token_id:{i}": math.log(0.5) * (i + 1) for i in range(body["logprobs"])}
        return 200, {"choices": [{"text": "", "logprobs": {"top_logprobs": [top]}}]}


@pytest.fixture
def upstream() -> Iterator[str]:
    with running(Ranking()) as url:
        yield url


def prompts(folder: Path, count: int = 12) -> Path:
    """Requests whose number of tokens is even where a call is due, before E is appended to them."""
    lines = []
    for number in range(count):
        due = number % 2 == 0
        # The scripted tokenizer has a token for each character, so one more letter is one more token.
        content = f"Question {number:02}" + "?" * due
        request = {"messages": [{"role": "user", "content": content}], "tools": [TOOL]}
        lines.append({"id": f"q{number}", "should_call": due, **request})
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.mark.whole
def test_a_server_gives_exact_ranks_and_as_much_mass_as_it_lists(
    bench: Bench, upstream: str, tmp_path: Path
) -> None:
    result = bench.document("audit", "--upstream", upstream, "--requests", prompts(tmp_path))
    ranks = {name: side["rank"]["median"] for name, side in result["sides"].items()}
    assert set(ranks.values()) == {1, 200}, "both sides have one rank each"
    far = next(side for side in result["sides"].values() if side["rank"]["median"] == 200)
    assert [far["coverage"][k]["estimate"] for k in ("32", "64", "128", "256")] == [0, 0, 0, 1]
    assert far["mass"]["64"]["estimate"] == pytest.approx(1)
    assert far["mass"]["128"]["estimate"] is None
    assert result["entry"] == [ENTRY]
    records = len(bench.records())
    assert records == 12


@pytest.mark.whole
def test_a_prompt_that_is_refused_is_counted_and_stops_nothing_unless_all_are(
    bench: Bench, tmp_path: Path
) -> None:
    class Refusing(Ranking):
        refused: tuple[str, ...] = ("00",)

        def answer(self, path: str, body: Json) -> tuple[int, object]:
            if path == "/tokenize" and any(each in json.dumps(body) for each in self.refused):
                return 400, {"error": {"message": "the prompt is too long"}}
            return super().answer(path, body)

    server = Refusing()
    with running(server) as url:
        arguments = ("audit", "--upstream", url, "--requests", prompts(tmp_path))
        sides = bench.document(*arguments)["sides"]
        assert sum(side["counts"]["errored"] for side in sides.values()) == 1
        server.refused = tuple(f"{number:02}" for number in range(12))
        with pytest.raises(Shown, match="the prompt is too long; see to that, and repeat"):
            bench.text(*arguments, "--out", tmp_path / "run")
        server.refused = ()
        sides = bench.document(*arguments, "--out", tmp_path / "run")["sides"]
        assert sum(side["counts"]["errored"] for side in sides.values()) == 0


@pytest.mark.whole
def test_a_finished_audit_asks_nothing_again(bench: Bench, upstream: str, tmp_path: Path) -> None:
    arguments = ("audit", "--upstream", upstream, "--requests", prompts(tmp_path), "--out", tmp_path / "run")
    assert bench.document(*arguments) == bench.document(*arguments)
    assert len((tmp_path / "run" / "records.jsonl").read_text().splitlines()) == 12
