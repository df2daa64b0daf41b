"""Every gold table: rows for attempts, and the merge of rows with the same key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windlass.pipeline import schemas
from windlass.pipeline.transforms.rollups import attempt_rollups, merged_rollups
from windlass.pipeline.transforms.sql import as_rows, ask, day, engine, window

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_GRAINS = {table.path: grain for grain, table in schemas.ROLLUPS.items()}
_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
#: If there is no fingerprint, the class of the error is used.
_FINGERPRINT = "coalesce(nullif(error_fingerprint, ''), error_class)"
_LEFT = "coalesce(started_ms, finished_ms)"

#: SQL for rows of a table from the table ``attempts``. A key may occur several times.
_PARTS = {
    schemas.GOLD_ERRORS.path: f"""
        SELECT date, source, queue, task, {_FINGERPRINT} AS error_fingerprint, error_class,
               1 AS occurrences, (outcome = 'failed')::INTEGER AS failed, finished_ms AS first_ms,
               finished_ms AS last_ms, job_id AS last_job_id, run_id AS last_run_id,
               error_message AS last_message
        FROM attempts WHERE {_FINGERPRINT} IS NOT NULL
    """,
    schemas.GOLD_WORKERS.path: f"""
        SELECT source, {window("finished_ms", _HOUR_MS)} AS window_start, worker, queue, count(*) AS attempts,
               count(*) FILTER (outcome = 'completed') AS completed,
               count(*) FILTER (outcome = 'failed') AS failed,
               count(*) FILTER (outcome = 'stalled') AS stalled,
               sum(coalesce(duration_ms, 0)) AS busy_ms, min(started_ms) AS first_ms,
               max(finished_ms) AS last_ms, {day("any_value(finished_ms)")} AS date
        FROM attempts WHERE worker IS NOT NULL GROUP BY ALL
    """,
    # The minute in which an attempt became ready, and the minute in which it stopped waiting.
    schemas.GOLD_BACKLOG.path: f"""
        SELECT *, {day("window_start")} AS date FROM (
            SELECT source, {window("ready_ms", _MINUTE_MS)} AS window_start, queue, count(*) AS ready,
                   0 AS departed, 0 AS wait_sum_ms, NULL::BIGINT AS wait_max_ms
            FROM attempts GROUP BY ALL
            UNION ALL
            SELECT source, {window(_LEFT, _MINUTE_MS)} AS window_start, queue, 0 AS ready,
                   count(*) AS departed, sum(greatest({_LEFT} - ready_ms, 0)) AS wait_sum_ms,
                   max(greatest({_LEFT} - ready_ms, 0)) AS wait_max_ms
            FROM attempts GROUP BY ALL)
    """,
}
_NEWEST = "{'at': last_ms, 'run': last_run_id}"
#: How columns that are no key add up.
_MERGED = {
    schemas.GOLD_ERRORS.path: f"""
        sum(occurrences) AS occurrences, sum(failed) AS failed, min(first_ms) AS first_ms,
        max(last_ms) AS last_ms,
        unnest(arg_max({{'error_class': error_class, 'last_job_id': last_job_id, 'last_run_id': last_run_id,
                         'last_message': last_message}}, {_NEWEST}))
    """,
    schemas.GOLD_WORKERS.path: """
        any_value(date) AS date, sum(attempts) AS attempts, sum(completed) AS completed,
        sum(failed) AS failed, sum(stalled) AS stalled, sum(busy_ms) AS busy_ms, min(first_ms) AS first_ms,
        max(last_ms) AS last_ms
    """,
    schemas.GOLD_BACKLOG.path: """
        any_value(date) AS date, sum(ready) AS ready, sum(departed) AS departed,
        sum(wait_sum_ms) AS wait_sum_ms, max(wait_max_ms) AS wait_max_ms
    """,
}


def attempt_rows(
    connection: DuckDBPyConnection, attempts: pa.Table, tables: Sequence[schemas.TableSchema]
) -> list[pa.Table]:
    """Gold rows of the attempts in the table ``attempts`` of ``connection``, each key once."""
    grains = [_GRAINS[table.path] for table in tables if table.path in _GRAINS]
    rollups = iter(attempt_rollups(connection, attempts, grains))
    return [
        next(rollups) if table.path in _GRAINS else _grouped(connection, table, f"({_PARTS[table.path]})")
        for table in tables
    ]


def merged_rows(table: schemas.TableSchema, rows: pa.Table) -> pa.Table:
    """Rows of a gold table, each key once, sorted, so that equal rows give equal bytes."""
    if table.path in _GRAINS:
        return merged_rollups(rows)
    with engine(rows=rows) as connection:
        return _grouped(connection, table, "rows")


def _grouped(connection: DuckDBPyConnection, table: schemas.TableSchema, rows: str) -> pa.Table:
    keys = ", ".join(table.keys)
    sql = f"SELECT {keys}, {_MERGED[table.path]}, {schemas.SCHEMA_VERSION} AS schema_version FROM {rows}"
    return as_rows(ask(connection, f"FROM ({sql} GROUP BY {keys}) ORDER BY date, {keys}"), table)
