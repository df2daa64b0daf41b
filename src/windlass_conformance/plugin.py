"""A pytest plugin for projects that run the conformance suite: it registers the marker of the suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "feature(*rows): rows of Windlass's feature ledger that a test proves")
