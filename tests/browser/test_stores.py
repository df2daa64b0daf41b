"""Several stores in one dashboard: the header of every page leads from one to the other."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.browser.conftest import Look
from tests.browser.site import ROOT, Site
from tests.browser.test_accessible import complaints
from tests.browser.test_layout import measured
from tests.browser.test_views import settled
from windlass import Windlass

pytestmark = [pytest.mark.service("chromium"), pytest.mark.timeout(120)]

NAMES = ("shop", "mail-of-the-whole-company-with-a-long-name")


async def _fill(urls: dict[str, str]) -> None:
    for name, url in urls.items():
        async with Windlass(url) as app:
            await app.queue(f"queue-of-{name}"[:40]).add("ok", {"store": name})


@pytest.fixture(scope="module")
def stores(pages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """``windlass dashboard`` with two stores, under a prefix."""
    folder = tmp_path_factory.mktemp("stores")
    urls = {name: f"sqlite:///{folder / name}.db" for name in NAMES}
    with ThreadPoolExecutor(1) as aside:
        aside.submit(asyncio.run, _fill(urls)).result()
    command = [sys.executable, "-m", "windlass", "dashboard", "--port", "0", "--json", "--prefix", "/jobs"]
    process = subprocess.Popen(
        [*command, *(f"--store={name}={url}" for name, url in urls.items())],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            lines = [json.loads(process.stdout.readline()) for _ in NAMES]
            yield {
                name: Site(line["url"].rstrip("/"), urls[name], process.pid)
                for name, line in zip(NAMES, lines, strict=True)
            }
        finally:
            process.terminate()


@pytest.mark.feature("P9", "P16")
def test_the_header_leads_to_the_same_view_of_another_store(
    stores: dict[str, Site], new_context: Callable[..., BrowserContext]
) -> None:
    shop, mail = NAMES
    look = Look(new_context().new_page(), stores[shop])
    page = look.at("/job-queues")
    settled(page)
    expect(page.get_by_role("link", name="queue-of-shop")).to_be_visible()
    header = page.get_by_role("banner")
    header.locator("summary", has_text=shop).press("Enter")
    menu = header.get_by_role("navigation", name="Stores")
    expect(menu.get_by_role("link", name=shop)).to_have_attribute("aria-current", "true")
    assert measured(page) == []
    assert complaints(page) == []
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{stores[mail].address}/job-queues")
    expect(page.get_by_role("link", name="queue-of-mail")).to_be_visible()
    expect(page.get_by_role("link", name="queue-of-shop")).to_have_count(0)
    page.get_by_role("link", name="queue-of-mail").click()
    header.locator("summary", has_text=mail).click()
    header.get_by_role("link", name=shop).click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.url == f"{stores[shop].address}/", "what is about one queue is not in the other store"
    look.check()


@pytest.mark.feature("P16")
def test_a_long_name_of_a_store_leaves_room_for_the_search(
    stores: dict[str, Site], new_context: Callable[..., BrowserContext]
) -> None:
    for width in (1440, 1024, 390):
        page = new_context(viewport={"width": width, "height": 800}).new_page()
        Look(page, stores[NAMES[1]]).at("/")
        settled(page)
        box = page.get_by_role("searchbox", name="Find a job").bounding_box()
        assert box is not None and box["width"] > 80
        assert measured(page) == [], width
        page.locator("header summary").click()
        assert measured(page) == [], width
