"""Nothing is outside its box and no text lies over another: every page, with long names, at three widths."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.browser.conftest import Look
from tests.browser.crowd import LANES, fill
from tests.browser.site import Site, serving
from tests.browser.test_views import VIEWS, settled

pytestmark = [pytest.mark.service("chromium"), pytest.mark.timeout(300)]

MEASURE = Path(__file__).with_name("measure.js").read_text(encoding="utf-8")
WIDTHS = (1440, 1024, 390)


@dataclass
class Crowd:
    """A dashboard with so many rows."""

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
        yield Crowd(site, own)
        (folder / "end").touch()


def measured(page: Page) -> list[str]:
    """What is wrong with the layout of a page."""
    found: list[str] = page.evaluate(f"({MEASURE})()")
    return found


@pytest.mark.feature("P16")
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_overflows(
    crowd: Crowd, browser: Browser, new_context: Callable[..., BrowserContext], width: int
) -> None:
    look = Look(new_context(viewport={"width": width, "height": 900}).new_page(), crowd.site)
    found: list[str] = []
    for path in [*VIEWS, *crowd.own]:
        page = look.at(path)
        settled(page)
        found += [f"{path} at {width}: {text}" for text in measured(page)]
    assert not found, "\n".join(found[:20])


@pytest.mark.feature("P16")
@pytest.mark.parametrize("width", WIDTHS)
def test_no_form_overflows(
    crowd: Crowd, browser: Browser, new_context: Callable[..., BrowserContext], width: int
) -> None:
    look = Look(new_context(viewport={"width": width, "height": 900}).new_page(), crowd.site)
    page = look.at("/schedules")
    settled(page)
    page.get_by_role("button", name="New schedule").click()
    page.locator("[data-words]").wait_for()
    found = measured(page)
    page = look.at("/limits")
    settled(page)
    if crowd.own:
        page.get_by_role("button", name=re.compile("^Limits of ")).first.click()
        found += measured(page)
    page = look.at("/search")
    settled(page)
    page.get_by_role("button", name="Save this view").click()
    found += measured(page)
    assert not found, "\n".join(found)


@pytest.mark.feature("P16")
def test_the_measure_finds_what_it_is_for(crowd: Crowd, new_context: Callable[..., BrowserContext]) -> None:
    page = new_context(viewport={"width": 1024, "height": 800}).new_page()
    page.set_content(
        "<div style='width:90px;white-space:nowrap'>a text that is wider than its box</div>"
        "<div style='height:4px'>one line</div><div style='height:4px'>another line</div>"
    )
    found = measured(page)
    assert any("is outside" in text for text in found)
    assert any('"one line" lies over "another line"' in text for text in found)
