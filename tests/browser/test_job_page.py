"""The page of one job: it moves while the job runs, and offers what can be done with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lane, Look
from windlass import FlowProducer, chord, group, step

pytestmark = [
    pytest.mark.service("chromium"),
    pytest.mark.timeout(120),
    pytest.mark.keeps_threads("windlass-*", reason="of the module's own look at the store"),
]

Gate = Callable[[str], None]


@pytest.mark.feature("P10", "P17")
def test_log_and_progress_move_while_the_job_runs(look: Look, lane: Lane, gate: Gate, tmp_path: Path) -> None:
    job = lane.add("gated", {"gate": str(tmp_path), "steps": 2})
    page = look.job(lane, job)
    log = page.get_by_role("log")
    expect(log).to_contain_text("begin: 2 steps")
    gate("step-1")
    expect(log).to_contain_text("step 1 is done")
    expect(page.locator("[data-progress]")).to_have_text("50% · 1 of 2")
    bar = page.get_by_role("progressbar", name="Progress")
    expect(bar).to_have_attribute("aria-valuenow", "50")
    gate("step-2")
    expect(log).to_contain_text("step 2 is done")
    expect(bar).to_have_attribute("aria-valuenow", "100")
    gate("end")
    expect(page.locator(".identity")).to_contain_text("completed")
    expect(page.get_by_text('"all steps done"')).to_be_visible()
    expect(page.get_by_text("Attempt 1: completed")).to_be_visible()


@pytest.mark.feature("P10")
def test_a_running_job_is_cancelled(look: Look, lane: Lane, tmp_path: Path) -> None:
    job = lane.add("gated", {"gate": str(tmp_path), "steps": 1})
    page = look.job(lane, job)
    expect(page.locator(".identity")).to_contain_text("active")
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Its worker asks the handler to stop")
    expect(dialog).not_to_contain_text("will not run")
    expect(dialog.get_by_role("button")).to_have_text(["Go back", "Cancel the job"])
    dialog.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".identity")).to_contain_text("cancelled")
    assert lane.state(job) == "cancelled"


@pytest.mark.feature("P10")
def test_every_attempt_and_error_is_there(look: Look, lane: Lane) -> None:
    backoff = {"type": "fixed", "delay": 0.01}
    job = lane.add("broken", {"customer": 31}, max_attempts=3, backoff=backoff, tags=["vip"], priority=4)
    page = look.job(lane, job)
    expect(page.locator(".identity")).to_contain_text("failed")
    expect(page.get_by_text("3 failed attempts")).to_be_visible()
    shown = page.locator("details[open] pre")
    expect(shown).to_have_text(
        re.compile(r"^\S*PaymentRefused: card of customer 31 was refused\s+File .*in broken")
    )
    page.get_by_role("button", name="Deepest frame first").click()
    expect(shown).to_contain_text("Traceback (most recent call last)")
    expect(page.locator("details")).to_have_count(3)
    for text in ("Attempt 1: failed, will be tried again", "Attempt 3: failed for good", "#vip"):
        expect(page.get_by_text(text)).to_be_visible()
    expect(page.locator("dl").first).to_contain_text("3 of 3")


@pytest.mark.feature("P10")
def test_a_dead_job_runs_again_with_other_arguments(look: Look, lane: Lane, tmp_path: Path) -> None:
    job = lane.add("broken", {"customer": 1}, max_attempts=1)
    page = look.job(lane, job)
    page.get_by_role("button", name="Run again with changes").click()
    dialog = page.get_by_role("dialog")
    text = dialog.get_by_label("Arguments (JSON)")
    text.fill("{not json")
    dialog.get_by_role("button", name="Add the job").click()
    expect(dialog.get_by_role("alert")).to_have_text("The arguments are not JSON.")
    (tmp_path / "mended").touch()
    text.fill(json.dumps({"mended": str(tmp_path / "mended")}))
    dialog.get_by_role("button", name="Add the job").click()
    expect(page.locator(".identity")).to_contain_text("completed")
    assert job not in page.url
    assert lane.state(job) == "failed"


@pytest.mark.feature("P10")
def test_a_pending_job_is_changed(look: Look, still: Lane) -> None:
    job = still.add("export", {"day": 1}, delay=3_600)
    page = look.job(still, job)
    page.get_by_role("button", name="Change").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Save")).to_be_disabled()
    dialog.get_by_label("Priority").fill("9")
    dialog.get_by_label("Arguments (JSON)").fill('{"day": 2}')
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("dl").first).to_contain_text(re.compile(r"Priority\s*9"))
    expect(page.get_by_text('"day": 2')).to_be_visible()


@pytest.mark.feature("P10")
def test_a_job_is_deleted_from_its_page(look: Look, still: Lane) -> None:
    job = still.add("export")
    page = look.job(still, job)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile(f"/job-queues/{still.name}$"))
    assert still.state(job) is None
    look.expected.append("404")
    look.job(still, job)
    expect(page.get_by_text("This job was not found")).to_be_visible()


@pytest.mark.feature("P10")
def test_a_job_is_added_from_a_queue(look: Look, lane: Lane) -> None:
    lane.add("ok")
    page = look.at(f"/job-queues/{lane.name}")
    page.get_by_role("button", name="Add a job").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Task").fill("ok")
    dialog.get_by_label("Arguments (JSON)").fill('{"made": "by hand"}')
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator(".identity")).to_contain_text("completed")
    expect(page.get_by_text('"by hand"').first).to_be_visible()


@pytest.mark.feature("P13")
def test_a_flow_is_drawn_with_its_states(look: Look, lane: Lane, gate: Gate, tmp_path: Path) -> None:
    many = [step("ok", {"image": number}, queue=lane.name) for number in range(12)]
    slow = step("gated", {"gate": str(tmp_path), "steps": 1}, queue=lane.name)
    top = chord(group(*many, slow), step("ok", {"to": "ada"}, queue=lane.name))
    root = lane.store.run(FlowProducer(lane.store.app).add(top)).id
    page = look.at(f"/flows/{lane.name}/{root}")
    graph = page.get_by_role("group", name="Graph of the flow")
    expect(graph.get_by_role("link", name=re.compile("12 of 12 jobs done"))).to_be_visible()
    expect(graph.locator("[data-state=active]")).to_have_count(1)
    expect(graph.locator("[data-state=blocked]")).to_have_count(1)
    expect(graph.locator("path.arrow")).to_have_count(2)
    gate("step-1")
    gate("end")
    expect(graph.locator("[data-state=completed]")).to_have_count(3)
    page.get_by_role("button", name="Every job").click()
    expect(graph.locator("a.box")).to_have_count(14)
    assert "show=all" in page.url
    page.get_by_role("button", name="Zoom out").click()
    expect(page.locator("[data-zoom]")).to_have_text("80%")
    page.get_by_role("button", name="By task").click()
    expect(graph.locator("a.box")).to_have_count(2)
    page.get_by_role("button", name="Time axis").click()
    expect(page.get_by_role("group", name="Runs over time").get_by_role("link")).to_have_count(14)
    look.job(lane, root)
    page.get_by_role("link", name="Graph").click()
    expect(graph).to_be_visible()
