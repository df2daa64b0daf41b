"""Claims of ``docs/reliability.md`` that no other test is about."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from windlass import Windlass
from windlass.backend.urls import parse_url
from windlass.backends.sqlite.connection import connect
from windlass.backends.sqlite.settings import parse

if TYPE_CHECKING:
    from pathlib import Path

#: What ``PRAGMA synchronous`` answers.
SYNCHRONOUS = {"": 2, "?synchronous=full": 2, "?synchronous=normal": 1}


@pytest.mark.feature("Z12")
@pytest.mark.parametrize("backend_name", ["sqlite"])
@pytest.mark.parametrize("query", SYNCHRONOUS)
def test_the_settings_of_the_url_reach_every_connection(
    backend_name: str, tmp_path: Path, query: str
) -> None:
    settings = parse(parse_url(f"sqlite:///{tmp_path / 'jobs.db'}{query}"))
    for read_only in (False, True):
        with closing(connect(settings, read_only=read_only)) as connection:
            (answer,) = connection.execute("PRAGMA synchronous").fetchone()
        assert answer == SYNCHRONOUS[query]


async def test_the_file_is_in_write_ahead_mode_and_its_threads_end_with_the_app(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with Windlass(f"sqlite:///{path}") as app:
        await app.queue("default").add("work")
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("windlass-sqlite")]
