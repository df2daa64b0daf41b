"""What pages ask of the server: nothing while nothing changes, and little while a job runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.browser.conftest import Look
from tests.browser.site import serving
from tests.browser.test_views import VIEWS, settled

pytestmark = [pytest.mark.service("chromium"), pytest.mark.timeout(180)]

IDLE_MS = 30_000


def watch(page: Page) -> list[str]:
    """Every request from now on, streams left out."""
    asked: list[str] = []

    def note(url: str) -> None:
        if not url.endswith(("/api/live", "/events")):
            asked.append(url)

    page.on("request", lambda request: note(request.url))
    return asked


@pytest.mark.feature("P17")
def test_idle_pages_ask_for_nothing(
    pages: None, new_context: Callable[..., BrowserContext], tmp_path: Path
) -> None:
    with serving(f"sqlite:///{tmp_path}/own.db", "--lanes", "alone") as site:
        open_pages: dict[str, tuple[Page, list[str]]] = {}
        for path in VIEWS:
            page = Look(new_context().new_page(), site).at(path)
            settled(page)
            open_pages[path] = (page, [])
        for path, (page, _) in open_pages.items():
            page.wait_for_load_state("load")
            open_pages[path] = (page, watch(page))
        page.wait_for_timeout(IDLE_MS)
        asked = {path: urls for path, (_, urls) in open_pages.items() if urls}
        assert asked == {}
