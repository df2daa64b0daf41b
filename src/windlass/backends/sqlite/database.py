"""The threads and connections of one database file in this process; see ``backend.local.store``."""

from __future__ import annotations

from windlass.backend.hub import Hub
from windlass.backend.local.store import LocalStore, OpenStores
from windlass.backends.sqlite.inspection import READS
from windlass.backends.sqlite.notify import SqliteNotifier
from windlass.backends.sqlite.reader import SqliteReader
from windlass.backends.sqlite.session import SqliteSession
from windlass.backends.sqlite.settings import SqliteSettings
from windlass.backends.sqlite.writer import SqliteWriter
from windlass.engine.verbs import VERBS


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
        hub = Hub()
        wake = SqliteNotifier(settings, hub)
        session = SqliteSession(settings, wake)
        super().__init__(settings, hub, wake, session, SqliteWriter("windlass-sqlite-writer", session, wake))

    def make_reader(self) -> SqliteReader:
        return SqliteReader(self.settings, self.session)


databases = OpenStores(Database)
