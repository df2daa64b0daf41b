"""The other views, and what all of them share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import Lane, Look
from tests.browser.site import Site, serving

pytestmark = [
    pytest.mark.service("chromium"),
    pytest.mark.timeout(120),
    pytest.mark.keeps_threads("windlass-*", reason="of the module's own look at the store"),
]

OPERATOR = "operator-token-of-the-browser"
READER = "reader-token-of-the-browser-tests"

VIEWS = {
    "/": "Overview",
    "/job-queues": "Queues",
    "/scheduled-jobs": "Scheduled jobs",
    "/retries": "Retries",
    "/dead-jobs": "Failed jobs",
    "/job-metrics": "Metrics",
    "/worker-processes": "Processes",
    "/schedules": "Schedules",
    "/search": "Search",
    "/errors": "Errors",
    "/limits": "Limits",
    "/flows": "Flows",
    "/audit": "Audit",
    "/reference": "API",
}


def settled(page: Page) -> None:
    """The view has read what it shows."""
    expect(page.locator("nav footer")).to_contain_text("Live")
    expect(page.locator(".bone")).to_have_count(0)


@pytest.mark.feature("P1", "P17")
def test_the_overview_counts_as_things_happen(look: Look, lane: Lane) -> None:
    lane.add("ok")
    page = look.at("/")
    settled(page)
    for name in (
        "Processed today",
        "Failed runs today",
        "Scheduled",
        "Retries",
        "Failed",
        "Processes",
        "Busy",
    ):
        expect(page.locator(f"[data-stat='{name}']")).to_be_visible()
    expect(page.locator("[data-stat=Processes]")).to_have_text("1")
    expect(page.get_by_role("img", name="Runs per day over the last 30 days")).to_be_visible()
    for name in ("scheduled", "failed"):
        expect(page.locator(f"[data-count='{lane.name}:{name}']")).to_have_text("0")
    lane.add("ok", delay=3_600)
    lane.add("broken", max_attempts=1)
    expect(page.locator(f"[data-count='{lane.name}:scheduled']")).to_have_text("1")
    expect(page.locator(f"[data-count='{lane.name}:failed']")).to_have_text("1")
    page.get_by_role("button", name="5 minutes").click()
    expect(page.get_by_role("figure", name="Runs a second over five minutes")).to_be_visible()
    assert page.url.endswith("range=live")


@pytest.mark.feature("P1", "P2")
def test_queues_are_paused_from_their_list(look: Look, lane: Lane) -> None:
    lane.add("ok")
    page = look.at(f"/job-queues?name={lane.name}")
    row = page.locator(f"tr[data-queue='{lane.name}']")
    row.get_by_role("button", name=f"Pause {lane.name}").click()
    expect(row).to_contain_text("paused")
    assert lane.store.run(lane.queue.is_paused())
    row.get_by_role("button", name=f"Resume {lane.name}").click()
    expect(row.get_by_text("paused")).to_have_count(0)
    row.get_by_role("link", name=lane.name).click()
    expect(page.get_by_role("heading", name=lane.name)).to_be_visible()


@pytest.mark.feature("P6")
def test_metrics_tell_of_each_task(look: Look, lane: Lane) -> None:
    for _ in range(3):
        lane.result(lane.add("ok"))
    lane.add("broken", max_attempts=1)
    page = look.at(f"/job-metrics?queue={lane.name}")
    row = page.locator("tr[data-task=ok]")
    expect(row.locator("td").nth(1)).to_have_text("3")
    expect(row.locator("td").nth(2)).to_have_text("100%")
    broken = page.locator("tr[data-task=broken]")
    expect(broken.locator("td").nth(2)).to_have_text("0.0%")
    broken.get_by_role("link", name="broken").click()
    expect(page.get_by_role("link", name="PaymentRefused")).to_be_visible()
    page.get_by_role("button", name="24 hours").click()
    assert "range=24h" in page.url and f"queue={lane.name}" in page.url
    expect(page.get_by_role("heading", name="Runs an hour")).to_be_visible()


@pytest.mark.feature("P7")
def test_a_process_is_quieted_resumed_and_stopped(
    pages: None, new_context: Callable[..., BrowserContext], tmp_path: Path
) -> None:
    with serving(f"sqlite:///{tmp_path}/own.db", "--lanes", "alone") as site:
        look = Look(new_context().new_page(), site)
        page = look.at("/worker-processes")
        card = page.locator("[data-process]")
        expect(card).to_contain_text(f":{site.pid}")
        expect(card).to_contain_text("0 of 8")
        expect(card).to_contain_text(re.compile(r"[\d.]+ MB"))
        expect(card.get_by_role("link", name="alone")).to_be_visible()
        expect(card).to_contain_text(re.compile(r"CPU\s*\d+ %"))
        for figure in ("Busy", "Memory", "CPU"):
            expect(
                card.get_by_role("img", name=re.compile(f"{figure} of .* over five minutes"))
            ).to_be_visible()
        card.get_by_role("button", name="Stacks").click()
        expect(card.get_by_label(f":{site.pid}").last).to_contain_text("thread MainThread", timeout=30_000)
        card.get_by_role("button", name="Quiet").click()
        expect(card.get_by_text("quiet", exact=True)).to_be_visible(timeout=30_000)
        card.get_by_role("button", name="Resume").click()
        expect(card.get_by_text("quiet", exact=True)).to_have_count(0, timeout=30_000)
        card.get_by_role("button", name="Stop").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        expect(page.get_by_text("No worker is running", exact=True)).to_be_visible(timeout=30_000)
        look.check()


@pytest.mark.feature("P7")
def test_a_process_shows_what_it_runs(look: Look, lane: Lane, tmp_path: Path) -> None:
    job = lane.add("gated", {"gate": str(tmp_path), "steps": 4})
    for number in (1, 2):
        (tmp_path / f"step-{number}").touch()
    page = look.at("/worker-processes")
    row = page.locator("tr", has_text=job)
    expect(row).to_contain_text("50% · 2 of 4")
    for name in ("step-3", "step-4", "end"):
        (tmp_path / name).touch()
    expect(row).to_have_count(0)


@pytest.mark.feature("P13")
def test_a_schedule_is_run_paused_and_deleted(look: Look, lane: Lane) -> None:
    name = f"nightly-{lane.name}"
    rule = {"cron": "0 3 * * *", "timezone": "Europe/Stockholm"}
    lane.store.run(lane.queue.upsert_job_scheduler(name, rule, {"name": "ok", "data": {"kind": "all"}}))
    page = look.at(f"/schedules?name={name}")
    row = page.locator(f"tr[data-schedule='{name}']")
    expect(row).to_contain_text("0 3 * * *")
    expect(row).to_contain_text("never")
    row.get_by_role("button", name=f"Run now {name}").click()
    expect(row.get_by_text("never")).to_have_count(0)
    row.get_by_role("button", name=f"Pause {name}").click()
    expect(row).to_contain_text("paused")
    row.get_by_role("button", name=f"Resume {name}").click()
    expect(row.get_by_text("paused")).to_have_count(0)
    row.get_by_role("link").last.click()
    expect(page.locator(".identity")).to_contain_text("completed")
    look.at(f"/schedules?name={name}")
    row.get_by_role("button", name=f"Delete {name}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No schedule has a name like that")).to_be_visible()


@pytest.mark.feature("P13")
def test_limits_and_groups_are_shown(look: Look, still: Lane) -> None:
    still.store.run(still.queue.set_global_concurrency(4))
    still.add("export", group="acme")
    still.add("export", group="acme")
    page = look.at("/limits")
    card = page.locator(f"[data-limits='{still.name}']")
    expect(card.locator("[data-usage]")).to_have_text("0 of 4")
    expect(card.locator("[data-group=acme]").locator("td").nth(2)).to_have_text("2")


@pytest.mark.feature("P16")
def test_what_was_changed_is_in_the_audit(look: Look, lane: Lane) -> None:
    lane.add("ok")
    page = look.at(f"/job-queues/{lane.name}")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    look.at("/audit")
    row = page.locator("tr", has_text=f"/api/job-queues/{lane.name}/pause")
    expect(row).to_contain_text("ok 204")
    expect(row).to_contain_text(f"queue {lane.name}")
    look.expected.append("403")
    status = page.evaluate("fetch('api/marks', {method: 'POST'}).then((answer) => answer.status)")
    assert status == 403, "without the header of our own pages"
    page.get_by_role("button", name=re.compile("^Refused")).click()
    expect(page.locator("tr", has_text="POST /api/marks").first).to_contain_text("refused 403")


@pytest.mark.feature("P16")
def test_dark_and_light_are_as_the_system_says_until_chosen(
    look: Look, new_context: Callable[..., BrowserContext], site: Site
) -> None:
    dark = Look(new_context(color_scheme="dark").new_page(), site).at("/")
    expect(dark.locator("html")).to_have_attribute("data-theme", "dark")
    page = look.at("/")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.feature("P16")
def test_every_view_fits_a_narrow_screen(
    look: Look, lane: Lane, new_context: Callable[..., BrowserContext], site: Site
) -> None:
    job = lane.add("broken", {"customer": "x" * 200}, max_attempts=1)
    narrow = Look(new_context(viewport={"width": 400, "height": 800}).new_page(), site)
    for path in [*VIEWS, f"/jobs/{lane.name}/{job}", f"/job-queues/{lane.name}?state=failed"]:
        page = narrow.at(path)
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
    expect(
        page.locator(f"tr[data-job='{job}']").get_by_role("button", name=f"Retry now {job}")
    ).to_be_visible()
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Metrics").click()
    expect(page.get_by_role("heading", name="Metrics")).to_be_visible()
    narrow.check()


@pytest.mark.feature("P1", "P16")
def test_every_view_has_an_address_and_a_heading(look: Look) -> None:
    for path, title in VIEWS.items():
        page = look.at(path)
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
        expect(page).to_have_title(f"{title} · Windlass")
        settled(page)


@pytest.mark.feature("P16")
def test_an_unknown_address_says_so(look: Look) -> None:
    look.expected.append("404")
    page = look.at("/no/such/view")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    expect(page.get_by_text("There is no view at /no/such/view")).to_be_visible()
    page.get_by_role("main").get_by_role("link", name="overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


@pytest.mark.feature("P1", "P6")
def test_charts_show_the_backlog_and_do_not_draw_an_open_minute_as_a_fall(look: Look, still: Lane) -> None:
    still.add("export")
    page = look.at("/?time=backlog")
    settled(page)
    expect(page.get_by_role("figure", name="Backlog over five minutes")).to_contain_text("Waiting")
    look.at("/")
    settled(page)
    colors = page.evaluate("""() => {
        const style = getComputedStyle(document.documentElement)
        return [style.getPropertyValue('--p99'), style.getPropertyValue('--failed')]
    }""")
    assert colors[0] and colors[0] != colors[1]
    last = page.get_by_role("figure", name="Runs a minute over the last hour").locator(".plot")
    box = last.bounding_box()
    assert box is not None
    last.hover(position={"x": box["width"] - 18, "y": 60})
    expect(page.locator(".when").first).to_contain_text("not over yet")


@pytest.mark.feature("P2", "P16")
def test_lists_are_sorted_by_their_columns(look: Look, still: Lane) -> None:
    first, second = (still.add("export", {"day": day}) for day in range(2))
    page = look.at(f"/job-queues/{still.name}")
    rows = page.locator("tr[data-job]")
    expect(rows.first).to_have_attribute("data-job", first)
    head = page.get_by_role("columnheader", name="Waiting since")
    expect(head).to_have_attribute("aria-sort", "ascending")
    page.get_by_label(f"Select export {first}").check()
    head.get_by_role("button").press("Enter")
    expect(rows.first).to_have_attribute("data-job", second)
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_label(f"Select export {first}")).to_be_checked()
    assert "order=newest" in page.url
    look.at("/job-queues")
    names = page.locator("tr[data-queue] a.strong")
    expect(names.filter(has_text=still.name)).to_be_visible()
    assert names.all_inner_texts() == sorted(names.all_inner_texts())
    page.get_by_role("columnheader", name="Waiting").get_by_role("button").click()
    expect(page.get_by_role("columnheader", name="Waiting")).to_have_attribute("aria-sort", "descending")
    waiting = page.locator("[data-count$=':waiting']")
    counts = [int(text) for text in waiting.all_inner_texts()]
    assert counts == sorted(counts, reverse=True) and counts[0] >= 2


@pytest.mark.feature("P16")
def test_the_api_is_described_in_the_dashboard(look: Look) -> None:
    page = look.at("/reference")
    settled(page)
    one = page.locator("[data-operation=search_jobs]")
    expect(one.locator("summary")).to_contain_text("/api/v1/jobs")
    one.locator("summary").click()
    expect(one.get_by_label("Example", exact=True)).to_contain_text("curl")
    expect(one.get_by_role("cell", name="limit", exact=True)).to_be_visible()
    expect(one.get_by_label("Answer", exact=True)).to_contain_text("next_cursor")
    page.get_by_label("Find an operation").fill("get_stacks")
    expect(page.locator("[data-operation]")).to_have_count(1)
    page.get_by_role("button", name="All routes").click()
    page.get_by_label("Find an operation").fill("/api/processes")
    expect(page.locator("[data-operation]").first).to_contain_text("/api/processes")
    page.get_by_label("Find an operation").fill("xyzzy")
    expect(page.get_by_text("No operation matches")).to_be_visible()


@pytest.mark.feature("P16")
def test_the_keyboard_is_enough(look: Look, still: Lane) -> None:
    jobs = [still.add("export", {"day": day}) for day in range(3)]
    page = look.at("/")
    settled(page)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_contain_text("Find a job")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", name="Failed jobs")).to_be_visible()
    look.at(f"/job-queues/{still.name}")
    expect(page.locator("tr[data-job]")).to_have_count(3)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_label(f"Select export {jobs[1]}")).to_be_checked()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(jobs[1]))
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("Tab")
    focused = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert focused == "solid"


@pytest.mark.feature("P16")
def test_signing_in_under_a_prefix_as_reader_and_as_operator(
    pages: None, new_context: Callable[..., BrowserContext], tmp_path: Path
) -> None:
    options = ("--prefix", "/admin/jobs", "--operator", OPERATOR, "--reader", READER, "--lanes", "deck")
    with serving(f"sqlite:///{tmp_path}/own.db", *options) as site:
        look = Look(new_context().new_page(), site)
        look.expected.append("401")
        page = look.at("/job-queues")
        page.get_by_label("Access token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("The sign-in failed")
        page.get_by_label("Access token").fill(READER)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        expect(page.get_by_text("Read only")).to_be_visible()
        expect(
            page.get_by_role("navigation", name="Views").get_by_role("link", name="Failed")
        ).to_have_attribute("href", "/admin/jobs/dead-jobs")
        look.at("/worker-processes")
        expect(page.locator("[data-process]")).to_be_visible()
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Access token").fill(OPERATOR)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        page.locator("body").press("g")
        page.locator("body").press("q")
        expect(page).to_have_url(f"{site.address}/job-queues")
        look.check()


@pytest.mark.feature("P16")
def test_nothing_is_loaded_from_elsewhere_and_the_policy_is_strict(look: Look, site: Site) -> None:
    asked: list[str] = []
    look.page.on("request", lambda request: asked.append(request.url))
    page = look.page
    answer = page.goto(site.address + "/")
    settled(page)
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy
    assert asked and all(url.startswith(site.address + "/") for url in asked)


def test_a_server_that_is_gone_is_told_and_found_again(
    pages: None, browser: Browser, new_context: Callable[..., BrowserContext], tmp_path: Path
) -> None:
    with serving(f"sqlite:///{tmp_path}/own.db", "--lanes", "deck") as site:
        context = new_context()
        page = Look(context.new_page(), site).at("/dead-jobs")
        settled(page)
        context.set_offline(True)
        page.get_by_role("link", name="Retries").click()
        expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
        context.set_offline(False)
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_text("No job waits for a retry")).to_be_visible()
