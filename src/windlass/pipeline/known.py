"""The state of a table at one version: its files, the newest batches, the newest note.

Each part is read on first use. After a commit of its own, a run updates the newest batches and the note here,
because the library would read them from the log again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from windlass.pipeline.files import FileEntry
from windlass.pipeline.schemas import PARTITION, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


class KnownTable:
    """The state of a table at ``version``."""

    def __init__(self, table: TableSchema, delta: DeltaTable) -> None:
        self.version = delta.version()
        #: The newest note in the table's log; None: not read yet.
        self.note: dict[str, Any] | None = None
        self._table = table
        self._delta = delta
        self._done: dict[str, int] = {}
        self._listed: pa.Table | None = None

    def done(self, source: str) -> int:
        """The number of the newest batch of a source; 0 if there is none."""
        if source not in self._done:
            self._done[source] = self._delta.transaction_version(source) or 0
        return self._done[source]

    def files(self, dates: Iterable[str] | None = None) -> list[FileEntry]:
        """The files, ordered by date; with ``dates``, only those of these dates."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._listed is None:
            self._listed = pa.table(self._delta.get_add_actions(flatten=True))
        rows = self._listed
        if dates is not None:  # filter first: only a few rows of a long list become objects
            days = rows.column(f"partition.{PARTITION}").cast(pa.string())
            rows = rows.filter(pc.is_in(days, pa.array(dates, pa.string())))
        return sorted((self._entry(row) for row in rows.to_pylist()), key=lambda entry: entry.date)

    def advance(self, batches: Mapping[str, int] | None, note: Mapping[str, Any] | None) -> None:
        """Continue with the next version after a commit of this run."""
        self.version += 1
        self._done.update(batches or {})
        if note is not None:
            self.note = json.loads(json.dumps(note))
        self._listed = None

    def _entry(self, row: Mapping[str, Any]) -> FileEntry:
        ranges = {
            name: (row[f"min.{name}"], row[f"max.{name}"])
            for name in self._table.ranged
            if row.get(f"min.{name}") is not None and row.get(f"max.{name}") is not None
        }
        day = str(row[f"partition.{PARTITION}"])
        return FileEntry(row["path"], self._table.path, day, row["num_records"], row["size_bytes"], ranges)
