"""Opening connections, and turning SQLite's errors into errors with advice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Protocol

from windlass.backend.local import errors
from windlass.backends.sqlite.settings import SqliteSettings
from windlass.errors import StorageError, WindlassError

#: How long a read-only connection waits if the database is locked (for example during recovery).
BUSY_MS = 1_000
#: Pages (4 KiB) in the write-ahead log before the writer makes a checkpoint. The number is low because
#: overwriting a log after a checkpoint costs half as much as appending to it.
CHECKPOINT_PAGES = 500
#: At this many pages SQLite makes a checkpoint during a commit, if the writer has not made one before.
BACKSTOP_PAGES = 2_000
#: A log that is longer than this is truncated after a checkpoint.
LOG_BYTES = 64 * 2**20

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_ADVICE = {
    sqlite3.SQLITE_BUSY: "another program holds the database; end its transaction, or raise ?timeout=",
    sqlite3.SQLITE_LOCKED: "another program holds the database; end its transaction, or raise ?timeout=",
    sqlite3.SQLITE_READONLY: "give this user write access to the file and its directory",
    sqlite3.SQLITE_PERM: "give this user access to the file and its directory",
    sqlite3.SQLITE_FULL: "the disk is full: make room, then repeat the call",
    sqlite3.SQLITE_IOERR: "the disk reported an error: check it, then repeat the call",
    sqlite3.SQLITE_CANTOPEN: "check that its directory exists and that this user may write there",
    sqlite3.SQLITE_NOTADB: "this file is not an SQLite database; choose another path",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore a backup, or try .recover in the sqlite3 shell",
    sqlite3.SQLITE_TOOBIG: "a value is over SQLite's size limit",
}
#: SQLITE_CONSTRAINT_DATATYPE, which the sqlite3 module does not name.
_DATATYPE = 3091
_MISFIT = (
    "a stored row is damaged, or a value of the call has a wrong type. Damaged rows are being searched for "
    "and set aside: repeat the call in a moment"
)


class Executor(Protocol):
    """The part of a connection that requests use."""

    @property
    def total_changes(self) -> int: ...

    def execute(self, sql: str, parameters: tuple[Any, ...] = (), /) -> sqlite3.Cursor: ...

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor: ...


class OneCursor:
    """A connection whose statements share one cursor. Fetch all rows before you execute the next statement.

    Creating a cursor for every statement takes as long as a short statement itself.
    """

    def __init__(self, conn: sqlite3.Connection, cursor: sqlite3.Cursor) -> None:
        self._conn = conn
        self.execute = cursor.execute
        self.executemany = cursor.executemany

    @property
    def total_changes(self) -> int:
        return self._conn.total_changes


def connect(
    settings: SqliteSettings, *, busy_ms: int = BUSY_MS, read_only: bool = False
) -> sqlite3.Connection:
    """Open a connection in autocommit mode: transactions begin with an explicit statement."""
    conn = sqlite3.connect(
        settings.path,
        timeout=busy_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        conn.execute("PRAGMA synchronous = NORMAL")  # disk.py does the flush that FULL would add
        conn.execute("PRAGMA secure_delete = OFF")
        if read_only:
            conn.execute("PRAGMA query_only = ON")
    except BaseException:
        conn.close()
        raise
    return conn


def prepare_file(conn: sqlite3.Connection) -> None:
    """Set the file's journal and vacuum modes. The caller holds the lock of all processes."""
    conn.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has no effect once a table exists
    (mode,) = conn.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StorageError(
            f"SQLite cannot use a write-ahead log here (journal mode is {mode!r}); "
            "put the database on a local disk"
        )
    conn.execute(f"PRAGMA wal_autocheckpoint = {BACKSTOP_PAGES}")
    conn.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")


def _text(data: bytes) -> str | bytes:
    """Decode a stored text. Returns the bytes if they are not UTF-8; ``rows`` treats these as damage."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def is_odd_text(conn: sqlite3.Connection, exc: Exception) -> bool:
    """Whether ``exc`` is about text that is not UTF-8, and ``read_any_text`` would let ``conn`` read it."""
    if not isinstance(exc, sqlite3.OperationalError) or conn.text_factory is _text:
        return False
    return "Could not decode to UTF-8" in str(exc)


def read_any_text(conn: sqlite3.Connection) -> None:
    """Make ``conn`` return text that is not UTF-8 as bytes.

    This is not the default, because a Python function call for every text takes longer than the statements.
    """
    conn.text_factory = _text


def is_busy(exc: sqlite3.Error) -> bool:
    """Whether ``exc`` means that another connection is writing."""
    return _primary(exc) in _BUSY


def is_misfit(exc: sqlite3.Error) -> bool:
    """Whether ``exc`` means that a STRICT table refused a row because a value has the wrong type."""
    return getattr(exc, "sqlite_errorcode", 0) == _DATATYPE


def to_error(exc: Exception, what: str) -> WindlassError:
    """Return the error that callers see for ``exc``, with advice. ``what`` names the thing that failed."""
    return errors.to_error(exc, what, _advice(exc), is_value=_is_odd_value(exc))


def _is_odd_value(exc: Exception) -> bool:
    """Whether the cause is a value of the request, not the database."""
    if isinstance(exc, sqlite3.DataError):
        return True
    return isinstance(exc, (sqlite3.InterfaceError, sqlite3.ProgrammingError)) and "binding" in str(exc)


def _advice(exc: Exception) -> str:
    if not isinstance(exc, sqlite3.Error):
        return ""
    return _MISFIT if is_misfit(exc) else _ADVICE.get(_primary(exc), "")


def _primary(exc: sqlite3.Error) -> int:
    """The primary result code: the extended one without its upper bytes."""
    return int(getattr(exc, "sqlite_errorcode", 0)) & 0xFF
