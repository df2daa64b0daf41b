"""What saves an operator clicks: saved views, keys, attempts side by side, charts that lead to jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.browser.conftest import Lane, Look
from tests.browser.site import Site, serving
from tests.browser.test_views import settled
from windlass import FlowProducer

pytestmark = [
    pytest.mark.service("chromium"),
    pytest.mark.timeout(120),
    pytest.mark.keeps_threads("windlass-*", reason="of the module's own look at the store"),
]

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.feature("P12", "P16")
def test_a_view_is_saved_found_again_and_removed(look: Look, still: Lane) -> None:
    still.add("export", {"day": 1}, tags=["quarter"])
    still.add("other")
    page = look.at(f"/search?search=queue:{still.name}+tag:quarter&cursor=")
    expect(page.locator("tr[data-job]")).to_have_count(1)
    page.get_by_role("button", name="Save this view").click()
    page.get_by_role("dialog").get_by_label("Name").fill("Quarter end")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    page = look.at("/retries")
    page.get_by_role("group", name="Saved views").get_by_role("link", name="Quarter end").click()
    expect(page.locator("tr[data-job]")).to_have_count(1)
    assert "cursor" not in page.url
    page.get_by_role("button", name="Remove the view Quarter end").click()
    expect(page.get_by_role("link", name="Quarter end")).to_have_count(0)
    page.reload()
    settled(page)
    expect(page.get_by_role("link", name="Quarter end")).to_have_count(0)


@pytest.mark.feature("P16")
def test_jobs_are_cancelled_and_deleted_by_keyboard_alone(look: Look, still: Lane) -> None:
    jobs = [still.add("export", {"day": day}) for day in range(4)]
    page = look.at(f"/job-queues/{still.name}")
    expect(page.locator("tr[data-job]")).to_have_count(4)
    page.keyboard.press("j")
    page.keyboard.press("c")
    expect(page.get_by_role("dialog")).to_contain_text("Cancel this job?")
    page.keyboard.press("Enter")
    expect(page.get_by_text("will be cancelled")).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_text("will be cancelled")).to_have_count(0)
    for key in ("j", "x", "j", "x", "d"):
        page.keyboard.press(key)
    expect(page.get_by_role("dialog")).to_contain_text("Delete 2 jobs?")
    page.keyboard.press("Enter")
    expect(page.get_by_text("2 jobs deleted.")).to_be_visible()
    assert [still.state(job) for job in jobs] == ["waiting", None, None, "waiting"]


@pytest.mark.feature("P12", "P16")
def test_suggestions_are_taken_with_the_arrow_keys(look: Look, still: Lane) -> None:
    still.add("export")
    page = look.at("/search")
    settled(page)
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    box = page.get_by_label("Query")
    box.press_sequentially("que")
    expect(page.get_by_role("option", name=re.compile("^queue:"))).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(box).to_have_value("queue:")
    box.press_sequentially(still.name)
    page.keyboard.press("Enter")
    expect(page.locator("tr[data-job]")).to_have_count(1)


@pytest.mark.feature("P10")
def test_two_attempts_are_compared(look: Look, lane: Lane) -> None:
    backoff = {"type": "fixed", "delay": 0.01}
    job = lane.add("wavering", {}, max_attempts=2, backoff=backoff)
    page = look.job(lane, job)
    expect(page.locator(".identity")).to_contain_text("failed")
    page.get_by_role("button", name="Compare with attempt 1").click()
    shown = page.locator("details[open] pre").first
    expect(shown.locator("del")).to_contain_text(["attempt 1 of wavering"])
    expect(shown.locator("ins")).to_contain_text(["attempt 2 of wavering"])


@pytest.mark.feature("P10")
def test_a_job_links_to_its_trace(
    pages: None, new_context: Callable[..., BrowserContext], lane: Lane, site: Site, tmp_path: Path
) -> None:
    job = lane.add("ok", trace={"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"})
    with serving(site.url, "--lanes", "other", "--trace-url", "https://traces.example/{trace_id}") as traced:
        look = Look(new_context().new_page(), traced)
        page = look.job(lane, job)
        link = page.get_by_role("link", name="Open the trace")
        expect(link).to_have_attribute("href", f"https://traces.example/{TRACE_ID}")
        look.check()


@pytest.mark.feature("P6")
def test_dragging_over_a_chart_shows_the_jobs_of_that_time(look: Look, lane: Lane) -> None:
    job = lane.add("ok")
    lane.result(job)
    page = look.at(f"/job-metrics?queue={lane.name}")
    expect(page.locator("[data-task=ok]")).to_be_visible()
    plot = page.locator(".u-over").first
    box = plot.bounding_box()
    assert box is not None
    # Positions within the plot: a notice of the queues' health may still push the whole view down.
    plot.drag_to(
        plot,
        source_position={"x": box["width"] * 0.2, "y": 60},
        target_position={"x": box["width"] - 1, "y": 60},
    )
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page).not_to_have_url(re.compile("from="))
    page.get_by_role("button", name="Show its jobs").click()
    expect(page.locator(f"tr[data-job='{job}']")).to_be_visible()


@pytest.mark.feature("P12")
def test_a_flow_is_retried_from_a_failed_job_on_unless_that_is_taken_back(look: Look, lane: Lane) -> None:
    step = {"name": "broken", "queue": lane.name, "options": {"max_attempts": 1}}
    flow = FlowProducer(lane.store.app).add({"name": "ok", "queue": lane.name, "children": [step]})
    top = lane.store.run(flow)
    (failed,) = (node.id for node in top.walk() if node.id != top.id)
    page = look.job(lane, failed)
    expect(page.locator(".identity")).to_contain_text("failed")
    again = page.get_by_role("button", name="Retry flow from here")
    again.click()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    job = lane.store.run(lane.queue.get_job(failed))
    assert job is not None and job.record.manual_retries == 0
    again.click()
    expect(page.get_by_text("The flow runs again from this job.")).to_be_visible()
    expect(page.locator("dt", has_text="Retried by hand")).to_be_visible()
    page = look.job(lane, top.id)
    expect(page.locator("dt", has_text="Retried by hand")).to_be_visible()
    expect(page.get_by_role("button", name="Retry flow from here")).to_have_count(0)
