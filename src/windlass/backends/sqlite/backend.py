"""The sqlite store as a backend: a thin client of the process's ``Database``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from windlass.backend.capabilities import Capabilities
from windlass.backends.sqlite.database import Database, acquire, release
from windlass.backends.sqlite.settings import Settings, parse
from windlass.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windlass.backend.hub import HubListener
    from windlass.backend.requests import Request
    from windlass.backend.urls import BackendUrl

R = TypeVar("R")

_CAPABILITIES = Capabilities(durable=True, shared=True, transactional_add=True)


class SqliteBackend:
    """A client of one database file and namespace. Clients of one process share its threads."""

    name = "sqlite"
    capabilities = _CAPABILITIES

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database: Database | None = None

    async def open(self) -> None:
        if self._database is not None:
            return
        self._database = database = acquire(self._settings)
        try:
            await database.opened()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await release(database)

    async def execute(self, request: Request[R]) -> R:
        return await self._open_database().execute(request)

    def listen(self, topics: Iterable[str]) -> HubListener:
        return self._open_database().listen(topics)

    def clone(self) -> SqliteBackend:
        return SqliteBackend(self._settings)

    def _open_database(self) -> Database:
        if self._database is None:
            raise StorageError(f"{self._settings.shown} is not open: await backend.open() first")
        return self._database


def from_url(url: BackendUrl) -> SqliteBackend:
    """A client of the file that the URL names; nothing is opened yet."""
    return SqliteBackend(parse(url))
