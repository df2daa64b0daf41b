"""What all tests share: plugins, the event loop, and which services may be used.

Coroutine tests and async fixtures need no mark: anyio's plugin runs them (``anyio_mode = auto``),
each test on a fresh asyncio loop. Guards that fail a test for what it leaves behind are in
``tests/plugins/guards.py``, the feature ledger in ``tests/plugins/features.py``.
"""

from __future__ import annotations

import pytest

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
        help="real servers: use those that are there (auto), fail without them (required), use none",
    )


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio is the one event loop Windlass promises."""
    return "asyncio"


@pytest.fixture(scope="session")
def services(request: pytest.FixtureRequest) -> str:
    """The value of ``--services``."""
    return str(request.config.getoption("--services"))
