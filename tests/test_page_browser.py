"""The status page in a real browser: what a person on call sees, clicks and hears of."""

from pathlib import Path

import pytest

from tests.browser import Page, browser
from tests.seam import TOOLS, Seam, seam
from tests.upstream import Upstream, said

pytestmark = pytest.mark.whole

STRICT = {"name": "strict", "bias": -1.5}
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
AXE = Path(__file__).parent / "clients" / "node_modules" / "axe-core" / "axe.min.js"
ROWS = "document.querySelectorAll('#decisions tbody tr')"


async def opened(page: Page, proxy: Seam, width: int = 1280) -> None:
    await page.open(f"http://127.0.0.1:{proxy.port}/seam/", width)
    await page.until("document.getElementById('state')?.textContent.startsWith('The proxy answers.')")


async def test_an_idle_proxy_says_that_there_is_nothing_yet(tmp_path: Path) -> None:
    async with (
        Upstream([]) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
        browser(tmp_path) as page,
    ):
        await opened(page, proxy)
        await page.until("!document.getElementById('empty').hidden")
        assert await page.run("document.getElementById('figures').hidden")
        assert "strict" in await page.run("document.getElementById('profiles').textContent")
        assert upstream.url in await page.run("document.getElementById('upstreams').textContent")
        assert page.complaints == []


async def test_new_decisions_come_by_themselves_and_hostile_names_are_text(tmp_path: Path) -> None:
    async with (
        Upstream([said("Which one?")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
        browser(tmp_path) as page,
    ):
        await opened(page, proxy)
        await proxy.chat(model=HOSTILE, tools=TOOLS)
        await page.until(f"{ROWS}.length === 1")
        await proxy.chat(tools=TOOLS, calibration="strict")
        await page.until(f"{ROWS}.length === 2")
        cells = f"[...{ROWS}].map((row) => row.cells[2].textContent)"
        assert await page.run(cells) == ["m", HOSTILE]
        assert "ask 2 (100 %)" in await page.run("document.getElementById('mix').textContent")
        assert await page.run("[document.title, document.images.length]") == ["Seam", 0]

        await page.run(
            "(() => { const s = document.querySelector('[name=model]'); s.value = 'm';"
            " s.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )
        await page.until(f"{ROWS}.length === 1 && {ROWS}[0].cells[2].textContent === 'm'")
        assert page.complaints == []


async def test_a_decision_opens_by_keyboard_and_closes_with_escape(tmp_path: Path) -> None:
    async with (
        Upstream([said("Which one?")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
        browser(tmp_path) as page,
    ):
        await proxy.chat(tools=TOOLS, headers={"X-Request-Id": "r-17"})
        await opened(page, proxy)
        await page.until(f"{ROWS}.length === 1")
        await page.run(f"{ROWS}[0].querySelector('button').focus()")
        await press(page, "Enter", 13, "\r")
        await page.until("document.querySelector('dialog').open")
        await page.until("document.querySelector('dialog dl').textContent.includes('r-17')")
        await press(page, "Escape", 27)
        await page.until("!document.querySelector('dialog').open")
        assert await page.run("document.activeElement.dataset.id !== undefined")
        assert page.complaints == []


async def test_on_a_phone_nothing_is_wider_than_the_screen(tmp_path: Path) -> None:
    async with (
        Upstream([said("Which one?")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
        browser(tmp_path) as page,
    ):
        await proxy.chat(model="m" * 100, tools=TOOLS, calibration="strict")
        await opened(page, proxy, 390)
        await page.until(f"{ROWS}.length === 1")
        assert await page.run("document.documentElement.scrollWidth") <= 390
        assert page.complaints == []


async def test_a_proxy_that_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    async with browser(tmp_path) as page:
        async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
            await opened(page, proxy)
        await page.until("document.getElementById('state').textContent.includes('does not answer')")


async def test_axe_finds_no_barrier(tmp_path: Path) -> None:
    if not AXE.is_file():
        pytest.skip("axe-core is missing (`make clients`, with npm)")
    async with (
        Upstream([said("Which one?")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
        browser(tmp_path) as page,
    ):
        await proxy.chat(tools=TOOLS, calibration="strict")
        await opened(page, proxy)
        await page.until(f"{ROWS}.length === 1")
        await page.run("document.getElementById('pause').click()")  # so that nothing changes meanwhile
        await page.run(f"{AXE.read_text('utf-8')};0")
        for scheme in ("dark", "light"):
            look = {"name": "prefers-color-scheme", "value": scheme}
            await page.call("Emulation.setEmulatedMedia", features=[look])
            assert await barriers(page) == []
        await page.run(f"{ROWS}[0].querySelector('button').click()")
        await page.until("document.querySelector('dialog dl').textContent.includes('request_id')")
        assert await barriers(page) == []


async def barriers(page: Page) -> list[str]:
    """What axe-core finds wrong, each with the first place where it is."""
    found: list[str] = await page.run(
        "axe.run().then((told) => told.violations.map((one) => `${one.id}: ${one.nodes[0].html}`))"
    )
    return found


async def press(page: Page, key: str, code: int, text: str = "") -> None:
    for kind in ("keyDown", "keyUp"):
        typed = {"text": text} if text and kind == "keyDown" else {}
        await page.call(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed
        )
