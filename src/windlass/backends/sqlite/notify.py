"""Hints across processes, as ``backend.local.notify`` describes; the slow check asks SQLite.

It asks whether the file changed, and if so whether another transaction did it: also a foreign program
that enqueues in its own transaction is noticed.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from windlass.backend.local import notify
from windlass.backends.sqlite import statements
from windlass.backends.sqlite.connection import connect
from windlass.backends.sqlite.tx import read_meta

if TYPE_CHECKING:
    from windlass.backend.hub import Hub
    from windlass.backends.sqlite.settings import SqliteSettings

_BESIDE = "-wake"


class SqliteNotifier(notify.Notifier):
    """The hints of one ``Database``."""

    def __init__(self, settings: SqliteSettings, hub: Hub) -> None:
        super().__init__(settings.path + _BESIDE, settings.namespace, hub, like=settings.path)
        self._settings = settings
        #: How much of the store's activity was this process's; counted before it commits.
        self.own_activity = 0
        self._before = 0

    def open(self, activity: int) -> None:
        """The database is open; ``activity`` is what there was before."""
        self._before = activity
        self.open_boxes()

    def checker(self) -> notify.Checker:
        return _Checker(self, self._settings, self._before)


class _Checker(notify.Checker):
    def __init__(self, wake: SqliteNotifier, settings: SqliteSettings, foreign: int) -> None:
        self._wake = wake
        self._settings = settings
        self._sql = statements.load(settings.namespace)
        self._conn: sqlite3.Connection | None = None
        self._version = -1
        self._foreign = foreign

    def foreign(self) -> bool:
        """Compare the store's activity with what this process did of it."""
        own_activity = self._wake.own_activity
        try:
            if self._conn is None:
                self._conn = connect(self._settings, read_only=True)
            (version,) = self._conn.execute("PRAGMA data_version").fetchone()
            if version == self._version:
                return False
            self._version = version
            activity = read_meta(self._conn, self._sql).activity
        except sqlite3.Error:
            return False  # the next look may succeed; callers see their own errors
        before, self._foreign = self._foreign, activity - own_activity
        return self._foreign > before

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
