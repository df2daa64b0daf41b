"""Lists of jobs: what they show, and everything that can be done from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Lane, Look

pytestmark = [
    pytest.mark.service("chromium"),
    pytest.mark.timeout(120),
    pytest.mark.keeps_threads("windlass-*", reason="of the module's own look at the store"),
]

LATER = 3_600


def rows(page: Page) -> Locator:
    return page.locator("tr[data-job]")


def confirm(page: Page, action: str) -> None:
    """Say yes to the question."""
    page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()


@pytest.mark.feature("P3")
def test_a_scheduled_job_is_run_now(look: Look, lane: Lane) -> None:
    job = lane.add("ok", {"order": 7}, delay=LATER)
    page = look.at(f"/scheduled-jobs?queue={lane.name}")
    row = page.locator(f"tr[data-job='{job}']")
    expect(row).to_contain_text('{"order":7}')
    expect(row.locator("time")).to_have_text(re.compile("in 1 h|in 60 m|in 59 m"))
    row.get_by_role("button", name=f"Run now {job}").click()
    expect(page.get_by_role("status")).to_contain_text("ready to run")
    expect(row).to_have_count(0)
    assert lane.result(job) == {"echo": {"order": 7}}


@pytest.mark.feature("P3")
def test_pressing_the_mouse_on_a_menu_leaves_the_focus_and_the_menu(look: Look, lane: Lane) -> None:
    """Where a press does not focus a link, the menu would close before the click is there."""
    lane.add("ok", delay=LATER)
    page = look.at(f"/scheduled-jobs?queue={lane.name}")
    button, menu = page.locator("summary", has_text="Export"), page.get_by_role("navigation", name="Export")
    button.click()
    menu.get_by_role("link").first.hover()
    page.mouse.down()
    expect(button).to_be_focused()
    page.mouse.move(0, 0)
    page.mouse.up()
    expect(menu).to_be_visible()


@pytest.mark.feature("P3")
def test_a_scheduled_job_is_deleted_after_a_question(look: Look, lane: Lane) -> None:
    job = lane.add("ok", delay=LATER)
    page = look.at(f"/scheduled-jobs?queue={lane.name}")
    page.get_by_role("button", name=f"Delete {job}").click()
    page.get_by_role("dialog").get_by_role("button", name="Go back").click()
    assert lane.state(job) is not None
    page.get_by_role("button", name=f"Delete {job}").click()
    confirm(page, "Delete")
    expect(page.get_by_text("Nothing matches these filters")).to_be_visible()
    assert lane.state(job) is None


@pytest.mark.feature("P4")
def test_a_retry_is_made_now(look: Look, lane: Lane, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    job = lane.add(
        "broken", {"mended": str(mended)}, max_attempts=2, backoff={"type": "fixed", "delay": LATER}
    )
    page = look.at(f"/retries?queue={lane.name}")
    row = page.locator(f"tr[data-job='{job}']")
    expect(row).to_contain_text("PaymentRefused")
    expect(row).to_contain_text("1/2")
    mended.touch()
    row.get_by_role("button", name=f"Retry now {job}").click()
    expect(row).to_have_count(0)
    lane.result(job)


@pytest.mark.feature("P4")
def test_a_retry_is_killed(look: Look, lane: Lane) -> None:
    job = lane.add("broken", max_attempts=2, backoff={"type": "fixed", "delay": LATER})
    page = look.at(f"/retries?queue={lane.name}")
    page.get_by_role("button", name=f"Kill {job}").click()
    confirm(page, "Kill")
    expect(page.locator(f"tr[data-job='{job}']")).to_have_count(0)
    assert lane.state(job) == "failed"


@pytest.mark.feature("P5")
def test_a_dead_job_is_retried_and_another_deleted(look: Look, lane: Lane, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    first = lane.add("broken", {"mended": str(mended)}, max_attempts=1)
    second = lane.add("broken", {"customer": 12}, max_attempts=1)
    page = look.at(f"/dead-jobs?queue={lane.name}")
    expect(rows(page)).to_have_count(2)
    expect(page.locator(f"tr[data-job='{second}']")).to_contain_text("card of customer 12 was refused")
    mended.touch()
    page.get_by_role("button", name=f"Retry now {first}").click()
    expect(page.locator(f"tr[data-job='{first}']")).to_have_count(0)
    lane.result(first)
    page.get_by_role("button", name=f"Delete {second}").click()
    confirm(page, "Delete")
    expect(rows(page)).to_have_count(0)
    assert lane.state(second) is None


@pytest.mark.feature("P12")
def test_a_thousand_dead_jobs_are_retried_with_progress(look: Look, lane: Lane, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    many = [{"name": "broken", "data": {"mended": str(mended)}, "max_attempts": 1}] * 1_000
    lane.add_bulk(many)
    page = look.at(f"/dead-jobs?queue={lane.name}")
    expect(page.get_by_text("1,000 jobs", exact=True)).to_be_visible(timeout=60_000)
    mended.touch()
    page.get_by_label("Select this page").check()
    selection = page.get_by_role("region", name="Selected jobs")
    expect(selection).to_contain_text("50 selected")
    selection.get_by_role("button", name="Select all 1,000").click()
    selection.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("dialog")).to_contain_text("Retry 1,000 jobs?")
    confirm(page, "Retry")
    expect(page.get_by_text("1,000 jobs retried")).to_be_visible(timeout=60_000)
    page.goto(
        look.page.url.replace("/dead-jobs", f"/job-queues/{lane.name}").split("?")[0] + "?state=completed"
    )
    expect(page.get_by_role("tab", name=re.compile("completed 1,000"))).to_be_visible(timeout=60_000)
    assert lane.counts()["failed"] == 0


@pytest.mark.feature("P12")
def test_chosen_jobs_alone_are_deleted(look: Look, still: Lane) -> None:
    jobs = [still.add("export", {"day": day}) for day in range(3)]
    page = look.at(f"/job-queues/{still.name}")
    for job in jobs[:2]:
        page.get_by_label(f"Select export {job}").check()
    page.get_by_role("region", name="Selected jobs").get_by_role("button", name="Delete").click()
    confirm(page, "Delete")
    expect(page.get_by_text("2 jobs deleted")).to_be_visible()
    expect(rows(page)).to_have_count(1)
    assert [still.state(job) is None for job in jobs] == [True, True, False]


@pytest.mark.feature("P2")
def test_a_queue_shows_its_jobs_and_is_paused_and_resumed(look: Look, lane: Lane) -> None:
    page = look.at(f"/job-queues/{lane.name}")
    lane.store.run(lane.queue.pause())
    first = lane.add("ok", {"number": 1})
    expect(page.locator(f"tr[data-job='{first}']")).to_contain_text('{"number":1}')
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("is running again")
    lane.result(first)
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text("Paused. Jobs are accepted, but none is started.")).to_be_visible()
    second = lane.add("ok", {"number": 2})
    expect(page.locator(f"tr[data-job='{second}']")).to_be_visible()
    assert lane.store.run(lane.queue.is_paused())


@pytest.mark.feature("P2")
def test_a_queue_is_walked_by_pages(look: Look, still: Lane) -> None:
    still.add_bulk([{"name": "export", "data": {"day": day}} for day in range(120)])
    page = look.at(f"/job-queues/{still.name}")
    expect(rows(page)).to_have_count(50)
    expect(rows(page).first).to_contain_text('{"day":0}')  # what waits longest comes first
    page.get_by_role("button", name="Next").click()
    expect(rows(page).first).to_contain_text('{"day":50}')
    assert "cursor=" in page.url
    page.reload()  # the address is enough
    expect(rows(page).first).to_contain_text('{"day":50}')
    page.get_by_role("button", name="Next").click()
    expect(rows(page)).to_have_count(20)
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_role("button", name="Previous").click()
    expect(rows(page).first).to_contain_text('{"day":50}')
    page.get_by_role("button", name="First").click()
    expect(rows(page).first).to_contain_text('{"day":0}')


@pytest.mark.feature("P2")
def test_a_queue_is_cleared(look: Look, still: Lane) -> None:
    still.add_bulk([{"name": "export"}] * 5)
    page = look.at(f"/job-queues/{still.name}")
    expect(rows(page)).to_have_count(5)
    page.get_by_role("button", name="Clear", exact=True).click()
    confirm(page, "Remove")
    expect(page.get_by_text(f"No waiting job in {still.name}")).to_be_visible()
    assert still.counts()["waiting"] == 0


@pytest.mark.feature("P11")
def test_a_search_is_in_its_address(look: Look, still: Lane) -> None:
    still.add("send_mail", {"to": "ada@example.com", "user": 7}, tags=["vip"])
    still.add("send_mail", {"to": "bob@example.com", "user": 8})
    still.add("make_report", {"user": 7})
    page = look.at(f"/search?queue={still.name}")
    expect(rows(page)).to_have_count(3)
    page.get_by_label("Task", exact=True).fill("send_*")
    expect(rows(page)).to_have_count(2)
    page.get_by_label("Argument").fill("user=7")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text("ada@example.com")
    assert "task=send_" in page.url and "args=user" in page.url
    page.reload()
    expect(rows(page)).to_have_count(1)
    page.get_by_role("button", name="Clear", exact=True).click()
    assert "task=" not in page.url
    look.at(f"/search?queue={still.name}&tag=vip")
    expect(rows(page)).to_have_count(1)
    look.at(f"/search?queue={still.name}&state=completed")
    expect(page.get_by_text("Nothing matches these filters")).to_be_visible()


@pytest.mark.feature("P11")
def test_errors_are_found_by_their_class_and_text(look: Look, lane: Lane) -> None:
    job = lane.add("broken", {"customer": 90210}, max_attempts=1)
    page = look.at(f"/search?queue={lane.name}&error=PaymentRefused")
    expect(page.locator(f"tr[data-job='{job}']")).to_contain_text("failed")
    page.locator("body").press("/")
    page.keyboard.type("customer 90210")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/search\?search=customer%2090210"))
    expect(page.locator(f"tr[data-job='{job}']")).to_be_visible()
