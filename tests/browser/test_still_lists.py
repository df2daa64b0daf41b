"""Lists hold still while jobs come and go, a selection is kept, and a change can be undone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Lane, Look

pytestmark = [
    pytest.mark.service("chromium"),
    pytest.mark.timeout(120),
    pytest.mark.keeps_threads("windlass-*", reason="of the module's own look at the store"),
]

LATER, SOONER = 3_600, 1_800


def rows(page: Page) -> Locator:
    return page.locator("tr[data-job]")


def ids(page: Page) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        "tr[data-job]", "(rows) => rows.map((row) => row.dataset.job)"
    )
    return found


def selection(page: Page) -> Locator:
    return page.get_by_role("region", name="Selected jobs")


def delayed(lane: Lane, many: int, delay: int = LATER) -> None:
    """Jobs that are due later: the next one comes first in the list."""
    lane.add_bulk([{"name": "ok", "data": {"number": n}, "delay": delay} for n in range(many)])


@pytest.mark.feature("P3", "P17")
def test_new_rows_wait_until_they_are_asked_for(look: Look, still: Lane) -> None:
    delayed(still, 60)
    page = look.at(f"/scheduled-jobs?queue={still.name}")
    expect(rows(page)).to_have_count(50)
    before = ids(page)
    rows(page).nth(3).hover()
    delayed(still, 5, SOONER)
    fresh = page.get_by_role("button", name="5 new")
    expect(fresh).to_be_visible()
    assert ids(page) == before, "no row moved"
    expect(page.get_by_text("65 jobs", exact=True)).to_be_visible()
    fresh.click()
    expect(fresh).to_have_count(0)
    assert ids(page) != before


@pytest.mark.feature("P3", "P12")
def test_a_selection_is_kept_while_the_list_changes(look: Look, still: Lane) -> None:
    delayed(still, 60)
    page = look.at(f"/scheduled-jobs?queue={still.name}")
    page.get_by_label("Select this page").check()
    expect(selection(page)).to_contain_text("50 selected")
    chosen = ids(page)
    for many in (5, 5, 5):
        delayed(still, many, SOONER)
    expect(page.get_by_role("button", name="15 new")).to_be_visible()
    expect(selection(page)).to_contain_text("50 selected")
    assert ids(page) == chosen
    for job in chosen[:2]:
        still.store.run(still.queue.remove(job))
    expect(page.locator("tr.gone")).to_have_count(2)
    assert ids(page) == chosen, "what has gone is marked, and leaves no hole"
    expect(selection(page)).to_contain_text("50 selected, 2 moved on")
    page.get_by_role("button", name=re.compile("new$")).click()
    expect(selection(page)).to_contain_text("50 selected")
    page.get_by_role("button", name="Next").click()
    expect(selection(page)).to_contain_text("50 selected")


def scheduled(page: Page, count: str = r"\d+") -> int:
    """Wait until the menu says how many jobs are scheduled; return how many."""
    views = page.get_by_role("navigation", name="Views")
    expect(views).to_contain_text(re.compile(rf"Scheduled\s*{count}\b"))
    found = re.search(r"Scheduled\s*(\d+)", views.inner_text())
    assert found is not None
    return int(found[1])


@pytest.mark.feature("P17")
def test_a_paused_list_reads_nothing(look: Look, still: Lane) -> None:
    delayed(still, 3)
    page = look.at(f"/scheduled-jobs?queue={still.name}")
    expect(rows(page)).to_have_count(3)
    before = scheduled(page)
    delayed(still, 1)
    scheduled(page, f"{before + 1}")
    page.get_by_role("button", name="Pause list").click()  # a read is due because of the change
    expect(page.get_by_text("Paused: the list stays as it is")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for added in (2, 3):  # two ticks: longer than a read is put off
        delayed(still, 1)
        scheduled(page, f"{before + added}")
    with page.expect_response(re.compile("/api/jobs"), timeout=20_000):
        page.get_by_role("button", name="Refresh").click()
    assert len([url for url in asked if "/api/jobs?" in url]) == 1, "only what was asked for by hand"
    expect(rows(page)).to_have_count(6)
    page.get_by_role("button", name="Resume list").click()
    delayed(still, 1)
    expect(page.get_by_text("7 jobs", exact=True)).to_be_visible()


@pytest.mark.feature("P12")
def test_a_mixed_selection_offers_what_applies_to_each(look: Look, still: Lane, lane: Lane) -> None:
    waits = still.add("export", {"day": 1})
    failed = lane.add("broken", max_attempts=1)
    page = look.at(f"/search?queue={still.name}&queue={lane.name}")
    expect(page.locator(f"tr[data-job='{failed}']")).to_contain_text("PaymentRefused")
    page.get_by_label(f"Select export {waits}").check()
    page.get_by_label(f"Select broken {failed}").check()
    box = selection(page)
    expect(box).to_contain_text("2 selected")
    expect(box.get_by_role("button", name="Retry 1")).to_be_visible()
    expect(box.get_by_role("button", name="Cancel 1")).to_be_visible()
    expect(box.get_by_role("button", name="Delete", exact=True)).to_be_visible()
    box.get_by_role("button", name="Cancel 1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 1 job?")
    expect(dialog).to_contain_text("1 waiting. Not possible for 1 chosen job.")
    dialog.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_text("1 job cancelled")).to_be_visible()
    assert (still.state(waits), lane.state(failed)) == ("cancelled", "failed")
    expect(box).to_contain_text("1 selected")


@pytest.mark.feature("P3", "P12")
def test_a_deletion_is_undone(look: Look, still: Lane) -> None:
    one, other = still.add("export", {"day": 1}), still.add("export", {"day": 2})
    page = look.at(f"/job-queues/{still.name}")
    page.get_by_role("button", name=f"Delete {one}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    status = page.locator(".toasts")
    expect(status).to_contain_text(re.compile(r"1 job will be deleted in \d s"))
    expect(page.locator(f"tr[data-job='{one}'].leaving")).to_be_visible()
    status.get_by_role("button", name="Undo").click()
    expect(page.locator("tr.leaving")).to_have_count(0)
    page.get_by_label("Select this page").check()
    selection(page).get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text("Delete 2 jobs?")
    expect(page.get_by_role("dialog")).to_contain_text("2 waiting")
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("tr.leaving")).to_have_count(2)
    page.locator("body").press("u")
    expect(page.locator("tr.leaving")).to_have_count(0)
    assert [still.state(job) for job in (one, other)] == ["waiting", "waiting"]


@pytest.mark.feature("P10")
def test_cancelling_what_waits_is_undone(look: Look, still: Lane) -> None:
    job = still.add("export")
    page = look.job(still, job)
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It will not run.")
    dialog.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("button", name="Undo").click()
    assert still.state(job) == "waiting"
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".identity")).to_contain_text("cancelled")
    assert still.state(job) == "cancelled"


def test_a_change_that_is_held_back_is_sent_when_the_page_is_left(look: Look, still: Lane) -> None:
    job = still.add("export")
    page = look.at(f"/job-queues/{still.name}")
    page.get_by_role("button", name=f"Delete {job}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    look.at("/limits")
    look.at(f"/job-queues/{still.name}")
    expect(page.get_by_text(f"No waiting job in {still.name}")).to_be_visible()
    assert still.state(job) is None
