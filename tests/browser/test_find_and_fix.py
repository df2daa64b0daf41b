"""An operator finds a job, sees why it waits, and puts things right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lane, Look

pytestmark = [
    pytest.mark.service("chromium"),
    pytest.mark.timeout(120),
    pytest.mark.keeps_threads("windlass-*", reason="of the module's own look at the store"),
]


@pytest.mark.feature("P11")
def test_a_query_is_written_with_help_and_finds(look: Look, still: Lane) -> None:
    wanted = still.add("charge_card", {"customer": {"id": 42}}, tags=["vip"])
    still.add("charge_card", {"customer": {"id": 43}})
    still.add_bulk([{"name": "export", "data": {"day": day}} for day in range(1_500)])
    page = look.at(f"/search?search=queue:{still.name}")
    query = page.get_by_label("Query")
    query.click()
    query.press("End")
    query.press_sequentially(" ta")
    page.get_by_role("button", name=re.compile("^task:")).click()
    query.press_sequentially("charge_card args.customer.id:42")
    expect(page.locator("tr[data-job]")).to_have_count(1)
    expect(page.locator(f"tr[data-job='{wanted}']")).to_contain_text('{"customer":{"id":42}}')
    assert "search=queue" in page.url
    query.fill("tusk:charge_card")
    query.press("Enter")
    look.expected.append("400")
    look.expected.append("422")
    expect(page.get_by_role("alert")).to_contain_text("task")


@pytest.mark.feature("P11")
def test_the_exact_id_is_found_at_once(look: Look, still: Lane) -> None:
    wanted = still.add("export", {"day": 0})
    still.add_bulk([{"name": "export", "data": {"day": day}} for day in range(1_500)])
    page = look.at("/")
    expect(page.locator("#find")).to_be_visible()  # before, the page takes no keys
    page.locator("body").press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type(wanted)
    page.keyboard.press("Enter")
    expect(page.locator("tr[data-job]")).to_have_count(1)
    expect(page.locator(f"tr[data-job='{wanted}']")).to_be_visible()


@pytest.mark.feature("P10")
def test_a_job_says_why_it_is_not_running(look: Look, still: Lane) -> None:
    job = still.add("export")
    page = look.job(still, job)
    box = page.get_by_role("region", name="Why is it not running?")
    expect(box.locator("[data-cause=no_worker]")).to_be_visible()
    still.store.run(still.queue.pause())
    expect(box.locator("[data-cause]").first).to_have_attribute("data-cause", "queue_paused")
    later = still.add("export", delay=3_600)
    look.job(still, later)
    expect(box.locator("[data-cause=scheduled]")).to_be_visible()


@pytest.mark.feature("P1")
def test_every_page_shows_what_is_wrong_and_leads_there(look: Look, still: Lane) -> None:
    still.add("export")
    page = look.at("/schedules")
    strip = page.get_by_role("region", name="Health")
    expect(strip).to_be_visible()
    more = strip.get_by_role("button", name=re.compile(r"\d+ more"))
    if more.count():
        more.click()
    finding = strip.locator("p", has_text=still.name)
    expect(finding.first).to_be_visible()
    finding.first.get_by_role("link").click()
    expect(page).not_to_have_url(re.compile("/schedules"))


@pytest.mark.feature("P5", "P12")
def test_all_jobs_of_one_error_are_retried(look: Look, lane: Lane, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    for number in range(3):
        lane.add("broken", {"customer": number, "mended": str(mended)}, max_attempts=1)
    page = look.at("/errors")
    group = page.locator("[data-error]", has_text="PaymentRefused")
    expect(group).to_have_count(1)
    expect(group.locator(".num").first).to_contain_text(re.compile(r"^\s*\d+"))
    group.get_by_role("button", name=re.compile("^Newest job with it")).click()
    expect(group.locator("pre")).to_contain_text("PaymentRefused")
    group.get_by_role("button", name="Mute").click()
    expect(group).to_have_count(0)
    page.get_by_role("button", name="Show them").click()
    group.get_by_role("button", name="Unmute").click()
    mended.touch()
    group.get_by_role("button", name="Retry all").click()
    expect(page.get_by_role("dialog")).to_contain_text(re.compile(r"Retry \d+ jobs?\?"))
    page.get_by_role("dialog").get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_text(re.compile(r"\d+ jobs? retried"))).to_be_visible()
    lane.store.run(lane.queue.add("ok"))
    look.at(f"/job-queues/{lane.name}?state=completed")
    expect(page.locator("tr[data-job]")).to_have_count(4)


@pytest.mark.feature("P4")
def test_the_next_retry_and_the_last_failure_come_first(look: Look, still: Lane) -> None:
    late = still.add("export", {"day": 2}, delay=7_200)
    soon = still.add("export", {"day": 1}, delay=3_600)
    latest = still.add("export", {"day": 3}, delay=9_000)
    page = look.at(f"/scheduled-jobs?queue={still.name}")
    expect(page.locator("tr[data-job]")).to_have_count(3)
    shown = page.eval_on_selector_all("tr[data-job]", "(rows) => rows.map((row) => row.dataset.job)")
    assert shown == [soon, late, latest]
