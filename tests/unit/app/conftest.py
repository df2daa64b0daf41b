"""An app on a store of its own, on every backend; one whose time the test drives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.app.support import BACKENDS, DrivenClock, store_url, watched
from windlass import Queue, Windlass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    """The backend that the test runs on."""
    return str(request.param)


@pytest.fixture
def url(backend_name: str, tmp_path: Path) -> str:
    """The URL of a fresh store."""
    return store_url(backend_name, tmp_path)


@pytest.fixture
async def app(url: str) -> AsyncIterator[Windlass]:
    """An app on a fresh store, by the machine's clock."""
    async with Windlass(url) as opened:
        yield opened


@pytest.fixture
def queue(app: Windlass) -> Queue:
    """The queue ``default`` of ``app``."""
    return app.queue("default")


@pytest.fixture
def clock() -> DrivenClock:
    """Time that the test drives."""
    return DrivenClock()


@pytest.fixture
async def timed_app(url: str, clock: DrivenClock) -> AsyncIterator[Windlass]:
    """An app on a fresh store whose time is ``clock``."""
    app = Windlass(url, clock=clock)
    watched(app)
    async with app:
        yield app
