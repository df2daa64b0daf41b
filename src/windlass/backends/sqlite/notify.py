"""Hints between processes, as described in ``backend.local.notify``.

The periodic check asks SQLite whether the file changed, and if so, whether this process did it. It also
notices programs that add jobs inside their own transactions.
"""

from __future__ import annotations

import sqlite3

from windlass.backend.hub import Hub
from windlass.backend.local import notify
from windlass.backends.sqlite import statements
from windlass.backends.sqlite.connection import connect
from windlass.backends.sqlite.settings import SqliteSettings
from windlass.backends.sqlite.tx import read_meta

_BESIDE = "-wake"


class SqliteNotifier(notify.Notifier):
    """The hints of one ``Database``."""

    def __init__(self, settings: SqliteSettings, hub: Hub) -> None:
        super().__init__(settings.path + _BESIDE, settings.namespace, hub, like=settings.path)
        self._settings = settings
        #: The part of the store's activity that this process caused. Increased before each commit.
        self.own_activity = 0
        self._before = 0

    def open(self, activity: int) -> None:
        """Start listening. ``activity`` is the store's activity (``Meta.activity``) at this moment."""
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
        """Whether another process has changed the store since the last check."""
        try:
            if self._conn is None:
                self._conn = connect(self._settings, read_only=True)
            (version,) = self._conn.execute("PRAGMA data_version").fetchone()
            if version == self._version:
                return False
            self._version = version
            activity = read_meta(self._conn, self._sql).activity
        except sqlite3.Error:
            return False  # the next check may succeed, and callers get errors from their own requests
        # Read last: a commit of this process that ``activity`` contains is counted by now. If one that is not
        # committed yet is counted too, the commit changes the version, and the next check finds the rest.
        before, self._foreign = self._foreign, activity - self._wake.own_activity
        return self._foreign > before

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
