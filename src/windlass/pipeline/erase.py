"""Remove a person's rows from every table of a lake.

SQL over the ``jobs`` view selects the jobs. Their rows are removed from bronze and silver, and examples in
``gold/errors`` lose their ids and messages. Roll-ups keep their counts. For this, ``silver/erased`` keeps
the columns of each attempt that they need, and a hash of its ``run_id`` that recognises the attempt if it is
read again. No column there names a job.

``silver/erased_jobs`` keeps a hash of each job, so that the next snapshot of its store does not add it
again. ``silver/jobs`` is changed last, so that an interrupted ``erase`` finds the same jobs when it is
started again. Older versions of the tables hold the rows until ``vacuum`` deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from windlass.core.clock import SYSTEM_CLOCK
from windlass.pipeline import schemas
from windlass.pipeline.compact import newest_note
from windlass.pipeline.files import FileEntry, TableWriter, read_entries
from windlass.pipeline.hashes import job_hash, run_hash
from windlass.pipeline.lake import Conflict, Lake, LakeTakenError
from windlass.pipeline.payloads import select_where

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_KEYS = list(schemas.SILVER_JOBS.keys)


@dataclass(frozen=True)
class Erased:
    """How many jobs and attempts were erased."""

    jobs: int
    attempts: int


def select_jobs(lake: Lake, where: str) -> pa.Table:
    """The keys of the jobs that match ``where``, which may refer to arguments that the lake holds."""
    return select_where(lake, _KEYS, where)


def erase(lake: Lake, where: str) -> Erased:
    """Remove the jobs that match ``where``, and all their rows."""
    import duckdb

    lake.create()  # a lake of an earlier release lacks a table
    lake.require_level()
    jobs = select_jobs(lake, where)
    if not jobs.num_rows:
        return Erased(0, 0)
    with duckdb.connect() as connection:
        connection.register("chosen", jobs)
        work = _Erasure(lake, connection, jobs)
        attempts = work.remember()
        work.remember_jobs()
        work.forget_examples()
        for table in (schemas.BRONZE_ATTEMPTS, schemas.SILVER_ATTEMPTS, schemas.SILVER_JOBS):
            work.remove(table)
    return Erased(jobs.num_rows, attempts)


class _Erasure:
    def __init__(self, lake: Lake, connection: DuckDBPyConnection, jobs: pa.Table) -> None:
        import pyarrow.compute as pc

        self.lake = lake
        self.connection = connection
        self.jobs = jobs
        span = pc.min_max(jobs.column("enqueued_ms")).as_py()
        self.low, self.high = span["min"], span["max"]
        # Every commit names the newest batches, so that a batch that commits meanwhile conflicts with it.
        self.batches = lake.sources()

    def remember(self) -> int:
        """Add the attempts to ``silver/erased``; returns how many."""
        table = schemas.SILVER_ERASED
        known = self._hashes(table)
        hidden: list[dict[str, Any]] = []
        for entry in self._candidates(schemas.SILVER_ATTEMPTS):
            rows = self._ask(
                self._read(entry), f"SELECT * FROM rows SEMI JOIN chosen USING ({', '.join(_KEYS)})"
            )
            hidden += [
                row for row in map(_hidden, rows.to_pylist()) if (row["source"], row["run_id"]) not in known
            ]
        self._commit(table, self._literal(table, hidden), [])
        return len(hidden)

    def remember_jobs(self) -> None:
        """Add the jobs to ``silver/erased_jobs``."""
        table, now_ms = schemas.SILVER_ERASED_JOBS, SYSTEM_CLOCK.now_ms()
        known = self._hashes(table)
        hidden = [(row["source"], job_hash(**row)) for row in self.jobs.to_pylist()]
        facts = {
            "erased_ms": now_ms,
            "schema_version": schemas.SCHEMA_VERSION,
            "date": datetime.fromtimestamp(now_ms / 1000, UTC).date(),
        }
        rows = [{"source": key[0], "job_hash": key[1], **facts} for key in hidden if key not in known]
        self._commit(table, self._literal(table, rows), [])

    def _literal(self, table: schemas.TableSchema, rows: list[dict[str, Any]]) -> list[FileEntry]:
        import pyarrow as pa

        writer = TableWriter(self.lake.place, table)
        if rows:
            writer.write(pa.Table.from_pylist(rows, schema=table.arrow))
        return writer.close()

    def _hashes(self, table: schemas.TableSchema) -> set[tuple[Any, ...]]:
        """The keys of rows that were erased before."""
        rows = self.lake.delta(table).to_pyarrow_dataset().to_table(columns=list(table.keys))
        return {tuple(row.values()) for row in rows.to_pylist()}

    def forget_examples(self) -> None:
        """Remove ids and messages of the chosen jobs from examples of errors. Counts stay."""
        changed = (
            "SELECT r.* REPLACE (CASE WHEN c.job_id IS NULL THEN r.last_job_id ELSE '' END AS last_job_id, "
            "CASE WHEN c.job_id IS NULL THEN r.last_run_id ELSE '' END AS last_run_id, "
            "CASE WHEN c.job_id IS NULL THEN r.last_message END AS last_message) FROM rows r "
            "LEFT JOIN (SELECT DISTINCT source, queue, job_id FROM chosen) c "
            "ON c.source = r.source AND c.queue = r.queue AND c.job_id = r.last_job_id"
        )
        self._rewrite(schemas.GOLD_ERRORS, self.lake.entries(schemas.GOLD_ERRORS), changed)

    def remove(self, table: schemas.TableSchema) -> None:
        """Drop the rows of the chosen jobs from a table."""
        kept = f"SELECT * FROM rows ANTI JOIN chosen USING ({', '.join(_KEYS)})"
        self._rewrite(table, self._candidates(table), kept)

    def _candidates(self, table: schemas.TableSchema) -> list[FileEntry]:
        entries = self.lake.entries(table)
        return [entry for entry in entries if entry.overlaps("enqueued_ms", self.low, self.high)]

    def _rewrite(self, table: schemas.TableSchema, entries: list[FileEntry], sql: str) -> None:
        """Rewrite the files whose rows ``sql`` changes."""
        writer, old = TableWriter(self.lake.place, table), []
        for entry in entries:
            before = self._read(entry)
            after = self._ask(before, sql).select(table.names).cast(before.schema)
            if after.num_rows != before.num_rows or _differ(before, after):
                old.append(entry)
                if after.num_rows:
                    writer.write(after)
        self._commit(table, writer.close(), old)

    def _read(self, entry: FileEntry) -> pa.Table:
        import pyarrow as pa

        names = schemas.TABLES[entry.table].names
        batches = list(read_entries(self.lake.place, [entry], names))
        return pa.Table.from_batches(batches)

    def _ask(self, rows: pa.Table, sql: str) -> pa.Table:
        self.connection.register("rows", rows)
        return self.connection.sql(sql).to_arrow_table()

    def _commit(self, table: schemas.TableSchema, new: list[FileEntry], old: list[FileEntry]) -> None:
        if not new and not old:
            return
        try:
            self.lake.commit(table, new, old, batches=self.batches, note=newest_note(self.lake, table))
        except Conflict as exc:
            raise LakeTakenError(f"a run changed {table.path} meanwhile; start erase again") from exc


def _differ(before: pa.Table, after: pa.Table) -> bool:
    """Whether an example changed. Rows may be in another order."""
    name = "last_job_id"
    if name not in before.column_names:
        return False
    return sorted(before.column(name).to_pylist()) != sorted(after.column(name).to_pylist())


def _hidden(row: dict[str, Any]) -> dict[str, Any]:
    """An attempt without the columns that identify its job."""
    now_ms = SYSTEM_CLOCK.now_ms()
    nothing = dict.fromkeys(("group", "tags", "error_message", "parent", "root"))
    return {**row, **nothing, "run_id": run_hash(row["run_id"]), "job_id": "", "erased_ms": now_ms}
