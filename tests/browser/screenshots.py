"""Pictures of every view, light and dark, wide and narrow: ``scripts/screenshots [FOLDER]``.

With ``--docs``, only the one that the documentation shows, where it shows it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.past import live_through
from tests.browser.site import ROOT, Site, chromium, serving
from windlass import FlowProducer, Windlass, chord, group, step

WIDE: ViewportSize = {"width": 1440, "height": 900}
MIDDLE: ViewportSize = {"width": 1024, "height": 900}
NARROW: ViewportSize = {"width": 390, "height": 1500}
#: The picture of the landing page of the documentation.
IN_DOCS = ROOT / "docs" / "images" / "dashboard.png"
QUEUES = "billing,images,mail,reports"
KINDS: list[tuple[str, ViewportSize, Literal["light", "dark"]]] = [
    ("light", WIDE, "light"),
    ("dark", WIDE, "dark"),
    ("middle", MIDDLE, "light"),
    ("middle-dark", MIDDLE, "dark"),
    ("narrow", NARROW, "light"),
    ("narrow-dark", NARROW, "dark"),
]


async def prepare(url: str, gate: Path) -> dict[str, str]:
    """A month of work, and something in every state; returns the ids of jobs to look at."""
    async with Windlass(url) as app:
        await live_through(app, int(time.time() * 1000))
        mail, reports, exports = app.queue("mail"), app.queue("reports"), app.queue("exports")
        for number in range(14):
            data = {"to": f"ada{number}@example.com", "subject": "How was it?"}
            await mail.add("send_mail", data, delay=60 * 7 ** (number % 4) + number, tags=["reminder"])
        days = [{"day": f"2026-11-{number % 28 + 1:02d}"} for number in range(37)]
        await exports.add_bulk([{"name": "export_orders", "data": day} for day in days])
        for tenant, size in (("acme", 6), ("globex", 4), ("initech", 3)):
            for number in range(size):
                await exports.add("sync_tenant", {"tenant": tenant, "page": number}, group=tenant)
        await exports.set_global_concurrency(4)
        await exports.set_global_rate_limit((100, 60))
        digest = {"cron": "0 7 * * 1-5", "timezone": "Europe/Stockholm"}
        await mail.upsert_job_scheduler("morning-digest", digest, {"name": "newsletter"})
        await reports.upsert_job_scheduler("refresh-figures", {"every": 900}, {"name": "refresh"})
        await reports.upsert_job_scheduler("month-end", {"cron": "0 3 1 * *"}, {"name": "build_report"})
        await reports.pause_job_scheduler("month-end")
        await reports.run_job_scheduler("refresh-figures")
        await app.mark("release 1.4")
        running = await reports.add("render_film", {"gate": str(gate), "steps": 8}, tags=["quarter"])
        dead = await app.queue("billing").add(
            "charge_card",
            {"customer": 4711, "amount": 129.9},
            max_attempts=2,
            backoff={"delay": 0.2},
            tags=["checkout"],
        )
        return {"running": running.id, "dead": dead.id, "flow": await add_flow(app, gate)}


async def add_flow(app: Windlass, gate: Path) -> str:
    """An album: many pictures, then a cover; a film and a payment beside it; a mail at the end."""
    pictures = group(*(step("resize_image", {"image": number}, queue="images") for number in range(24)))
    cover = chord(pictures, step("make_cover", {"album": 7}, queue="images"))
    film = step("render_film", {"gate": str(gate), "steps": 8}, queue="reports")
    subtitles = chord(group(film), step("translate", {"language": "sv"}, queue="reports"))
    payment = step("charge_card", {"customer": 12}, queue="billing", max_attempts=1)
    receipt = chord(
        group(payment), step("write_receipt", {"order": 12}, queue="billing"), on_failure="continue"
    )
    last = chord(
        group(cover, subtitles, receipt), step("send_album", {"to": "ada@example.com"}, queue="mail")
    )
    return (await FlowProducer(app).add(last)).id


def views(ids: dict[str, str]) -> dict[str, str]:
    """Names of pictures, and addresses."""
    return {
        "overview": "/",
        "queues": "/job-queues",
        "queue": "/job-queues/exports",
        "scheduled": "/scheduled-jobs",
        "retries": "/retries",
        "dead": "/dead-jobs",
        "metrics": "/job-metrics",
        "metrics-task": "/job-metrics?task=charge_card&queue=billing",
        "processes": "/worker-processes",
        "job-running": f"/jobs/reports/{ids['running']}",
        "job-dead": f"/jobs/billing/{ids['dead']}",
        "flow": f"/flows/mail/{ids['flow']}",
        "schedules": "/schedules",
        "schedule-runs": "/schedules?open=reports/refresh-figures",
        "flows": "/flows",
        "errors": "/errors",
        "deploys": "/job-metrics?compare=1&range=24h",
        "search": "/search?state=failed&state=completed&q=order",
        "limits": "/limits",
        "audit": "/audit",
        "empty": "/search?q=no-such-job",
    }


def take(page: Page, site: Site, folder: Path, ids: dict[str, str], kind: str) -> None:
    """One picture of each view."""
    for name, path in views(ids).items():
        take_one(
            page, site.address + path, folder / f"{name}-{kind}.png", whole=not kind.startswith("narrow")
        )


def take_one(page: Page, address: str, path: Path, *, whole: bool) -> None:
    """A picture of one address when it has settled; ``whole``: beyond the screen."""
    page.goto(address)
    expect(page.locator("nav footer")).to_contain_text("Live")
    expect(page.locator(".bone")).to_have_count(0)
    page.wait_for_timeout(700)  # charts and fonts
    page.screenshot(path=path, full_page=whole)


def take_moments(page: Page, site: Site, folder: Path) -> None:
    """What no address shows: a question, a selection, the help."""
    page.goto(site.address + "/dead-jobs")
    page.get_by_label("Select this page").check()
    page.wait_for_timeout(300)
    page.screenshot(path=folder / "selection-light.png")
    page.get_by_role("region", name="Selected jobs").get_by_role("button", name=re.compile("Delete")).click()
    page.wait_for_timeout(200)
    page.screenshot(path=folder / "question-light.png")
    page.get_by_role("dialog").get_by_role("button", name="Go back").click()
    page.locator("body").press("?")
    page.wait_for_timeout(200)
    page.screenshot(path=folder / "help-light.png")
    page.goto(site.address + "/schedules")
    page.get_by_role("button", name="Change morning-digest").click()
    page.locator("[data-words]").wait_for()
    page.screenshot(path=folder / "schedule-form-light.png")
    page.goto(site.address + "/limits")
    page.get_by_role("button", name="Limits of every group of exports").click()
    page.wait_for_timeout(200)
    page.screenshot(path=folder / "limit-form-light.png")
    page.goto(site.address + "/dead-jobs")
    page.locator("summary", has_text="Export").click()
    page.wait_for_timeout(200)
    page.screenshot(path=folder / "export-light.png")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a picture of every view of the dashboard.")
    parser.add_argument("folder", nargs="?", default=str(ROOT / ".reports" / "screenshots"))
    parser.add_argument("--only", choices=[kind for kind, _, _ in KINDS], help="one kind of pictures")
    parser.add_argument("--docs", action="store_true", help="only the picture that the documentation shows")
    given = parser.parse_args()
    folder = Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        url = f"sqlite:///{work}/shop.db"
        gate = Path(work, "gate")
        gate.mkdir()
        ids = asyncio.run(prepare(url, gate))
        for number in range(1, 4):
            (gate / f"step-{number}").touch()
        with serving(url, "--lanes", QUEUES) as site, chromium() as browser:
            if given.docs:
                page = browser.new_page(viewport=WIDE, color_scheme="light")
                take_one(page, site.address, IN_DOCS, whole=False)
                (gate / "end").touch()
                return 0
            for kind, size, scheme in KINDS:
                if given.only not in (None, kind):
                    continue
                page = browser.new_page(viewport=size, color_scheme=scheme)
                take(page, site, folder, ids, kind)
                if kind == "light":
                    take_moments(page, site, folder)
                page.close()
            (gate / "end").touch()
    sys.stdout.write(f"{len(list(folder.glob('*.png')))} pictures in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
