"""The pytest plugin of Windlass: fixtures, and nothing else until a test asks for one.

A module of its own beside the package, because every pytest run of an environment loads it: importing it
imports neither windlass nor pytest's internals. The fixtures are described in ``windlass.contrib.testing``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from windlass import Windlass
    from windlass.contrib.testing import TestKit
    from windlass.testing import ManualClock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("windlass_app", "MODULE:APP of the app that the windlass fixtures use", default="")


@pytest.fixture
def windlass_clock() -> ManualClock:
    """The clock of a test: it stands still until ``await clock.advance(seconds)``."""
    from windlass.testing import ManualClock

    return ManualClock()


@pytest.fixture
def windlass_app(request: pytest.FixtureRequest) -> Windlass:
    """The app under test: the one that ``windlass_app = MODULE:APP`` of the configuration names.

    Override it in ``conftest.py`` to choose another one.
    """
    from windlass.contrib.testing import configured_app

    return configured_app(request.config.getini("windlass_app"))


@pytest.fixture
def windlass(windlass_app: Windlass, windlass_clock: ManualClock) -> Iterator[TestKit]:
    """The app on a store in memory and a clock that the test drives; put back when the test ends."""
    from windlass.contrib.testing import TestKit

    kit: Any = TestKit(windlass_app, windlass_clock)
    with kit.installed():
        yield kit
