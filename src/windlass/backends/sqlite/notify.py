"""Hints between processes, as described in ``backend.local.notify``.

The periodic check asks SQLite whether the file changed, and if so, whether this process did it. It also
notices programs that add jobs inside their own transactions.
"""

from __future__ import annotations

import sqlite3

from windlass.backend.local import notify
from windlass.backends.sqlite import statements
from windlass.backends.sqlite.connection import connect
from windlass.backends.sqlite.settings import SqliteSettings
from windlass.backends.sqlite.tx import read_meta

_BESIDE = "-wake"


class SqliteNotifier(notify.Notifier):
    """The hints of one ``Database``."""

    def __init__(self, settings: SqliteSettings) -> None:
        super().__init__(settings.path + _BESIDE, settings.namespace, like=settings.path)
        self._settings = settings
        self._sql = statements.load(settings.namespace)
        #: The part of the store's activity that this process caused. Increased before each commit.
        self.own_activity = 0
        #: The part that other processes caused, at the last check.
        self._foreign = 0
        self._conn: sqlite3.Connection | None = None
        self._version = -1

    def open(self, activity: int) -> None:
        """Start listening. ``activity`` is the store's activity (``Meta.activity``) at this moment."""
        self._foreign = activity
        self.open_boxes()

    def foreign(self) -> bool:
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
        before, self._foreign = self._foreign, activity - self.own_activity
        return self._foreign > before

    def end_checks(self) -> None:
        if self._conn is not None:
            self._conn.close()
