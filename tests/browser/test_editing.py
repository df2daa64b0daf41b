"""Schedules and limits are made and changed on their pages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lane, Look

pytestmark = [
    pytest.mark.service("chromium"),
    pytest.mark.timeout(120),
    pytest.mark.keeps_threads("windlass-*", reason="of the module's own look at the store"),
]


def schedule(lane: Lane, name: str) -> Any:
    return lane.store.run(lane.queue.get_job_scheduler(name))


@pytest.mark.feature("P13")
def test_a_schedule_is_made_changed_and_followed(look: Look, lane: Lane) -> None:
    lane.add("ok")
    page = look.at("/schedules")
    page.get_by_role("button", name="New schedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("nightly")
    dialog.get_by_label("Queue").fill(lane.name)
    look.expected.append("422")  # a rule that is none
    dialog.get_by_label("Cron text").fill("not a cron")
    expect(dialog.locator(".slots .bad")).to_be_visible()
    expect(dialog.get_by_role("button", name="Save")).to_be_disabled()
    dialog.get_by_label("Cron text").fill("30 3 * * 1-5")
    dialog.get_by_label("Time zone").fill("Asia/Tokyo")
    expect(dialog.locator("[data-words]")).to_have_text("at 03:30, on Monday to Friday")
    expect(dialog.locator(".slots li")).to_have_count(3)
    dialog.get_by_label("Task").fill("ok")
    dialog.get_by_label("Arguments (JSON)").fill('{"days": 7}')
    dialog.get_by_role("button", name="Save").click()
    row = page.locator("[data-schedule=nightly]")
    expect(row).to_contain_text("at 03:30, on Monday to Friday")
    row.get_by_role("button", name="Change nightly").click()
    dialog.get_by_label("Rule").select_option("every")
    dialog.get_by_label("Seconds between two runs").fill("7200")
    expect(dialog.locator("[data-words]")).to_have_text("every 7200 s")
    dialog.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("every 7200 s")
    known = schedule(lane, "nightly")
    assert (known.task, known.data, known.every) == ("ok", {"days": 7}, 7_200)
    row.get_by_role("button", name="Run now nightly").click()
    row.get_by_role("button", name="Runs of nightly").click()
    runs = page.get_by_role("region", name="Last runs")
    expect(runs.get_by_role("link")).to_have_count(1)
    expect(runs).to_contain_text("completed")
    expect(page.get_by_role("region", name="Next runs").get_by_role("listitem")).to_have_count(5)


@pytest.mark.feature("P13")
def test_limits_of_a_queue_and_of_a_group_are_changed(look: Look, still: Lane) -> None:
    still.store.run(still.queue.set_global_concurrency(4))
    still.add("export", group="acme")
    page = look.at(f"/limits?name={still.name}")
    card = page.locator("[data-limits]")
    card.get_by_role("button", name=f"Limits of {still.name}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Jobs at once")).to_have_value("4")
    dialog.get_by_label("Jobs at once").fill("9")
    dialog.get_by_label("Starts").fill("100")
    dialog.get_by_label("within this many seconds").fill("60")
    dialog.get_by_role("button", name="Save").click()
    expect(card.locator("[data-usage]")).to_have_text("0 of 9")
    expect(card).to_contain_text("100 in 60 s")
    card.get_by_role("button", name=f"Limits of every group of {still.name}").click()
    dialog.get_by_label("Jobs at once").fill("2")
    dialog.get_by_role("button", name="Save").click()
    group = card.locator("[data-group=acme]")
    expect(group).to_contain_text("0 of 2")
    group.get_by_role("button", name="Pause group acme").click()
    expect(group).to_contain_text("paused")
    group.get_by_role("button", name="Resume group acme").click()
    expect(group.get_by_role("button", name="Pause group acme")).to_be_visible()
    group.get_by_role("button", name="Limits of group acme").click()
    dialog.get_by_label("One after the other").check()
    dialog.get_by_label("Jobs at once").fill("x")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    dialog.get_by_role("button", name="No limits").click()
    expect(page.get_by_role("status").filter(has_text=re.compile("removed"))).to_be_visible()
