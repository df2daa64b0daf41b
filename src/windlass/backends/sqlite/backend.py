"""The sqlite store as a backend: a thin client of the process's ``Database``."""

from __future__ import annotations

import os
import sqlite3

from windlass.backend.capabilities import Capabilities
from windlass.backend.local.store import LocalBackend
from windlass.backend.requests import Added
from windlass.backend.urls import BackendUrl
from windlass.backends.sqlite.database import Database, databases
from windlass.backends.sqlite.settings import SqliteSettings, parse
from windlass.backends.sqlite.transactional import add_in_transaction, settle_in_transaction
from windlass.core.job import NewJob
from windlass.core.outcome import Settled, Settlement
from windlass.errors import ConfigError


class SqliteBackend(LocalBackend[SqliteSettings, Database]):
    """A client of one database file and namespace. Clients of one process share its threads."""

    name = "sqlite"
    capabilities = Capabilities.full(durable=True, shared=True, transactions=True)
    stores = databases

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
