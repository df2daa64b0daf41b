"""How to make each backend's store for one test. The conformance suite runs on every one listed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.backends.sqlite import inspection, loading_more
from windlass_conformance import Harness, UrlHarness

if TYPE_CHECKING:
    from pathlib import Path

#: The backends under test, by name. The first is the reference.
HARNESSES = ["memory", "sqlite", "file"]


class SqliteHarness(UrlHarness):
    """A harness of SQLite, which sorts longer queues than other stores: half of the jobs are too many too."""

    long_queue = max(inspection.SORTABLE, 2 * loading_more.SORTABLE) + 2


def make_harness(name: str, directory: Path) -> Harness:
    """A harness for one test; ``directory`` is the test's own."""
    if name == "sqlite":
        return SqliteHarness("sqlite", f"sqlite:///{directory / 'jobs.db'}")
    if name == "file":
        return UrlHarness("file", f"file://{directory / 'jobs'}")
    return UrlHarness(name, f"{name}://")
