"""A lake: Parquet files, and a log of commits that says which of them count.

Everything about the lake itself is in ``_windlass/``:

* ``lake.json``: its id and format;
* ``commits/N.json``: what the N-th change added and removed, and the source offsets after it. Created
  exclusively; the only truth for our readers;
* ``snapshots/N.json``: all files after the N-th commit, so that opening a lake does not replay its life;
* ``intents/N.json``, ``staging/``, ``trash/``: a change under way.

A change writes its new files to ``staging/<txn>/``, then an intent (all it will move in and out), then
moves, then the commit. Files that it replaces leave the tree before the commit, so that ``**/*.parquet`` is
exact at rest.

Whoever opens a lake for writing first finishes an intent that has no commit, then takes the next number for
an empty ``open`` commit: from then on any earlier writer that still lives finds its number taken
(``LakeTakenError``), and what lies in ``staging`` belongs to nobody.

Test points: ``lake.staged``, ``lake.intent``, ``lake.moved`` (each file), ``lake.placed``,
``lake.committed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import new_id
from windlass.core.probe import reach
from windlass.errors import ConfigError, StorageError
from windlass.pipeline.files import Files
from windlass.pipeline.schemas import TABLES, Table

FORMAT = 1
META = "_windlass"
#: A snapshot is written every so many commits, and commits older than this are forgotten.
SNAPSHOT_EVERY = 50
COMMITS_KEPT = 1_000

Offsets = dict[str, dict[str, int]]


class LakeError(StorageError):
    """The lake is damaged, or a file that its commits name is gone."""

    code = "lake"


class LakeTakenError(LakeError):
    """Another run opened this lake for writing; this one stops and has changed nothing more."""

    code = "lake_taken"


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One data file. ``ranges``: smallest and largest value of a column."""

    path: str
    table: str
    date: str
    rows: int
    bytes: int
    ranges: dict[str, tuple[int, int]] = {}

    def overlaps(self, column: str, low: int, high: int) -> bool:
        """Whether the file may hold a value from ``low`` to ``high``; unknown counts as yes."""
        found = self.ranges.get(column)
        return found is None or (found[0] <= high and found[1] >= low)


class Commit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of the lake. ``offsets``: by source and queue, everything up to there is in the lake."""

    version: int
    kind: str
    txn: str
    at_ms: int
    offsets: Offsets = {}
    add: list[FileEntry] = []
    remove: list[str] = []
    #: Where each added file was staged, in the order of ``add``.
    staged: list[str] = []
    info: dict[str, Any] = {}


class State(msgspec.Struct):
    """What the lake holds after commit ``version``."""

    version: int = 0
    offsets: Offsets = {}
    files: dict[str, FileEntry] = {}

    def apply(self, commit: Commit) -> None:
        for path in commit.remove:
            self.files.pop(path, None)
        for entry in commit.add:
            self.files[entry.path] = entry
        self.offsets = merge_offsets(self.offsets, commit.offsets)
        self.version = commit.version

    def of(self, table: Table, dates: Iterable[str] | None = None) -> list[FileEntry]:
        """The files of a table, of these dates only if given."""
        wanted = None if dates is None else set(dates)
        return [
            entry
            for entry in self.files.values()
            if entry.table == table.path and (wanted is None or entry.date in wanted)
        ]


class _Identity(msgspec.Struct):
    lake_id: str
    format: int = FORMAT


def merge_offsets(old: Offsets, new: Offsets) -> Offsets:
    """``old`` moved forward by ``new``; what ``new`` does not name stays."""
    merged = {source: dict(queues) for source, queues in old.items()}
    for source, queues in new.items():
        merged.setdefault(source, {}).update(queues)
    return merged


class Lake:
    """One lake, for reading; ``open_writer`` before changing it."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.state = State()
        self.lake_id = ""
        self._writing = False

    @property
    def root(self) -> str:
        return self.files.root

    # --- reading ----------------------------------------------------------------------------------------

    def load(self) -> State:
        """Read the newest committed state. ``ConfigError`` when there is no lake."""
        try:
            identity = msgspec.json.decode(self.files.read(f"{META}/lake.json"), type=_Identity)
        except FileNotFoundError:
            raise ConfigError("lake", "a folder that 'windlass pipeline run' has filled", self.root) from None
        if identity.format > FORMAT:
            raise ConfigError("lake", f"of format {FORMAT} or older (upgrade windlass)", identity.format)
        self.lake_id = identity.lake_id
        self.state = self._snapshot()
        self.refresh()
        return self.state

    def refresh(self) -> State:
        """Apply commits that appeared since the last look."""
        while (commit := self._read_commit(self.state.version + 1)) is not None:
            self.state.apply(commit)
        return self.state

    def _snapshot(self) -> State:
        for version in self._snapshot_versions():
            try:
                return msgspec.json.decode(self.files.read(_snapshot(version)), type=State)
            except (FileNotFoundError, msgspec.DecodeError):
                continue  # forgotten meanwhile: an older or newer one will do
        return State()

    def _snapshot_versions(self) -> Iterable[int]:
        try:
            yield int(self.files.read(f"{META}/latest"))
        except (FileNotFoundError, ValueError):
            pass
        yield from sorted((_number(name) for name in self.files.names(f"{META}/snapshots")), reverse=True)

    def _read_commit(self, version: int) -> Commit | None:
        try:
            return msgspec.json.decode(self.files.read(_commit(version)), type=Commit)
        except FileNotFoundError:
            return None

    def paths(self, entries: Iterable[FileEntry]) -> list[str]:
        """Entries as Spark or DuckDB should be told."""
        return [f"{self.root}/{entry.path}" for entry in entries]

    # --- writing ------------------------------------------------------------------------------------------

    def open_writer(self) -> State:
        """Create the lake if need be, finish what was under way, and shut earlier writers out."""
        if not self.files.exists(f"{META}/lake.json"):
            self.files.create(f"{META}/lake.json", msgspec.json.encode(_Identity(new_id())))
        self.load()
        while True:
            self._finish_intent()
            mark = Commit(self.state.version + 1, "open", new_id(), SYSTEM_CLOCK.now_ms())
            if self._take(mark):
                break
        self._carry_out(mark)
        self._writing = True
        for folder in ("staging", "trash"):
            self.files.delete(f"{META}/{folder}")
        for name in self.files.names(f"{META}/intents"):
            if _number(name) <= self.state.version:
                self.files.delete(f"{META}/intents/{name}")
        return self.state

    def begin(self) -> Transaction:
        """A new change. Only after ``open_writer``."""
        if not self._writing:
            raise LakeError("this lake was opened for reading only")
        return Transaction(self)

    def commit(self, txn: Transaction, kind: str, offsets: Offsets, info: dict[str, Any]) -> Commit:
        """Make a staged change true."""
        for path in txn.staged:
            self.files.sync(path)
        commit = Commit(
            self.state.version + 1,
            kind,
            txn.id,
            SYSTEM_CLOCK.now_ms(),
            offsets,
            txn.add,
            txn.remove,
            txn.staged,
            info,
        )
        reach("lake.staged")
        if not self._take(commit):
            raise LakeTakenError(f"another run writes to {self.root}; this one ends here")
        reach("lake.intent")
        self._carry_out(commit)
        return commit

    def _take(self, commit: Commit) -> bool:
        """Claim the number of ``commit`` by its intent; False when somebody else has it."""
        if not self.files.create(_intent(commit.version), msgspec.json.encode(commit)):
            return False
        if self.files.exists(_commit(commit.version)):  # done and tidied up before we came
            self.files.delete(_intent(commit.version))
            return False
        return True

    def _finish_intent(self) -> None:
        """Roll forward an intent that has no commit."""
        self.refresh()
        try:
            raw = self.files.read(_intent(self.state.version + 1))
        except FileNotFoundError:
            return
        self._carry_out(msgspec.json.decode(raw, type=Commit))

    def _carry_out(self, commit: Commit) -> None:
        """Move files, write the commit, tidy up. May be repeated, also by two at once."""
        for staged, entry in zip(commit.staged, commit.add, strict=True):
            if self.files.exists(staged):
                self._move(staged, entry.path, commit.version)
            elif not self.files.exists(entry.path):
                self._check_done(commit.version, entry.path)
        for path in commit.remove:
            if self.files.exists(path):
                self._move(path, f"{META}/trash/{commit.txn}/{path}", commit.version)
        reach("lake.placed")
        self.files.create(_commit(commit.version), msgspec.json.encode(commit))
        reach("lake.committed")
        self.files.delete(f"{META}/trash/{commit.txn}")
        self.files.delete(f"{META}/staging/{commit.txn}")
        self.files.delete(_intent(commit.version))
        if self.state.version < commit.version:
            self.state.apply(commit)
        if commit.version % SNAPSHOT_EVERY == 0:
            self._write_snapshot()

    def _move(self, source: str, target: str, version: int) -> None:
        try:
            self.files.move(source, target)
        except FileNotFoundError:
            if not self.files.exists(target):
                self._check_done(version, target)
        reach("lake.moved")

    def _check_done(self, version: int, path: str) -> None:
        """A file may be missing only when another writer finished this change already."""
        if not self.files.exists(_commit(version)):
            raise LakeError(f"{path} is neither staged nor in place: the lake was changed by hand")

    def _write_snapshot(self) -> None:
        version = self.state.version
        self.files.create(_snapshot(version), msgspec.json.encode(self.state))
        self.files.replace(f"{META}/latest", str(version).encode())
        self.files.delete(_snapshot(version - 2 * SNAPSHOT_EVERY))
        last = version - COMMITS_KEPT
        for old in range(max(last - SNAPSHOT_EVERY, 0), max(last, 0)):
            self.files.delete(_commit(old + 1))


class Transaction:
    """Files to add and to remove, all at once or not at all."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.id = new_id()
        self.add: list[FileEntry] = []
        self.staged: list[str] = []
        self.remove: list[str] = []

    @property
    def version(self) -> int:
        """The number that this change will have."""
        return self.lake.state.version + 1

    def folder(self, name: str) -> str:
        """Where to write new files, from the lake's root."""
        return f"{META}/staging/{self.id}/{name}"

    def target(self, name: str) -> str:
        """``folder`` as Spark should be told."""
        return f"{self.lake.root}/{self.folder(name)}"

    def take(self, table: Table, folder: str, label: str = "part") -> list[FileEntry]:
        """Add every Parquet file below ``folder`` (with ``date=`` folders) to ``table``."""
        taken = []
        for staged in sorted(self.lake.files.walk(folder)):
            if not staged.endswith(".parquet"):
                continue
            date = _date_in(staged)
            name = f"{label}-{self.version:010d}-{len(self.add):04d}-{self.id[-12:]}.parquet"
            path = f"{table.path}/date={date}/{name}"
            entry = describe(self.lake.files, staged, table, path, date)
            if entry.rows:
                taken.append(entry)
                self.add.append(entry)
                self.staged.append(staged)
        return taken

    def drop(self, entries: Sequence[FileEntry]) -> None:
        """Remove files that this change replaces."""
        self.remove.extend(entry.path for entry in entries)


def describe(files: Files, staged: str, table: Table, path: str, date: str) -> FileEntry:
    """A file's rows, size and ranges, from its footer."""
    import pyarrow.parquet as pq

    with files.open(staged) as file:
        footer = pq.ParquetFile(file).metadata
    ranges: dict[str, tuple[int, int]] = {}
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        if name in table.ranged and footer.num_row_groups:
            parts = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
            if all(part is not None and part.has_min_max for part in parts):
                ranges[name] = (min(part.min for part in parts), max(part.max for part in parts))
    return FileEntry(path, table.path, date, footer.num_rows, files.size(staged), ranges)


def _date_in(path: str) -> str:
    for part in path.split("/"):
        if part.startswith("date="):
            return part.removeprefix("date=")
    raise LakeError(f"{path} is in no date= folder")


def _commit(version: int) -> str:
    return f"{META}/commits/{version:010d}.json"


def _intent(version: int) -> str:
    return f"{META}/intents/{version:010d}.json"


def _snapshot(version: int) -> str:
    return f"{META}/snapshots/{version:010d}.json"


def _number(name: str) -> int:
    stem = name.partition(".")[0]
    return int(stem) if stem.isdecimal() else -1


def stray_files(lake: Lake) -> tuple[list[str], list[str]]:
    """Data files that no commit names, and named ones that are not there: both empty in a sound lake."""
    found = {path for top in {name.split("/")[0] for name in TABLES} for path in lake.files.walk(top)}
    present = {path for path in found if path.endswith(".parquet")}
    return sorted(present - set(lake.state.files)), sorted(set(lake.state.files) - present)
