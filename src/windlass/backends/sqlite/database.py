"""One database file, as this process uses it; see ``backend.local.store``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from windlass.backend.hub import Hub
from windlass.backend.local.store import LocalStore, OpenStores
from windlass.backends.sqlite.inspection import READS
from windlass.backends.sqlite.notify import SqliteNotifier
from windlass.backends.sqlite.reader import SqliteReader
from windlass.backends.sqlite.session import SqliteSession
from windlass.backends.sqlite.settings import Settings
from windlass.backends.sqlite.writer import SqliteWriter
from windlass.engine.verbs import VERBS
from windlass.errors import UnsupportedByBackendError

if TYPE_CHECKING:
    from windlass.backend.requests import Request

R = TypeVar("R")


class Database(LocalStore[Settings, SqliteSession]):
    """Threads and connections for one (file, namespace, settings) in this process."""

    what = "database"
    open_s = 1.0  # it may mean making tables on a slow disk
    waited = {  # noqa: RUF012
        "open": "it is still being opened",
        "lock": "another process is writing, or is stopped in the middle of a transaction",
        "begin": "another program holds the write lock",
        "run": "the disk or the transactions before it are slow",
        "idle": "this process had no time for it",
    }

    def __init__(self, settings: Settings) -> None:
        hub = Hub()
        wake = SqliteNotifier(settings, hub)
        session = SqliteSession(settings, wake)
        super().__init__(settings, hub, wake, session, SqliteWriter(session, wake))

    def is_read(self, request: Request[R]) -> bool:
        if type(request) in VERBS:
            return False
        if type(request) not in READS:
            raise UnsupportedByBackendError("sqlite", type(request).__name__)
        return True

    def make_reader(self) -> SqliteReader:
        return SqliteReader(self.settings, self.session)


databases = OpenStores(Database)
