"""What a run knows of a table at one version: its files by date, the newest batches, the newest note.

``deltalake`` works out the list of all files for every version. A run needs the files of a few dates, and
makes most commits itself: what it knew of the version before, with its own change, is what it would read
again. So what we add to the cost of a commit does not grow with the files of a table.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.pipeline.files import FileEntry
from windlass.pipeline.schemas import PARTITION, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable


class KnownTable:
    """A table at ``version``. Everything is read when it is first asked for."""

    def __init__(self, table: Table, delta: DeltaTable) -> None:
        self.version = delta.version()
        #: The newest note in its log; None: not read yet.
        self.note: dict[str, Any] | None = None
        self._table = table
        self._delta = delta
        self._done: dict[str, int] = {}
        self._listed: _Listing | None = None
        self._days: dict[str, dict[str, FileEntry]] = {}

    def done(self, source: str) -> int:
        """The number of the newest batch of a source; 0 before the first."""
        if source not in self._done:
            self._done[source] = self._delta.transaction_version(source) or 0
        return self._done[source]

    def files(self, dates: Iterable[str] | None = None) -> list[FileEntry]:
        """The files, of these dates only if given."""
        if self._listed is None:
            self._listed = _Listing(self._table, self._delta)
        wanted = {*self._listed.dates, *self._days} if dates is None else set(dates)
        return [entry for day in sorted(wanted) for entry in self._day(self._listed, day).values()]

    def _day(self, listed: _Listing, day: str) -> dict[str, FileEntry]:
        if day not in self._days:
            self._days[day] = {entry.path: entry for entry in listed.files(day)}
        return self._days[day]

    def advance(
        self,
        add: Sequence[FileEntry],
        remove: Sequence[FileEntry],
        batches: Mapping[str, int] | None,
        note: Mapping[str, Any] | None,
    ) -> None:
        """The next version, which differs by one commit."""
        self.version += 1
        self._done.update(batches or {})
        if note is not None:
            self.note = json.loads(json.dumps(note))
        if self._listed is None:
            return  # the list is that of the version at which it is read
        for entry in remove:
            self._day(self._listed, entry.date).pop(entry.path, None)
        for entry in add:
            self._day(self._listed, entry.date)[entry.path] = entry


class _Listing:
    """The list of files of one version, as ``deltalake`` gives it; rows become entries date by date."""

    def __init__(self, table: Table, delta: DeltaTable) -> None:
        import pyarrow as pa

        self._table = table
        self._rows = pa.table(delta.get_add_actions(flatten=True))
        self.dates: defaultdict[str, list[int]] = defaultdict(list)
        for at, day in enumerate(self._rows.column(f"partition.{PARTITION}").cast(pa.string()).to_pylist()):
            self.dates[day].append(at)

    def files(self, day: str) -> list[FileEntry]:
        if day not in self.dates:
            return []
        return [self._entry(day, row) for row in self._rows.take(self.dates[day]).to_pylist()]

    def _entry(self, day: str, row: Mapping[str, Any]) -> FileEntry:
        ranges = {
            name: (row[f"min.{name}"], row[f"max.{name}"])
            for name in self._table.ranged
            if row.get(f"min.{name}") is not None and row.get(f"max.{name}") is not None
        }
        return FileEntry(row["path"], self._table.path, day, row["num_records"], row["size_bytes"], ranges)
