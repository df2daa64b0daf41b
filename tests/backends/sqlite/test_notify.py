"""The periodic check for changes of other programs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.backends.sqlite.support import add, new, opened
from windlass.backend.urls import parse_url
from windlass.backends.sqlite import add_in_transaction, notify
from windlass.backends.sqlite.settings import parse
from windlass.backends.sqlite.tx import read_meta


async def test_a_commit_of_this_process_during_a_check_hides_no_later_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new())
    notifier = notify.SqliteNotifier(parse(parse_url(f"sqlite:///{path}")))
    notifier.foreign()  # all that happened so far

    with sqlite3.connect(path) as connection:

        def commit_then_read(*arguments: object) -> object:
            """This process commits while the check is between two reads."""
            monkeypatch.undo()
            before = read_meta(*arguments).activity  # type: ignore[arg-type]
            add_in_transaction(connection, [new()])
            connection.commit()
            found = read_meta(*arguments)  # type: ignore[arg-type]
            notifier.own_activity += found.activity - before
            return found

        add_in_transaction(connection, [new()])
        connection.commit()
        monkeypatch.setattr(notify, "read_meta", commit_then_read)
        assert notifier.foreign(), "the first of the two is not ours"
        add_in_transaction(connection, [new()])
        connection.commit()
        assert notifier.foreign()
    notifier.end_checks()
    notifier.stop()
