"""A lake: Delta tables in one place, and which batches each of them holds.

A batch of a source changes every table, one after the other. Each of these commits carries the application
transaction ``(source, batch)``; the commit of bronze also records how far the source has been read. A run
that dies in between is continued from where the tables say it stopped. No batch is in a table twice: we look
for the transaction before each commit, and Delta refuses a commit if another run has committed the same
transaction meanwhile.

Delta detects conflicts between commits that add files. It does not detect that one commit replaces a file
that another compacts. So a commit that removes files is valid only for the version that it was based on.

Since tables change one after the other, a reader of several tables reads each at the version that holds the
newest batch that all of them hold: ``Lake.level``.

Test points: ``lake.commit`` and ``lake.committed``, before and after each commit.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.clock import SYSTEM_CLOCK, Clock
from windlass.core.ids import new_id
from windlass.core.probe import reach
from windlass.core.text import printable
from windlass.errors import ConfigError, StorageError, not_installed
from windlass.pipeline.files import FileEntry, Place, place
from windlass.pipeline.known import KnownTable
from windlass.pipeline.schemas import (
    BATCHED,
    BRONZE_ATTEMPTS,
    PARTITION,
    SILVER_ERASED_JOBS,
    SILVER_JOBS,
    TABLES,
    TableSchema,
)

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

#: Positions by source and queue. All records up to a position are in the lake.
Offsets = dict[str, dict[str, int]]
#: The key of our own metadata in a commit.
NOTE = "windlass"
#: The note of a lake while a migration into it is in progress.
MIGRATING = "migrating"
_ID = "windlass.lakeId"
#: How Delta keeps the log of a table. Every commit lists the whole log folder, so batches become slower if
#: the log is never trimmed. Delta would trim it right after a checkpoint, when a reader may still need an
#: earlier version, so we trim it between batches (``trim_logs``).
_LOG_SETTINGS = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 6 hours",
    "delta.enableExpiredLogCleanup": "false",
}
#: A log is trimmed after this many batches.
TRIM_EVERY = 50
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: How many commits are searched for a note before the whole log is.
_RECENT = 64
#: How often a commit is attempted when other runs commit at the same time.
TRIES = 10


class LakeError(StorageError):
    """The lake is damaged."""

    code = "lake"


class LakeTakenError(LakeError):
    """Another run writes to this lake. This run stops without further changes."""

    code = "lake_taken"


class Conflict(Exception):
    """A commit was refused because the table changed after it was read."""


class Lake:
    """The tables of a lake, opened for reading (``open``) or for writing (``create``)."""

    def __init__(self, where: Place | str, clock: Clock = SYSTEM_CLOCK) -> None:
        try:
            import deltalake  # noqa: F401 - only whether it is there
        except ImportError as exc:
            raise not_installed("lake", "support for lakes", "windlass[spark]") from exc
        self.place = where if isinstance(where, Place) else place(where)
        self.clock = clock
        self._tables: dict[str, DeltaTable] = {}
        self._known: dict[str, KnownTable] = {}

    @property
    def url(self) -> str:
        return self.place.url

    @property
    def lake_id(self) -> str:
        """A random id from the creation of the lake."""
        return str(self.delta(BRONZE_ATTEMPTS).metadata().configuration[_ID])

    @property
    def archiver(self) -> str:
        """The archiver name of this lake in stores."""
        return f"lake-{self.lake_id}"

    # --- opening ----------------------------------------------------------------------------------------

    def open(self) -> Lake:
        """Open an existing lake. Raises ``ConfigError`` if there is none."""
        from deltalake.exceptions import TableNotFoundError

        self._refuse_old()
        for table in TABLES.values():
            try:
                self._tables[table.path] = self._load(table)
            except TableNotFoundError:
                if table is SILVER_ERASED_JOBS:  # missing until a run of this release
                    self._tables[table.path] = _empty_table(table)
                    continue
                raise ConfigError(
                    "lake",
                    message=f"there is no lake at {self.url}: 'windlass pipeline run' makes one",
                    got=self.url,
                ) from None
        return self

    def create(self, lake_id: str | None = None) -> Lake:
        """Open a lake for writing. Creates missing tables, and adds columns that are new in this release."""
        self._refuse_old()
        with self._store_errors():
            self.place.create_folder()
        for table in TABLES.values():
            with self._store_errors():
                _make(self.place, table, {_ID: lake_id or new_id()} if table is BRONZE_ATTEMPTS else {})
        self.open()
        for table in TABLES.values():
            self._add_columns(table)
            self._add_settings(table)
        return self

    def _load(self, table: TableSchema) -> DeltaTable:
        from deltalake import DeltaTable

        with self._store_errors():
            return DeltaTable(self.place.table(table), storage_options=dict(self.place.options))

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Raise errors of the object store as ``LakeError``, in one line. Their text contains no secret."""
        try:
            yield
        except OSError as exc:
            message = " ".join(_COLOURS.sub("", str(exc)).replace("\u21b3", " ").split())
            raise LakeError(f"{self.url} cannot be reached: {printable(message)}") from exc

    def _refuse_old(self) -> None:
        if self.place.is_folder and (Path(self.url) / "_windlass" / "lake.json").exists():
            raise ConfigError(
                "lake",
                message=f"the lake at {self.url} has the format of an older release: 'windlass pipeline "
                f"migrate --from {self.url} --lake NEW' converts it",
                got=self.url,
            )

    def _add_columns(self, table: TableSchema) -> None:
        from deltalake import Field, Schema

        delta = self.delta(table)
        known = {item.name: item for item in delta.schema().fields}
        wanted: list[Field] = Schema.from_arrow(table.arrow).fields
        missing = [item for item in wanted if item.name not in known]
        if missing:
            delta.alter.add_columns([Field(item.name, item.type, nullable=True) for item in missing])
        for item in wanted:
            if item.nullable and item.name in known and not known[item.name].nullable:
                delta.alter.drop_column_not_null(item.name)
        delta.update_incremental()

    def _add_settings(self, table: TableSchema) -> None:
        """Add settings that a lake of an earlier release lacks. Settings that a user chose stay."""
        delta = self.delta(table)
        known = delta.metadata().configuration
        missing = {name: value for name, value in _LOG_SETTINGS.items() if name not in known}
        if missing:
            delta.alter.set_table_properties(missing)
            delta.update_incremental()

    # --- reading ----------------------------------------------------------------------------------------

    def delta(self, table: TableSchema) -> DeltaTable:
        """A table at the version that was last loaded."""
        return self._tables[table.path]

    def refresh(self, *tables: TableSchema) -> None:
        """Load the newest version of ``tables``, or of all tables without an argument."""
        with self._store_errors():
            for table in tables or TABLES.values():
                self.delta(table).update_incremental()

    def level(self) -> Lake:
        """Show every table as of the newest batch that all of them hold."""
        self.refresh()
        sources = list(self.offsets())
        while ahead := self._ahead(sources):
            for table in ahead:
                self.delta(table).load_as_version(self.delta(table).version() - 1)
        return self

    def _ahead(self, sources: Sequence[str]) -> list[TableSchema]:
        """Tables that hold a batch that another table lacks."""
        least = {source: min(self.done(table, source) for table in BATCHED) for source in sources}
        return [
            table for table in BATCHED if any(self.done(table, source) > least[source] for source in sources)
        ]

    def versions(self) -> dict[str, int]:
        """The loaded versions of the tables, for other kinds of readers."""
        return {path: delta.version() for path, delta in self._tables.items()}

    def known(self, table: TableSchema) -> KnownTable:
        """The state of a table at the version that was last loaded."""
        delta, held = self.delta(table), self._known.get(table.path)
        if held is None or held.version != delta.version():
            held = self._known[table.path] = KnownTable(table, delta)
        return held

    def done(self, table: TableSchema, source: str) -> int:
        """The number of the newest batch of a source in a table; 0 if there is none."""
        return self.known(table).done(source)

    def last_snapshot(self, source: str) -> int:
        """When the newest snapshot of a source's jobs began, by its store's clock; 0 if there is none."""
        return self.done(SILVER_JOBS, snapshot_of(source))

    def note(self, source: str | None = None, number: int | None = None) -> dict[str, Any]:
        """What the newest batch, or batch ``number``, wrote to bronze's log; empty if there is none."""
        known = self.known(BRONZE_ATTEMPTS)
        if known.note is None:
            known.note = self._find_note(lambda note: note)
        if source is None:
            return known.note

        def of_batch(note: dict[str, Any]) -> dict[str, Any]:
            return _of_batch(note, source, number)

        return of_batch(known.note) or self._find_note(of_batch)

    def _find_note(self, wanted: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """The result of ``wanted`` for the newest note in bronze's log for which it is not empty."""
        delta = self.delta(BRONZE_ATTEMPTS)
        for limit in (1, _RECENT, None):
            for commit in delta.history(limit):
                if found := wanted(json.loads(commit.get(NOTE, "{}"))):
                    return found
        if delta.history()[-1]["version"] > 0:
            raise LakeError(f"{self.url}: the log of bronze/attempts does not say any more how far it goes")
        return {}

    def offsets(self) -> Offsets:
        """How far each source has been read."""
        note = self.note()
        if MIGRATING in note:
            raise LakeError(f"{self.url}: a migration into it was interrupted; start it again")
        found: Offsets = note.get("offsets", {})
        return found

    @property
    def is_migrating(self) -> bool:
        """Whether a migration into this lake was interrupted."""
        return MIGRATING in self.note()

    def require_level(self) -> None:
        """Raise ``LakeError`` unless all tables hold the same batches."""
        if self._ahead(list(self.offsets())):
            raise LakeError(
                f"{self.url}: a batch is not in every table; let 'windlass pipeline run' finish it first"
            )

    def entries(self, table: TableSchema, dates: Iterable[str] | None = None) -> list[FileEntry]:
        """The files of a table; with ``dates``, only those of these dates."""
        return self.known(table).files(dates)

    def uris(self, entries: Iterable[FileEntry]) -> list[str]:
        """The URIs of files, in the form that Spark reads."""
        return [f"{self.url}/{entry.table}/{entry.path}" for entry in entries]

    # --- changing ---------------------------------------------------------------------------------------

    def conflict_error(self) -> LakeTakenError:
        """The error for a writer that gives up because other runs committed first each time."""
        message = f"{self.url}: other runs committed first, {TRIES} times in a row; run it again after them"
        return LakeTakenError(message)

    def commit(
        self,
        table: TableSchema,
        add: Sequence[FileEntry],
        remove: Sequence[FileEntry] = (),
        *,
        batches: Mapping[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
        data_change: bool = True,
        strict: bool = False,
    ) -> None:
        """Commit to one table. Raises ``Conflict`` if the table changed in a way that affects this commit.

        ``batches``: the number of the newest batch by source. A commit of another run that names one of these
        sources is a conflict. Any other commit is one if this commit removes files, carries a note or is
        ``strict``. ``data_change``: False if the same rows only move to other files.
        """
        from deltalake.exceptions import CommitFailedError

        delta, known = self.delta(table), self.known(table)
        before = known.version
        self.place.sync(self.uris(add))
        reach("lake.commit", table=table.path)
        facts = _properties(batches, note, strict=strict or bool(remove) or note is not None)
        try:
            with self._store_errors():
                _commit(delta, _actions(add, remove, self.clock.now_ms(), data_change), facts)
        except CommitFailedError as exc:
            raise Conflict(table.path) from exc
        reach("lake.committed", table=table.path)
        self.refresh(table)
        if delta.version() == before + 1:
            known.advance(batches, note)
        self.place.sync(self._log_since(table, before))

    def _log_since(self, table: TableSchema, version: int) -> list[str]:
        """The log files of the commits after a version, and the log folder."""
        folder = f"{self.place.table(table)}/_delta_log"
        numbers = range(version + 1, self.delta(table).version() + 1)
        return [*(f"{folder}/{number:020d}.json" for number in numbers), folder]

    def trim_logs(self) -> None:
        """Delete commits that are older than the table's ``delta.logRetentionDuration`` and that the newest
        version does not need. Does nothing while a batch is not in all tables, because readers of several
        tables then need earlier versions.
        """
        self.refresh()
        if self._ahead(list(self.offsets())):
            return
        if NOTE not in self.delta(BRONZE_ATTEMPTS).history(1)[0]:
            # The note with the offsets must not be trimmed: repeat it in a new commit.
            with suppress(Conflict):
                self.commit(BRONZE_ATTEMPTS, [], note=self.note())
            return  # the next call trims
        with self._store_errors():
            for table in TABLES.values():
                self.delta(table).cleanup_metadata()

    def sources(self) -> dict[str, int]:
        """The number of the newest batch of every source in bronze."""
        return {source: self.done(BRONZE_ATTEMPTS, source) for source in self.offsets()}


def snapshot_of(source: str) -> str:
    """The application id of the transactions for snapshots of a source's jobs. No source has such a name."""
    return f"{source}/jobs"


def _of_batch(note: Mapping[str, Any], source: str, number: int | None) -> dict[str, Any]:
    """The part of a note about one batch; empty if the note is about others."""
    if (note.get("source"), note.get("batch")) == (source, number):  # the format of earlier releases
        return dict(note)
    found = note.get("latest", {}).get(source, {})
    return dict(found) if found.get("batch") == number else {}


def _make(where: Place, table: TableSchema, settings: Mapping[str, str]) -> None:
    """Create a table if it does not exist."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    with suppress(CommitFailedError):  # another run created it at the same time
        DeltaTable.create(
            where.table(table),
            table.arrow,
            mode="ignore",
            partition_by=[PARTITION],
            configuration={
                "delta.dataSkippingStatsColumns": ",".join(table.ranged),
                **_LOG_SETTINGS,
                **settings,
            },
            storage_options=dict(where.options),
            raise_if_key_not_exists=False,
        )


@cache
def _empty_table(table: TableSchema) -> DeltaTable:
    """An empty temporary table outside the lake, because reading a lake must not write to it."""
    from deltalake import DeltaTable

    folder = tempfile.mkdtemp(prefix="windlass-lake-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return DeltaTable.create(folder, table.arrow, partition_by=[PARTITION])


def append_files(
    where: Place, table: TableSchema, add: Sequence[FileEntry], transaction: tuple[str, int] | None
) -> None:
    """Add files to a table outside a lake. With a transaction, repeating the call adds nothing."""
    from deltalake import DeltaTable

    _make(where, table, {})
    delta = DeltaTable(where.table(table), storage_options=dict(where.options))
    if not add or (
        transaction is not None and (delta.transaction_version(transaction[0]) or 0) >= transaction[1]
    ):
        return
    where.sync(f"{where.table(table)}/{entry.path}" for entry in add)
    facts = _properties(dict([transaction]) if transaction else None, None, strict=False)
    _commit(delta, _actions(add, (), SYSTEM_CLOCK.now_ms()), facts)


def _commit(delta: DeltaTable, actions: list[Any], facts: CommitProperties) -> None:
    delta.create_write_transaction(actions, "append", delta.schema(), [PARTITION], commit_properties=facts)


def _properties(
    batches: Mapping[str, int] | None, note: Mapping[str, Any] | None, *, strict: bool
) -> CommitProperties:
    """The properties of a commit. ``strict``: it fails if any other commit came first."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata=None if note is None else {NOTE: json.dumps(note)},
        max_commit_retries=0 if strict else None,
        app_transactions=[Transaction(source, number) for source, number in (batches or {}).items()],
    )


def _actions(
    add: Iterable[FileEntry], remove: Iterable[FileEntry], now_ms: int, data_change: bool = True
) -> list[Any]:
    """The added and removed files of a commit as Delta actions."""
    from deltalake.transaction import AddAction, RemoveAction

    added = [
        AddAction(
            entry.path,
            entry.bytes,
            {PARTITION: entry.date},
            now_ms,
            data_change=data_change,
            stats=entry.statistics,
        )
        for entry in add
    ]
    removed = [
        RemoveAction(entry.path, data_change, now_ms, entry.bytes, {PARTITION: entry.date})
        for entry in remove
    ]
    return [*added, *removed]
