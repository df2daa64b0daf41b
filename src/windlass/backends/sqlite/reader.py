"""The thread that answers read-only requests, from snapshots that never wait for writers."""

from __future__ import annotations

import sqlite3
from typing import Any

from windlass.backend import requests as rq
from windlass.backend.calls import Answer, StoreCall
from windlass.backend.local.flush import not_flushed
from windlass.backend.local.serving_thread import ReaderThread
from windlass.backends.sqlite import statements
from windlass.backends.sqlite.connection import connect, is_odd_text, read_any_text, to_error
from windlass.backends.sqlite.inspection import READS
from windlass.backends.sqlite.session import SqliteSession
from windlass.backends.sqlite.settings import SqliteSettings
from windlass.backends.sqlite.snapshot import ReadSnapshot
from windlass.backends.sqlite.tx import Queues, read_meta
from windlass.core.clock import SteadyClock, moment


class SqliteReader(ReaderThread):
    """Serves read-only requests. Its connection is opened with the first of them."""

    def __init__(self, settings: SqliteSettings, session: SqliteSession) -> None:
        super().__init__("windlass-sqlite-reader")
        self._settings = settings
        self._session = session
        self._sql = statements.load(settings.namespace)
        self._clock = SteadyClock()
        self._conn: sqlite3.Connection | None = None
        self._taken_back = 0

    def _open(self) -> None:
        busy_ms = round(self._settings.timeout * 1000)
        self._conn = connect(self._settings, busy_ms=busy_ms, read_only=True)
        self._queues = Queues(self._conn, self._sql)
        self._disk = self._session.make_disk()

    def _serve(self, call: StoreCall[Any]) -> Answer:
        conn = self._conn
        assert conn is not None
        try:
            if self._taken_back != self._session.taken_back:
                self._taken_back = self._session.taken_back
                self._queues.start_over()
            conn.execute("BEGIN")
            try:
                now_ms = moment(
                    call.request.now_ms, lambda: self._clock.now_ms(read_meta(conn, self._sql).clock_ms)
                )
                snap = ReadSnapshot(conn, self._sql, self._queues, now_ms)
                value = READS[type(call.request)](snap, call.request)
            finally:
                conn.execute("ROLLBACK")
            self._session.files.check()
            if type(call.request) is rq.ReadHistory:
                self._flush()  # an archiver may copy the records, so they must not be lost here
            return call, value, None
        except Exception as exc:
            if is_odd_text(conn, exc):
                read_any_text(conn)
                return self._serve(call)
            return call, None, to_error(exc, self._settings.shown)

    def _flush(self) -> None:
        try:
            self._disk.sync()
        except OSError as exc:
            raise not_flushed(exc, self._settings.shown) from exc

    def _close(self) -> None:
        if hasattr(self, "_disk"):
            self._disk.close()
        if self._conn is not None:
            self._conn.close()
