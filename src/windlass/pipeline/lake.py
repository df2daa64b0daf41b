"""A lake: Delta tables in one place, and which batches each of them holds.

A batch of a source changes every table, one after the other. Each of these commits carries the application
transaction ``(source, batch)``, and that of bronze also how far the source has been read. So a run that
dies in between continues where the tables say it stopped, and no batch is in a table twice: we look for the
transaction before each commit, and Delta refuses a commit of the same transaction that another run makes
meanwhile.

Delta checks commits against each other for added files. It does not for a file that one commit replaces and
another compacts: so a commit that removes files is made for exactly the version that it was worked out from.

Since tables change one after the other, readers that look at several take each at the version that holds the
newest batch which all of them hold: ``Lake.level``.

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
from windlass.errors import ConfigError, StorageError
from windlass.pipeline.files import FileEntry, Place, place
from windlass.pipeline.known import KnownTable
from windlass.pipeline.schemas import (
    BATCHED,
    BRONZE_ATTEMPTS,
    PARTITION,
    SILVER_ERASED_JOBS,
    SILVER_JOBS,
    TABLES,
    Table,
)

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

#: Positions by source and queue: everything up to there is in the lake.
Offsets = dict[str, dict[str, int]]
#: The key of our own facts in a commit.
NOTE = "windlass"
#: The note of a lake into which another is being carried.
MIGRATING = "migrating"
_ID = "windlass.lakeId"
#: How Delta keeps the log of a table. A folder is listed whole for every commit, so a log that is never cut
#: makes each batch dearer than the last. Delta would cut it right after a checkpoint, when a reader may still
#: need the version before; so we do, between batches (``trim_logs``).
_LOG_SETTINGS = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 6 hours",
    "delta.enableExpiredLogCleanup": "false",
}
#: A log is cut after this many batches.
TRIM_EVERY = 50
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: How many commits are looked at for a note before all are.
_RECENT = 64
#: How often a commit is tried again when only other work came between.
TRIES = 10


class LakeError(StorageError):
    """The lake is damaged."""

    code = "lake"


class LakeTakenError(LakeError):
    """Another run writes to this lake; this one stops and has changed nothing more."""

    code = "lake_taken"


class Conflict(Exception):
    """A commit was refused, because the table changed since it was read."""


class Lake:
    """The tables of a lake. Opened for reading, or made and brought up to date for writing."""

    def __init__(self, where: Place | str, clock: Clock = SYSTEM_CLOCK) -> None:
        try:
            import deltalake  # noqa: F401 - only whether it is there
        except ImportError as exc:
            raise ConfigError("lake", "readable: pip install 'windlass[spark]' first") from exc
        self.place = where if isinstance(where, Place) else place(where)
        self.clock = clock
        self._tables: dict[str, DeltaTable] = {}
        self._known: dict[str, KnownTable] = {}

    @property
    def url(self) -> str:
        return self.place.url

    @property
    def lake_id(self) -> str:
        """Drawn when the lake was made."""
        return str(self.delta(BRONZE_ATTEMPTS).metadata().configuration[_ID])

    @property
    def archiver(self) -> str:
        """The name under which stores know this lake."""
        return f"lake-{self.lake_id}"

    # --- opening ----------------------------------------------------------------------------------------

    def open(self) -> Lake:
        """Open a lake that is there. ``ConfigError`` when there is none."""
        from deltalake.exceptions import TableNotFoundError

        self._refuse_old()
        for table in TABLES.values():
            try:
                self._tables[table.path] = self._load(table)
            except TableNotFoundError:
                if table is SILVER_ERASED_JOBS:  # of an earlier release, until the first run of this one
                    self._tables[table.path] = _stand_in(table)
                    continue
                expected = "a folder or URL that 'windlass pipeline run' has filled"
                raise ConfigError("lake", expected, self.url) from None
        return self

    def create(self, lake_id: str | None = None) -> Lake:
        """Open a lake for writing: make what is missing, and add columns that this release knows."""
        self._refuse_old()
        for table in TABLES.values():
            with self._reached():
                _make(self.place, table, {_ID: lake_id or new_id()} if table is BRONZE_ATTEMPTS else {})
        self.open()
        for table in TABLES.values():
            self._add_columns(table)
            self._add_settings(table)
        return self

    def _load(self, table: Table) -> DeltaTable:
        from deltalake import DeltaTable

        with self._reached():
            return DeltaTable(self.place.table(table), storage_options=dict(self.place.options))

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Errors of the store as ours, in one line. Their text names addresses, and no secret."""
        try:
            yield
        except OSError as exc:
            message = " ".join(_COLOURS.sub("", str(exc)).replace("\u21b3", " ").split())
            raise LakeError(f"{self.url} cannot be reached: {printable(message)}") from exc

    def _refuse_old(self) -> None:
        if self.place.is_folder and (Path(self.url) / "_windlass" / "lake.json").exists():
            advice = f"of Delta tables: 'windlass pipeline migrate --from {self.url} --lake NEW' makes them"
            raise ConfigError("lake", advice, self.url)

    def _add_columns(self, table: Table) -> None:
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

    def _add_settings(self, table: Table) -> None:
        """Settings that a lake of an earlier release lacks; those that someone chose stay."""
        delta = self.delta(table)
        known = delta.metadata().configuration
        missing = {name: value for name, value in _LOG_SETTINGS.items() if name not in known}
        if missing:
            delta.alter.set_table_properties(missing)
            delta.update_incremental()

    # --- looking ----------------------------------------------------------------------------------------

    def delta(self, table: Table) -> DeltaTable:
        """A table at the version that was last looked at."""
        return self._tables[table.path]

    def refresh(self, *tables: Table) -> None:
        """See what was committed since; to all tables without an argument."""
        with self._reached():
            for table in tables or TABLES.values():
                self.delta(table).update_incremental()

    def level(self) -> Lake:
        """See every table as of the newest batch that all of them hold."""
        self.refresh()
        sources = list(self.offsets())
        while ahead := self._ahead(sources):
            for table in ahead:
                self.delta(table).load_as_version(self.delta(table).version() - 1)
        return self

    def _ahead(self, sources: Sequence[str]) -> list[Table]:
        """Tables that hold a batch which another one lacks."""
        least = {source: min(self.done(table, source) for table in BATCHED) for source in sources}
        return [
            table for table in BATCHED if any(self.done(table, source) > least[source] for source in sources)
        ]

    def versions(self) -> dict[str, int]:
        """The versions of the tables that this lake shows, for a reader of another kind."""
        return {path: delta.version() for path, delta in self._tables.items()}

    def known(self, table: Table) -> KnownTable:
        """What this lake knows of a table at the version that was last looked at."""
        delta, held = self.delta(table), self._known.get(table.path)
        if held is None or held.version != delta.version():
            held = self._known[table.path] = KnownTable(table, delta)
        return held

    def done(self, table: Table, source: str) -> int:
        """The number of the newest batch of a source in a table; 0 before the first."""
        return self.known(table).done(source)

    def last_snapshot(self, source: str) -> int:
        """When the newest snapshot of a source's jobs began, by its store's clock; 0 before the first."""
        return self.done(SILVER_JOBS, snapshot_of(source))

    def note(self, source: str | None = None, number: int | None = None) -> dict[str, Any]:
        """What the newest batch, or a certain one, wrote into bronze's log; empty before the first."""
        known = self.known(BRONZE_ATTEMPTS)
        if known.note is None:
            known.note = self._find_note(lambda note: note)
        if source is None:
            return known.note

        def of_batch(note: dict[str, Any]) -> dict[str, Any]:
            return _of_batch(note, source, number)

        return of_batch(known.note) or self._find_note(of_batch)

    def _find_note(self, wanted: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """The newest note in bronze's log of which ``wanted`` finds something, and what it finds."""
        delta = self.delta(BRONZE_ATTEMPTS)
        for limit in (1, _RECENT, None):
            for commit in delta.history(limit):
                if found := wanted(json.loads(commit.get(NOTE, "{}"))):
                    return found
        if delta.history()[-1]["version"] > 0:
            raise LakeError(f"{self.url}: the log of bronze/attempts does not say any more how far it goes")
        return {}

    def offsets(self) -> Offsets:
        """How far every source has been read."""
        note = self.note()
        if MIGRATING in note:
            raise LakeError(f"{self.url}: a migration into it was interrupted; start it again")
        found: Offsets = note.get("offsets", {})
        return found

    @property
    def is_migrating(self) -> bool:
        """Whether a migration into this lake began and did not end."""
        return MIGRATING in self.note()

    def require_level(self) -> None:
        """``LakeError`` unless all tables hold the same batches."""
        if self._ahead(list(self.offsets())):
            raise LakeError(
                f"{self.url}: a batch is not in every table; let 'windlass pipeline run' finish it first"
            )

    def entries(self, table: Table, dates: Iterable[str] | None = None) -> list[FileEntry]:
        """The files of a table, of these dates only if given."""
        return self.known(table).files(dates)

    def uris(self, entries: Iterable[FileEntry]) -> list[str]:
        """Where files are, as Spark spells it."""
        return [f"{self.url}/{entry.table}/{entry.path}" for entry in entries]

    # --- changing ---------------------------------------------------------------------------------------

    def always_changed(self) -> LakeTakenError:
        """The error of a writer that gives up: others committed before it, each time that it tried."""
        message = f"{self.url}: other runs committed first, {TRIES} times in a row; run it again after them"
        return LakeTakenError(message)

    def commit(
        self,
        table: Table,
        add: Sequence[FileEntry],
        remove: Sequence[FileEntry] = (),
        *,
        batches: Mapping[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
        data_change: bool = True,
        strict: bool = False,
    ) -> None:
        """One commit of one table. ``Conflict`` when it changed in a way that this commit does not know of.

        ``batches``: the number of the newest batch by source. Another commit that names one of these sources
        meanwhile is such a change; any other is when files are removed, when a note is left that holds more
        than this commit's own, or when the commit is ``strict``. ``data_change``: False when the same rows
        are in other files now.
        """
        from deltalake.exceptions import CommitFailedError

        delta, known = self.delta(table), self.known(table)
        before = known.version
        self.place.sync(self.uris(add))
        reach("lake.commit", table=table.path)
        facts = _properties(batches, note, strict=strict or bool(remove) or note is not None)
        try:
            with self._reached():
                _commit(delta, _actions(add, remove, self.clock.now_ms(), data_change), facts)
        except CommitFailedError as exc:
            raise Conflict(table.path) from exc
        reach("lake.committed", table=table.path)
        self.refresh(table)
        if delta.version() == before + 1:
            known.advance(batches, note)
        self.place.sync(self._log_since(table, before))

    def _log_since(self, table: Table, version: int) -> list[str]:
        """The commits after a version, and the folder that names them."""
        folder = f"{self.place.table(table)}/_delta_log"
        numbers = range(version + 1, self.delta(table).version() + 1)
        return [*(f"{folder}/{number:020d}.json" for number in numbers), folder]

    def trim_logs(self) -> None:
        """Delete commits that are older than the table's ``delta.logRetentionDuration`` and that the newest
        version does not need. Nothing happens while a batch is not in all tables: readers that look at
        several of them need earlier versions then.
        """
        self.refresh()
        if self._ahead(list(self.offsets())):
            return
        if NOTE not in self.delta(BRONZE_ATTEMPTS).history(1)[0]:
            # How far we have read must not be cut off: say it once more.
            with suppress(Conflict):
                self.commit(BRONZE_ATTEMPTS, [], note=self.note())
            return  # the next one finds it
        with self._reached():
            for table in TABLES.values():
                self.delta(table).cleanup_metadata()

    def sources(self) -> dict[str, int]:
        """The newest batch of every source, in bronze."""
        return {source: self.done(BRONZE_ATTEMPTS, source) for source in self.offsets()}


def snapshot_of(source: str) -> str:
    """The application whose transactions are the snapshots of a source's jobs; no source has such a name."""
    return f"{source}/jobs"


def _of_batch(note: Mapping[str, Any], source: str, number: int | None) -> dict[str, Any]:
    """What a note says of a certain batch; empty when it is of others."""
    if (note.get("source"), note.get("batch")) == (source, number):  # as earlier releases wrote it
        return dict(note)
    found = note.get("latest", {}).get(source, {})
    return dict(found) if found.get("batch") == number else {}


def _make(where: Place, table: Table, settings: Mapping[str, str]) -> None:
    """A new table, unless it is there."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    with suppress(CommitFailedError):  # another run made it at the same time
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
def _stand_in(table: Table) -> DeltaTable:
    """An empty table outside the lake, since reading a lake does not write to it."""
    from deltalake import DeltaTable

    folder = tempfile.mkdtemp(prefix="windlass-lake-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return DeltaTable.create(folder, table.arrow, partition_by=[PARTITION])


def append_files(
    where: Place, table: Table, add: Sequence[FileEntry], transaction: tuple[str, int] | None
) -> None:
    """Add files to a table that belongs to no lake; under a transaction, once."""
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
    """Of a commit. ``strict``: it is refused when any other came between."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata=None if note is None else {NOTE: json.dumps(note)},
        max_commit_retries=0 if strict else None,
        app_transactions=[Transaction(source, number) for source, number in (batches or {}).items()],
    )


def _actions(
    add: Iterable[FileEntry], remove: Iterable[FileEntry], now_ms: int, data_change: bool = True
) -> list[Any]:
    """Files that a commit adds and removes, as Delta spells it."""
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
