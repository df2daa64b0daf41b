"""Claims of ``docs/reliability.md`` that no other test is about."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

from windlass import Windlass

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_file_is_in_write_ahead_mode_and_its_threads_end_with_the_app(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with Windlass(f"sqlite:///{path}") as app:
        await app.queue("default").add("work")
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("windlass-sqlite")]
