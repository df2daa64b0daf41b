"""Nothing is outside its box and no text lies over another: every page, with long names, at three widths.

In both themes; ``WINDLASS_PICTURES=FOLDER`` keeps the pictures of the run.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import Look
from tests.browser.crowd import LANES, LONG, fill
from tests.browser.site import Site, serving
from tests.browser.test_views import VIEWS, settled

pytestmark = [pytest.mark.service("chromium"), pytest.mark.timeout(300)]

MEASURE = Path(__file__).with_name("measure.js").read_text(encoding="utf-8")
WIDTHS = (1440, 1024, 390)
HEIGHT = 900
#: An empty picture has less.
LEAST_BYTES = 5_000
#: A link that a person follows: the page and its stream stay.
FOLLOW = """(address) => {
    history.pushState(null, '', address)
    dispatchEvent(new PopStateEvent('popstate'))
}"""
#: What depends on the width is drawn in the frame after it changed, charts one later.
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"


@dataclass
class Crowd:
    """A dashboard with so many rows."""

    name: str
    site: Site
    #: Pages of single things.
    own: list[str]


@pytest.fixture(scope="module", params=[0, 1, 60], ids=["none", "one", "many"])
def crowd(
    request: pytest.FixtureRequest, pages: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Crowd]:
    """A dashboard with no, one or many rows of everything."""
    folder = tmp_path_factory.mktemp("crowd")
    url = f"sqlite:///{folder}/jobs.db"
    with serving(url, "--lanes", ",".join(LANES)) as site:
        with ThreadPoolExecutor(1) as aside:  # Playwright keeps a loop in this thread
            own = aside.submit(asyncio.run, fill(url, folder, request.param)).result()
        for _ in range(request.param):  # each leaves a row in the audit
            httpx.post(
                f"{site.address}/api/v1/queues/{LONG}/resume", headers={"X-Windlass-CSRF": "1"}
            ).raise_for_status()
        yield Crowd({0: "none", 1: "one"}.get(request.param, "many"), site, own)
        (folder / "end").touch()


class Camera:
    """Looks at a page at each width, in each theme: measures it, and takes its picture."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self._folder = folder
        self.found: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def look(self, name: str) -> None:
        title = re.sub(r"[^a-z0-9=]+", "-", name.lower()).strip("-")[:80] or "overview"
        for width in reversed(WIDTHS):  # it ends at the widest
            self.page.set_viewport_size({"width": width, "height": HEIGHT})
            for scheme in ("light", "dark"):
                self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                expect(self.page.locator("html")).to_have_attribute("data-theme", scheme)
                self.page.evaluate(DRAWN)
                taken = self.page.screenshot(animations="disabled", caret="hide")
                (self._folder / f"{title}-{width}-{scheme}.png").write_bytes(taken)
                assert len(taken) > LEAST_BYTES, f"{name} at {width}, {scheme} is empty"
            # The themes differ in colours alone.
            self.found += [f"{name} at {width}: {text}" for text in measured(self.page)]

    def check(self) -> None:
        assert not self.found, "\n".join(self.found[:20])


@pytest.fixture
def camera(crowd: Crowd, new_context: Callable[..., BrowserContext], tmp_path: Path) -> Camera:
    """In front of the overview."""
    kept = os.environ.get("WINDLASS_PICTURES")
    look = Look(new_context(viewport={"width": WIDTHS[0], "height": HEIGHT}).new_page(), crowd.site)
    settled(look.at("/"))
    return Camera(look.page, (Path(kept) if kept else tmp_path) / crowd.name)


def follow(page: Page, crowd: Crowd, path: str) -> None:
    """Go to another view."""
    page.evaluate(FOLLOW, crowd.site.address + path)
    settled(page)


def measured(page: Page) -> list[str]:
    """What is wrong with the layout of a page."""
    found: list[str] = page.evaluate(f"({MEASURE})()")
    return found


@pytest.mark.feature("P16")
def test_no_page_overflows(crowd: Crowd, camera: Camera) -> None:
    for number, path in enumerate([*VIEWS, *crowd.own]):
        follow(camera.page, crowd, path)
        camera.look(f"{number:02d} {path}")
    camera.check()


@pytest.mark.feature("P16")
def test_no_form_overflows(crowd: Crowd, camera: Camera) -> None:
    page = camera.page
    follow(page, crowd, "/schedules")
    page.get_by_role("button", name="New schedule").click()
    page.locator("[data-words]").wait_for()
    camera.look("form of a schedule")
    page.keyboard.press("Escape")
    if crowd.own:
        follow(page, crowd, "/limits")
        page.get_by_role("button", name=re.compile("limits of ")).first.click()
        camera.look("form of limits")
        page.keyboard.press("Escape")
        follow(page, crowd, "/dead-jobs")
        page.get_by_label("Select this page").check()
        camera.look("selection")
        page.get_by_role("region", name="Selected jobs").get_by_role("button", name="Delete").click()
        camera.look("question")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        page.locator("summary", has_text="Export").click()
        camera.look("export")
    follow(page, crowd, "/search")
    page.get_by_role("button", name="Save this view").click()
    camera.look("name of a view")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keyboard").wait_for()
    camera.look("keys")
    camera.check()


@pytest.mark.feature("P16")
def test_the_measure_finds_what_it_is_for(new_context: Callable[..., BrowserContext]) -> None:
    page = new_context(viewport={"width": 1024, "height": 800}).new_page()
    page.set_content(
        "<div style='width:90px;white-space:nowrap'>a text that is wider than its box</div>"
        "<div style='width:90px'><button style='width:140px'>wide</button></div>"
        "<div style='height:4px'>one line</div><div style='height:4px'>another line</div>"
        "<button style='height:20px'>first</button>"
        "<button style='height:20px;margin-left:-30px'>second</button>"
    )
    found = measured(page)
    assert any('"a text that is wider than its box" is outside' in text for text in found)
    assert any('"button wide" is outside' in text for text in found)
    assert any('"one line" lies over "another line"' in text for text in found)
    assert any('"button first" lies over "button second"' in text for text in found)
