"""People who do not see the pages, or not well, can use them: axe finds nothing to complain about."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import Lane, Look
from tests.browser.site import ROOT, Site, serving
from tests.browser.test_views import OPERATOR, VIEWS, settled
from windlass import FlowProducer, chord, group, step

pytestmark = [
    pytest.mark.service("chromium"),
    pytest.mark.timeout(180),
    pytest.mark.keeps_threads("windlass-*", reason="of the module's own look at the store"),
]

AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"


def complaints(page: Page) -> list[str]:
    """What axe has to say about a page, one line for each element."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:200]}: {node['failureSummary'][:300]}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.feature("P16")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    lane: Lane, new_context: Callable[..., BrowserContext], site: Site, scheme: Literal["light", "dark"]
) -> None:
    job = lane.add("broken", {"customer": 7}, max_attempts=1, tags=["vip"])
    lane.add("ok", delay=3_600)
    many = group(*(step("ok", {"image": number}, queue=lane.name) for number in range(10)))
    flow = lane.store.run(FlowProducer(lane.store.app).add(chord(many, step("ok", queue=lane.name)))).id
    look = Look(new_context(color_scheme=scheme, reduced_motion="reduce").new_page(), site)
    found: list[str] = []
    waits = lane.add("ok", delay=3_600)
    own = [
        f"/jobs/{lane.name}/{job}",
        f"/jobs/{lane.name}/{waits}",
        f"/flows/{lane.name}/{flow}",
        f"/flows/{lane.name}/{flow}?show=time",
        f"/job-queues/{lane.name}?state=failed",
        "/no/such/view",
    ]
    for path in [*VIEWS, *own]:
        page = look.at(path)
        settled(page)
        found += [f"{path}: {text}" for text in complaints(page)]
    page = look.at(f"/search?search=queue:{lane.name}")
    settled(page)
    page.get_by_label("Query").focus()
    page.get_by_label("Select this page").check()
    page.get_by_label("Query").press("End")
    found += [f"a query and a selection: {text}" for text in complaints(page)]
    page.get_by_role("region", name="Selected jobs").get_by_role("button", name="Delete").click()
    found += [f"a question: {text}" for text in complaints(page)]
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Undo").wait_for()
    found += [f"an undo: {text}" for text in complaints(page)]
    page.get_by_role("button", name="Undo").click()
    assert not found, "\n".join(found)


@pytest.mark.feature("P16")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_forms_and_in_what_is_unfolded(
    lane: Lane, new_context: Callable[..., BrowserContext], site: Site, scheme: Literal["light", "dark"]
) -> None:
    job = lane.add("wavering", max_attempts=2, backoff={"type": "fixed", "delay": 0.01})
    lane.add("ok", delay=3_600, group="acme")
    lane.store.run(lane.queue.upsert_job_scheduler("nightly", {"cron": "0 3 * * *"}, {"name": "ok"}))
    lane.store.run(lane.queue.run_job_scheduler("nightly"))
    lane.store.run(lane.queue.set_global_concurrency(3))
    lane.store.run(lane.store.app.mark("release 1.5"))
    look = Look(new_context(color_scheme=scheme, reduced_motion="reduce").new_page(), site)
    page = look.page
    found: list[str] = []

    def check(what: str) -> None:
        found.extend(f"{what}: {text}" for text in complaints(page))

    settled(look.at(f"/schedules?name={lane.name}&open={lane.name}/nightly"))
    page.get_by_role("region", name="Last runs").get_by_role("link").wait_for()
    check("runs of a schedule")
    page.get_by_role("button", name="Change nightly").click()
    page.locator("[data-words]").wait_for()
    check("the form of a schedule")
    settled(look.at(f"/limits?name={lane.name}"))
    check("limits")
    page.get_by_role("button", name="Limits of group acme").click()
    page.get_by_role("dialog").wait_for()
    check("the form of limits")
    settled(look.at("/job-metrics?compare=1"))
    page.get_by_role("region", name="Deploys compared").wait_for()
    page.get_by_role("button", name="Show its jobs").click()
    settled(page)
    check("deploys, and the jobs of a chart")
    settled(look.at("/search"))
    page.get_by_role("button", name="Save this view").click()
    check("the name of a view")
    settled(look.job(lane, job))
    page.get_by_role("button", name="Compare with attempt 1").click()
    check("two attempts")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keyboard").wait_for()
    check("the keys")
    assert not found, "\n".join(found)


@pytest.mark.feature("P16")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_empty_pages_and_in_what_went_wrong(
    pages: None,
    new_context: Callable[..., BrowserContext],
    tmp_path: Path,
    scheme: Literal["light", "dark"],
) -> None:
    found: list[str] = []
    with serving(f"sqlite:///{tmp_path}/own.db", "--operator", OPERATOR, "--lanes", "alone") as site:
        context = new_context(color_scheme=scheme, reduced_motion="reduce")
        look = Look(context.new_page(), site)
        page = look.page

        def check(what: str) -> None:
            found.extend(f"{what}: {text}" for text in complaints(page))

        look.at("/")
        page.get_by_label("Access token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").wait_for()
        check("a sign-in that failed")
        page.get_by_label("Access token").fill(OPERATOR)
        page.get_by_role("button", name="Sign in").click()
        for path in [*VIEWS, "/job-queues/alone", "/jobs/alone/nothing", "/flows/alone/nothing"]:
            settled(look.at(path))
            check(f"{path}, empty")
        page.set_viewport_size({"width": 390, "height": 800})
        page.get_by_role("button", name="Menu").click()
        check("the menu")
        page.set_viewport_size({"width": 1280, "height": 860})
        context.set_offline(True)
        for name in ("Retries", "Errors", "API"):
            page.get_by_role("navigation", name="Views").get_by_role("link", name=name).click()
            page.get_by_role("main").get_by_role("alert").first.wait_for()
            check(f"{name} without a server")
    assert not found, "\n".join(found)


@pytest.mark.feature("P16")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_dialogs_and_menus(
    lane: Lane,
    still: Lane,
    new_context: Callable[..., BrowserContext],
    site: Site,
    tmp_path: Path,
    scheme: Literal["light", "dark"],
) -> None:
    running = lane.add("gated", {"gate": str(tmp_path), "steps": 1})
    waits = still.add("export", {"day": 1})
    failed = lane.add("broken", max_attempts=1)
    look = Look(new_context(color_scheme=scheme, reduced_motion="reduce").new_page(), site)
    page = look.page
    found: list[str] = []

    def check(what: str) -> None:
        expect(page.get_by_role("dialog")).to_be_visible()
        found.extend(f"{what}: {text}" for text in complaints(page))
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)

    settled(look.job(still, waits))
    for button in ("Change", "Cancel", "Delete"):
        page.get_by_role("button", name=button, exact=True).click()
        check(f"{button} of a waiting job")
    settled(look.job(lane, failed))
    page.get_by_role("button", name="Run again with changes").click()
    check("arguments for another run")
    settled(look.job(lane, running))
    page.get_by_role("button", name="Cancel", exact=True).click()
    check("Cancel of a running job")
    settled(look.at(f"/job-queues/{still.name}"))
    page.get_by_role("button", name="Add a job").click()
    check("the form of a job")
    page.get_by_role("button", name="Clear", exact=True).click()
    check("Clear of a queue")
    page.locator("summary", has_text="Export").click()
    found += [f"the menu of exports: {text}" for text in complaints(page)]
    menu = page.get_by_role("navigation", name="Export")
    expect(menu).to_be_visible()
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    settled(look.at("/worker-processes"))
    page.get_by_role("button", name="Stop").first.click()
    check("Stop of a worker")
    strip = page.get_by_role("region", name="Health")
    more = strip.get_by_role("button", name=re.compile(r"\d+ more"))
    if more.count():
        more.click()
    found += [f"the health strip: {text}" for text in complaints(page)]
    settled(look.at("/reference"))
    page.locator("[data-operation=search_jobs] summary").click()
    found += [f"an operation of the API: {text}" for text in complaints(page)]
    (tmp_path / "end").touch()
    (tmp_path / "step-1").touch()
    look.check()
    assert not found, "\n".join(found)
