"""What pages ask of the server: nothing while nothing changes, and little while a job runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import Lane, Look
from tests.browser.site import serving
from tests.browser.test_views import VIEWS, settled

pytestmark = [
    pytest.mark.service("chromium"),
    pytest.mark.timeout(180),
    pytest.mark.keeps_threads("windlass-*", reason="of the module's own look at the store"),
]

IDLE_MS = 30_000
#: How long a page reads once more what it read before its stream was there.
SETTLING_MS = 4_000


def watch(page: Page) -> list[str]:
    """Every request from now on, streams left out."""
    asked: list[str] = []

    def note(url: str) -> None:
        if "/api/live" not in url and not url.endswith("/events"):
            asked.append(url)

    page.on("request", lambda request: note(request.url))
    return asked


@pytest.mark.feature("P17")
def test_idle_pages_ask_for_nothing(
    pages: None, new_context: Callable[..., BrowserContext], tmp_path: Path
) -> None:
    with serving(f"sqlite:///{tmp_path}/own.db", "--lanes", "alone") as site:
        open_pages: dict[str, tuple[Page, list[str]]] = {}
        for path in VIEWS:
            page = Look(new_context().new_page(), site).at(path)
            settled(page)
            open_pages[path] = (page, [])
        page.wait_for_timeout(SETTLING_MS)
        for path, (page, _) in open_pages.items():
            open_pages[path] = (page, watch(page))
        page.wait_for_timeout(IDLE_MS)
        asked = {path: urls for path, (_, urls) in open_pages.items() if urls}
        assert asked == {}


@pytest.mark.feature("P10", "P17")
def test_the_page_of_a_running_job_asks_for_little(look: Look, lane: Lane, tmp_path: Path) -> None:
    job = lane.add("chatty", {"gate": str(tmp_path), "payload": "x" * 200_000})
    page = look.job(lane, job)
    expect(page.get_by_role("log", name="Output of the job")).to_contain_text("piece")
    expect(page.get_by_role("log", name="Log of the job")).to_contain_text("round")
    page.wait_for_timeout(SETTLING_MS)
    network = page.context.new_cdp_session(page)
    received: list[int] = []
    network.on("Network.dataReceived", lambda event: received.append(event["dataLength"]))
    network.send("Network.enable")
    asked = watch(page)
    before = page.locator("[data-progress]").inner_text()
    page.wait_for_timeout(10_000)
    (tmp_path / "end").touch()
    assert asked == []
    assert page.locator("[data-progress]").inner_text() != before, "it moves"
    assert 0 < sum(received) < 50_000
    expect(page.locator(".identity")).to_contain_text("completed")


#: A stream that the test feeds: as many ticks as half an hour has seconds, without half an hour.
FED = """
window.fed = []
window.EventSource = class extends EventTarget {
  static CLOSED = 2
  readyState = 1
  constructor() { super(); window.fed.push(this); setTimeout(() => this.dispatchEvent(new Event('open'))) }
  close() {}
}
"""
FEED = """async ([first, last]) => {
  const seen = window.seen ??= await (await fetch('api/overview')).json()
  for (let at = first; at < last; at++) {
    const counts = { ...seen.counts, completed: at, waiting: at % 50 }
    const queues = seen.queues.map((queue) => ({ ...queue, counts, processed: at }))
    const tick = { ...seen, at_ms: Date.now(), counts, queues, names: null, enqueued_per_s: at % 7,
      completed_per_s: at % 5, failed_per_s: 0, processed_total: at, failed_total: 0, quiet_workers: 0,
      workers: [{ id: 'one', busy: at % 8, rss_kb: 50_000 + at % 9, cpu_percent: at % 100 }],
      worker_ids: ['one'] }
    const event = new MessageEvent('tick', { data: JSON.stringify(tick) })
    for (const source of window.fed) source.dispatchEvent(event)
    if (at % 10 === 0) await new Promise((resolve) => setTimeout(resolve))
  }
}"""
HALF_HOUR = 1_800
#: Ticks after which all that is bounded is full: the charts keep five minutes.
FULL = 600
_MEGABYTE = 1_000_000


@pytest.mark.feature("P17")
@pytest.mark.parametrize("path", ["/", "/search", "/worker-processes"])
def test_half_an_hour_of_live_updates_lets_no_page_grow(
    look: Look, lane: Lane, new_context: Callable[..., BrowserContext], path: str
) -> None:
    lane.add("ok")
    page = look.page
    page.add_init_script(FED)
    look.at(path)
    expect(page.locator(".bone")).to_have_count(0)
    devtools = page.context.new_cdp_session(page)

    def size() -> tuple[int, int]:
        devtools.send("HeapProfiler.collectGarbage")
        used = devtools.send("Runtime.getHeapUsage")["usedSize"]
        return used, page.evaluate("document.querySelectorAll('*').length")

    page.evaluate(FEED, [0, FULL])
    heap, elements = size()
    page.evaluate(FEED, [FULL, FULL + HALF_HOUR])
    later, more = size()
    assert later - heap < _MEGABYTE, f"{heap} bytes became {later}"
    assert abs(more - elements) < 50, f"{elements} elements became {more}"
