"""SQL over a lake: its tables as views, in DuckDB (no JVM, fast start) or in Spark.

Views: ``attempts``, ``jobs``, ``minute``, ``hour``, ``day``, ``errors``, ``workers``, ``backlog`` (with the
running ``waiting``), ``bronze_attempts``, ``gaps``, ``erased``, ``erased_jobs``. All show the newest batch
that every table holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from windlass.errors import ConfigError
from windlass.pipeline import schemas
from windlass.pipeline.histogram import register_duckdb
from windlass.pipeline.lake import Lake

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyspark.sql import SparkSession

VIEWS = {
    "attempts": schemas.SILVER_ATTEMPTS,
    "jobs": schemas.SILVER_JOBS,
    "minute": schemas.GOLD_MINUTE,
    "hour": schemas.GOLD_HOUR,
    "day": schemas.GOLD_DAY,
    "errors": schemas.GOLD_ERRORS,
    "workers": schemas.GOLD_WORKERS,
    "backlog_changes": schemas.GOLD_BACKLOG,
    "bronze_attempts": schemas.BRONZE_ATTEMPTS,
    "gaps": schemas.BRONZE_GAPS,
    "erased": schemas.SILVER_ERASED,
    "erased_jobs": schemas.SILVER_ERASED_JOBS,
}
#: The backlog is a running sum over another view.
_BACKLOG = """
SELECT *, sum(ready - departed) OVER (PARTITION BY source, queue ORDER BY window_start) AS waiting
FROM backlog_changes
"""


class QueryAnswer(NamedTuple):
    """Column names and rows."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def query(root: str | Lake, sql: str, limit: int = 10_000) -> QueryAnswer:
    """Run one query in DuckDB; at most ``limit`` rows."""
    with connect(root) as connection, _plain_errors():
        result = connection.execute(sql)
        columns = [column[0] for column in result.description or []]
        return QueryAnswer(columns, result.fetchmany(limit))


def query_arrow(lake: Lake, sql: str, **tables: pa.Table) -> pa.Table:
    """All rows of one query in DuckDB, over the lake's loaded version and over ``tables``."""
    with connect(lake) as connection, _plain_errors():
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).to_arrow_table()


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise errors in a query as ``ConfigError`` that lists the views."""
    import duckdb

    try:
        yield
    except duckdb.Error as exc:
        raise ConfigError(
            "sql", message=f"the query failed: {exc} (tables: {', '.join([*VIEWS, 'backlog'])})"
        ) from exc


def connect(root: str | Lake) -> DuckDBPyConnection:
    """A DuckDB connection with the lake's tables as views. Needs the ``duckdb`` package."""
    try:
        import duckdb
    except ImportError as exc:
        raise ConfigError(
            "sql", message="duckdb is not installed; run: pip install duckdb, or use --engine spark"
        ) from exc
    lake = root if isinstance(root, Lake) else Lake(root).open().level()
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    register_duckdb(connection)
    for name, table in VIEWS.items():
        # An Arrow dataset has the files of this version with their days and ranges, on any kind of storage.
        connection.register(name, lake.delta(table).to_pyarrow_dataset())
    connection.execute(f"CREATE TEMP VIEW backlog AS {_BACKLOG}")
    return connection


def register_views(spark: SparkSession, lake: Lake) -> None:
    """Define the same views in a Spark session."""
    from windlass.pipeline.workbench import read_files

    for name, table in VIEWS.items():
        read_files(spark, lake, table, lake.entries(table)).createOrReplaceTempView(name)
    spark.sql(_BACKLOG).createOrReplaceTempView("backlog")


def query_spark(spark: SparkSession, root: str, sql: str, limit: int = 10_000) -> QueryAnswer:
    """Run one query in Spark; at most ``limit`` rows."""
    register_views(spark, Lake(root).open().level())
    frame = spark.sql(sql).limit(limit)
    return QueryAnswer(frame.columns, [tuple(row) for row in frame.collect()])
