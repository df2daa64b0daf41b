"""Shared by all tests: plugins, the event loop, and which services may be used.

Coroutine tests and async fixtures need no mark: anyio's plugin runs them (``anyio_mode = auto``), each test
on a new asyncio loop. ``tests/plugins/guards.py`` fails tests that leave threads or tasks behind,
``tests/plugins/features.py`` records the feature ledger.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

# The same examples in every run, however busy the machine is.
settings.register_profile("windlass", derandomize=True, deadline=None)
settings.load_profile("windlass")

pytest_plugins = [
    "tests.plugins.failures",
    "tests.plugins.features",
    "tests.plugins.guards",
    "tests.plugins.paths",
    "tests.plugins.whole",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("windlass").addoption(
        "--services",
        choices=("auto", "required", "none"),
        default="auto",
        help="real servers: use those that are installed (auto), fail without them (required), use none",
    )


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Windlass supports only asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def services(request: pytest.FixtureRequest) -> str:
    """The value of ``--services``."""
    return str(request.config.getoption("--services"))
