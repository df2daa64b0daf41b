"""The objects behind the pytest fixtures, for tests of an application.

::

    # pyproject.toml: [tool.pytest.ini_options] windlass_app = "shop.jobs:app"

    async def test_signup_sends_a_mail(windlass):
        await signup("ada@example.com")
        await windlass.assert_enqueued(send_mail, data={"to": "ada@example.com"})
        await windlass.drain(ahead=60)

    def test_a_view(windlass, client):
        with windlass.inline():
            client.post("/signup", ...)

Tests use the application's own app object, with its tasks and hooks. While a test runs, the app has a fresh
store in memory and a clock that the test controls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from windlass.api.app import Windlass
from windlass.api.queue import Queue
from windlass.cli.app_loading import load_app
from windlass.core.ids import new_id
from windlass.core.option_values import Duration
from windlass.errors import ConfigError
from windlass.jobs.job import Job
from windlass.jobs.sync import PORTAL
from windlass.testing import kit
from windlass.testing.clock import ManualClock


def configured_app(spec: str) -> Windlass:
    """The app that ``MODULE:APP`` names."""
    if not spec:
        raise ConfigError(
            "windlass_app",
            message="windlass_app is not set: set it to MODULE:APP in pytest's configuration, or write a "
            "fixture of that name",
        )
    return load_app(spec)


class TestKit:
    """An app with a separate store, and the functions of ``windlass.testing`` for it."""

    __test__ = False  # pytest must not collect this class

    def __init__(self, app: Windlass, clock: ManualClock) -> None:
        self.app = app
        self.clock = clock

    @contextmanager
    def installed(self) -> Iterator[None]:
        """For the duration of the block, the app has a fresh store in memory and the test's clock."""
        app = self.app
        url, clock = app.url, app.clock
        app.clock = self.clock
        app.use_store(f"memory://{new_id()}")
        try:
            yield
        finally:
            app.clock = clock
            app.use_store(url)

    def queue(self, name: str) -> Queue:
        """A queue of the app."""
        return self.app.queue(name)

    def inline(self, *, raise_errors: bool = True) -> AbstractContextManager[None]:
        """Run jobs before the call that adds them returns; see ``windlass.testing.inline``."""
        return kit.inline(self.app, raise_errors=raise_errors)

    async def drain(self, *, ahead: Duration = 0) -> int:
        """Run everything that is due (within ``ahead`` seconds); returns the number of attempts."""
        return await kit.drain(self.app, ahead=ahead)

    async def assert_enqueued(self, where: kit.Where, name: str | None = None, **match: Any) -> Job[Any]:
        """The first job that matches; see ``windlass.testing.assert_enqueued``."""
        return await kit.assert_enqueued(where, name, **match)

    async def refute_enqueued(self, where: kit.Where, name: str | None = None, **match: Any) -> None:
        """Fail if a job matches."""
        await kit.refute_enqueued(where, name, **match)

    async def all_enqueued(self, where: kit.Where, name: str | None = None, **match: Any) -> list[Job[Any]]:
        """Every job that matches, oldest first."""
        return await kit.all_enqueued(where, name, **match)

    @property
    def sync(self) -> SyncTestKit:
        """The same methods for tests without an event loop."""
        return SyncTestKit(self)


class SyncTestKit:
    """The methods of ``TestKit`` for plain test functions."""

    def __init__(self, tests: TestKit) -> None:
        self._tests = tests

    def drain(self, *, ahead: Duration = 0) -> int:
        """Run everything that is due."""
        return PORTAL.run(self._tests.drain(ahead=ahead))

    def assert_enqueued(self, where: kit.Where, name: str | None = None, **match: Any) -> Job[Any]:
        """The first job that matches."""
        return PORTAL.run(self._tests.assert_enqueued(where, name, **match))

    def refute_enqueued(self, where: kit.Where, name: str | None = None, **match: Any) -> None:
        """Fail if a job matches."""
        PORTAL.run(self._tests.refute_enqueued(where, name, **match))

    def all_enqueued(self, where: kit.Where, name: str | None = None, **match: Any) -> list[Job[Any]]:
        """Every job that matches, oldest first."""
        return PORTAL.run(self._tests.all_enqueued(where, name, **match))
