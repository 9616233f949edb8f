"""The page of a `bench run`: its figures, and its cases one by one, filtered in a real browser."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.report import cases
from bench.report.cases import Tried
from bench.score.figures import agreement, missing, share
from tests.bench.comparing import bfcl_case, folder
from tests.bench.scoring import Bench, Json, Shown, write
from tests.browser import chromium

PARAM = "multi_turn_miss_param"
ARMS = ("off", "sri-v1")
SECRET = "<script>alert(1)</script>"


def figures(arm: str, pairs: Sequence[tuple[bool, bool]]) -> Json:
    """What `bench run bfcl` says of one category."""
    hits, passed = [hit for hit, _ in pairs], [ok for _, ok in pairs]
    places = range(len(pairs))
    category: Json = {
        "category": PARAM,
        "gold_class": "ask",
        "counts": dict.fromkeys(("planned", "run", "scored", "errored", "unmeasurable"), len(pairs)),
        **share("gar", hits, places, 0),
        **share("gar_before", hits, places, 0),
        **share("gar_either", hits, places, 0),
        **missing("gar_at_gold_turn", "nobody knows"),
        **share("acc", passed, places, 0),
        **agreement(pairs, places, 0),
        "loops": {"max_steps": 20, "calls_per_turn": None},
    }
    return {"model": arm, "categories": [category]}


def said(arm: str, entry: int, turn: int, action: str, time: int, **more: Any) -> Json:
    """A decision record."""
    talk = [{"role": "user", "content": f"Please do thing {n}."} for n in range(1, turn + 1)]
    return {
        "time": f"2026-01-01T00:00:{time:02}",
        "case_id": f"{PARAM}_{entry}/{arm}/1",
        "outcome": "ok",
        "turn": turn,
        "action": action,
        "calls": [],
        "arguments": [],
        "text": f"{SECRET} which of them?",
        "probes": [],
        "request": {"messages": talk},
        **more,
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two arms and two cases: SRI made a call of what was a question, and one case errored."""
    outcomes = {"off": [(True, True), (False, False)], "sri-v1": [(False, False), (True, False)]}
    records = [
        bfcl_case(arm, "miss_param", entry, *outcome, queries=1, replies=1, seconds=0.5)
        | {"prompt_tokens": 1000, "completion_tokens": 10}
        for arm, own in outcomes.items()
        for entry, outcome in enumerate(own)
    ]
    records.append(
        {"key": "off/x", "model": "off", "category": PARAM, "id": f"{PARAM}_2", "error": "too long"}
    )
    look = {
        "probe": "sri",
        "outcome": "retried",
        "why": "the reply has no call",
        "action_before": "ask",
        "action_after": "tool_call",
    }
    log = [
        said("off", 0, 1, "ask", 1),
        said("off", 1, 1, "other", 2),
        said(
            "sri-v1",
            0,
            1,
            "tool_call",
            3,
            calls=["cd"],
            arguments=['{"folder": "a"}'],
            text="",
            probes=[look],
        ),
        said("sri-v1", 1, 1, "ask", 4),
        said("sri-v1", 1, 2, "confirm", 5),
    ]
    server = {"url": "http://h", "model": "m", "kind": "vllm", "version": "1", "context": 8192}
    result = {
        "benchmark": "bfcl-eval==2026.3.23",
        "decisions": None,
        "power": {"n": 2, "power": 0.8, "smallest_difference_by_discordance": {"0.2": None}},
        "dry_pass": {"prompt_tokens": {"least": 1000, "most": 3000}, "context": 8192},
        "cues": "seam",
        "models": [figures(arm, pairs) for arm, pairs in outcomes.items()],
        "single_turn": [],
        "applied": {"off": {"none": 2}, "sri-v1": None},
        "probes": {
            "off": None,
            "sri-v1": {"replies": 3, "outcomes": {"sri": {"retried": 1}}, "moved": {"ask → tool_call": 1}},
        },
    }
    place = folder(
        tmp_path / "run",
        "run bfcl",
        result,
        {"records": records},
        upstream=dict.fromkeys(ARMS, server),
        profile={"off": None, "sri-v1": {"name": "sri-v1", "sha256": "f" * 64}},
    )
    write(place, {"proxy-1/decisions.jsonl": log})
    return place


def test_a_runs_page_shows_its_figures_and_what_was_said_in_each_case(bench: Bench, run: Path) -> None:
    bench.text("report", run, "--out", run)
    html = (run / "report.html").read_text("utf-8")
    shown = html.partition('<script type="application/json"')[0]
    for words in (
        "Miss param: ASK is due",
        "1,000 to 3,000 tokens of the 8,192 that the server takes",
        "1 retried",
        "1 × ask → tool_call",
        "cd(folder=&quot;a&quot;)",
        "Please do thing 2.",
        "too long",
        "sha256 ffffffffffff",
    ):
        assert words in shown
    # What a model says is text.
    assert SECRET not in shown
    assert "&lt;script&gt;alert(1)" in shown
    # All arms of a case stand together.
    found = re.findall(
        r'<details class="case" data-outcome="([\w ]+)" data-part="\w+" data-arm="([\w-]+)"', shown
    )
    assert found == [
        ("passed", "off"),
        ("failed", "sri-v1"),
        ("failed", "off"),
        ("failed", "sri-v1"),
        ("errored", "off"),
    ]
    assert (run / "charts" / "recall-miss_param.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_is_not_finished_has_no_page(bench: Bench, run: Path) -> None:
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, "state": "planned"}))
    with pytest.raises(Shown, match="is not finished"):
        bench.text("report", run)


def test_a_page_holds_so_many_cases_and_says_of_how_many() -> None:
    tried = [
        Tried(arm, f"c{n}", "p", passed=True, hit=None, emissions=[["ask"]], error=None, entry=f"c{n}")
        for arm in ARMS
        for n in range(300)
    ]
    html = cases.view(tried, [])
    assert html.count("<details") == cases.MOST
    assert f"the first {cases.MOST} of 600" in html
    assert html.index("off") < html.index("sri-v1") < html.index(">c1<")


@pytest.mark.whole
def test_cases_are_filtered_in_a_browser(bench: Bench, run: Path, tmp_path: Path) -> None:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium on the path")
    bench.text("report", run, "--out", run)
    html = (run / "report.html").read_text("utf-8")
    doing = """
      const choose = (name, value) => {
        const select = document.querySelector(`.filters [name=${name}]`);
        select.value = value;
        select.dispatchEvent(new Event("change", {bubbles: true}));
      };
      const told = [];
      const tell = () => told.push([
        document.querySelector(".filters output").textContent,
        [...document.querySelectorAll(".case:not([hidden])")].map((one) => one.dataset.arm).join(),
      ]);
      choose("outcome", "failed"); tell();
      choose("class", "tool_call"); tell();
      choose("outcome", ""); choose("class", ""); choose("probes", "acted"); tell();
      document.querySelector(".filters button").click();
      told.push(["open", [...document.querySelectorAll(".case[open]")].length]);
      document.title = JSON.stringify(told);
    """
    page = tmp_path / "driven.html"
    page.write_text(html.replace("</body>", f"<script>{doing}</script></body>"), "utf-8")
    dom = subprocess.run(
        [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = re.search(r"<title>(.*?)</title>", dom)
    assert found is not None
    assert json.loads(found[1]) == [
        ["3 of 5 cases", "sri-v1,off,sri-v1"],
        ["1 of 5 cases", "sri-v1"],
        ["1 of 5 cases", "sri-v1"],
        ["open", 1],
    ]
