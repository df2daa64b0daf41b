"""How transforms run: DuckDB executes SQL over Arrow tables, in the task that holds the rows.

Spark distributes the tasks and decides which results count. Within a task, data stays in Arrow, because
converting rows for the JVM takes several times as long as the work itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from windlass.pipeline.schemas import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection


@contextmanager
def engine(**tables: pa.Table) -> Iterator[DuckDBPyConnection]:
    """An in-memory database that can read these tables. One thread, because a Spark task has one core."""
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        for name, rows in tables.items():
            connection.register(name, rows)
        yield connection


def ask(connection: DuckDBPyConnection, sql: str) -> pa.Table:
    return connection.sql(sql).to_arrow_table()


def as_rows(rows: pa.Table, table: TableSchema) -> pa.Table:
    """Rows cast to the schema of a table."""
    return rows.select(table.names).cast(table.arrow)


def window(ms: str, width_ms: int) -> str:
    """SQL for the start of the window that contains a time, also before 1970."""
    return f"({ms} - (({ms} % {width_ms}) + {width_ms}) % {width_ms})"


def day(ms: str) -> str:
    """SQL for the UTC day of a time."""
    return f"(DATE '1970-01-01' + floor({ms} / 86400000.0)::INTEGER)"
