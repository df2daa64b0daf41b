"""One dashboard with a live worker, and one Chromium, for the tests of a module.

Playwright keeps an event loop in the thread of the tests while it lives. It ends with the module, so that
coroutine tests of other modules find none.

Every test works in a queue of its own (a *lane*) and looks at pages that are filtered by it, so tests do not
see each other. A page that writes an error to the console, or that its content policy had to stop, fails its
test.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from tests.browser.handlers import LANES
from tests.browser.site import ROOT, Site, chromium, find_chromium, serving
from windlass import Queue, Windlass

#: Milliseconds: the machine may be busy with the rest of the suite.
expect.set_options(timeout=15_000)
#: Seconds for one verb of the store.
_PATIENCE = 30
T = TypeVar("T")


@pytest.fixture(scope="module")
def pages(services: str) -> None:
    """The pages are built and there is a browser to show them."""
    if find_chromium() is None or not (ROOT / "src/windlass/dashboard/static/index.html").is_file():
        if services == "required":
            pytest.fail("Chromium or the built pages are missing: see scripts/test", pytrace=False)
        pytest.skip("needs Chromium and scripts/build-ui")


@pytest.fixture(scope="module")
def site(pages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The dashboard, on a database of this module."""
    with serving(f"sqlite:///{tmp_path_factory.mktemp('site')}/jobs.db") as running:
        yield running


@pytest.fixture(scope="module")
def browser(pages: None) -> Iterator[Browser]:
    """Chromium."""
    with chromium() as running:
        yield running


class Store:
    """The store behind the dashboard, as another program sees it.

    Its loop runs in a thread of its own: Playwright keeps one in the thread of the tests.
    """

    def __init__(self, url: str) -> None:
        self.lanes = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser-tests-store")
        self._thread.start()
        self.app = Windlass(url)
        self.run(self.app.queues())  # connects: the threads of the store are not those of a test

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a verb of the store."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    def close(self) -> None:
        self.run(self.app.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def store(site: Site) -> Iterator[Store]:
    """The store behind the dashboard."""
    opened = Store(site.url)
    yield opened
    opened.close()


@dataclass
class Lane:
    """A queue of one test."""

    name: str
    store: Store

    @property
    def queue(self) -> Queue:
        return self.store.app.queue(self.name)

    def add(self, task: str, data: Any = None, **options: Any) -> str:
        """Add a job; returns its id."""
        return self.store.run(self.queue.add(task, data, **options)).id

    def add_bulk(self, jobs: list[dict[str, Any]]) -> None:
        """Add many."""
        self.store.run(self.queue.add_bulk(jobs))

    def result(self, job_id: str) -> Any:
        """Wait for the result of a job."""
        return self.store.run(self._result(job_id))

    async def _result(self, job_id: str) -> Any:
        job = await self.queue.get_job(job_id)
        assert job is not None
        return await job.result(timeout=_PATIENCE - 5)

    def state(self, job_id: str) -> str | None:
        """The state of a job; None when it is gone."""
        job = self.store.run(self.queue.get_job(job_id))
        return None if job is None else job.state.value

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return {state.value: many for state, many in self.store.run(self.queue.get_job_counts()).items()}


@pytest.fixture
def lane(store: Store) -> Lane:
    """A queue of one's own."""
    name = LANES[next(store.lanes)]
    return Lane(name, store)


@pytest.fixture
def still(store: Store) -> Lane:
    """A queue of one's own that nobody works on: its jobs stay as they are."""
    name = f"still-{next(store.lanes)}"
    return Lane(name, store)


@pytest.fixture
def new_context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Makes browser profiles that are gone after the test."""
    made: list[BrowserContext] = []

    def make(**options: Any) -> BrowserContext:
        made.append(browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options}))
        return made[-1]

    yield make
    for context in made:
        context.close()


class Look:
    """A page of the dashboard, and what the browser complained about."""

    def __init__(self, page: Page, site: Site) -> None:
        self.page = page
        self.complaints: list[str] = []
        #: Complaints that a test provokes on purpose hold one of these.
        self.expected: list[str] = []
        self._site = site
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.complaints.append(said.text)

    def at(self, path: str) -> Page:
        """Open a view."""
        self.page.goto(self._site.address + path)
        return self.page

    def job(self, lane: Lane, job_id: str) -> Page:
        """Open the page of a job."""
        return self.at(f"/jobs/{lane.name}/{job_id}")

    def check(self) -> None:
        """Nothing went wrong in the browser."""
        left = [text for text in self.complaints if not any(known in text for known in self.expected)]
        assert left == []


@pytest.fixture
def look(new_context: Callable[..., BrowserContext], site: Site) -> Iterator[Look]:
    """A page to open views in."""
    looking = Look(new_context().new_page(), site)
    yield looking
    looking.check()


@pytest.fixture
def gate(tmp_path: Path) -> Callable[[str], None]:
    """Lets a ``gated`` job go on: the names of its steps, or ``end``."""
    return lambda name: (tmp_path / name).touch()
