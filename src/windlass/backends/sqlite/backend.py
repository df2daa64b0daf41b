"""The sqlite store as a backend: clients of the threads and connections that a process has for a file."""

from __future__ import annotations

import os
import sqlite3

from windlass.backend.capabilities import Capabilities
from windlass.backend.local.store import LocalBackend, LocalStore, OpenStores
from windlass.backend.requests import Added
from windlass.backend.urls import BackendUrl
from windlass.backends.sqlite.inspection import READS
from windlass.backends.sqlite.notify import SqliteNotifier
from windlass.backends.sqlite.reader import SqliteReader
from windlass.backends.sqlite.session import SqliteSession
from windlass.backends.sqlite.settings import SqliteSettings, parse
from windlass.backends.sqlite.transactional import add_in_transaction, settle_in_transaction
from windlass.backends.sqlite.writer import SqliteWriter
from windlass.core.job import NewJob
from windlass.core.outcome import Settled, Settlement
from windlass.engine.verbs import VERBS
from windlass.errors import ConfigError


class Database(LocalStore[SqliteSettings, SqliteSession]):
    """Threads and connections for one (file, namespace, settings) in this process."""

    name = "sqlite"
    what = "database"
    open_s = 1.0  # opening may create tables on a slow disk
    waited = {  # noqa: RUF012
        "open": "it is still being opened",
        "lock": "another process is writing, or is stopped in the middle of a transaction",
        "begin": "another program holds the write lock",
        "run": "the disk or the transactions before it are slow",
        "idle": "this process had no time for it",
    }
    verbs = VERBS
    reads = READS

    def __init__(self, settings: SqliteSettings) -> None:
        wake = SqliteNotifier(settings)
        session = SqliteSession(settings, wake)
        super().__init__(settings, wake, session, SqliteWriter("windlass-sqlite-writer", session, wake))

    def make_reader(self) -> SqliteReader:
        return SqliteReader(self.settings, self.session)


class SqliteBackend(LocalBackend[SqliteSettings, Database]):
    """A client of one database file and namespace. Clients of one process share its threads."""

    name = "sqlite"
    capabilities = Capabilities.full(durable=True, shared=True, transactions=True)
    stores = OpenStores(Database)

    def add_in_transaction(self, connection: sqlite3.Connection, jobs: list[NewJob]) -> list[Added]:
        """Add jobs inside the caller's own transaction on this file; see ``transactional``."""
        _check_same_file(connection, self._settings)
        return add_in_transaction(connection, jobs, namespace=self._settings.namespace)

    def settle_in_transaction(self, connection: sqlite3.Connection, items: list[Settlement]) -> list[Settled]:
        """Settle attempts inside the caller's own transaction on this file; see ``transactional``."""
        _check_same_file(connection, self._settings)
        return settle_in_transaction(connection, items, namespace=self._settings.namespace)

    def notify(self) -> None:
        """Wake all listeners on this machine. Applications call it after committing their own transaction."""
        self._open_store().wake.announce_all()


def _check_same_file(connection: sqlite3.Connection, settings: SqliteSettings) -> None:
    if not isinstance(connection, sqlite3.Connection):
        raise ConfigError("connection", "a sqlite3.Connection", connection)
    cursor = sqlite3.Cursor(connection)
    cursor.row_factory = None
    main = [row[2] for row in cursor.execute("PRAGMA database_list") if row[1] in ("main", b"main")]
    if not main or os.path.realpath(os.fsdecode(main[0])) != settings.path:
        raise ConfigError(
            "connection", f"a connection to {settings.path!r}, the file of this store", os.fsdecode(main[0])
        )


def from_url(url: BackendUrl) -> SqliteBackend:
    """Return a client for the file in the URL. It is not opened yet."""
    return SqliteBackend(parse(url))
