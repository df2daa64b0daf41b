"""SQL over a lake: its tables as views, in DuckDB (no JVM, starts at once) or in Spark.

Views: ``attempts``, ``jobs``, ``minute``, ``hour``, ``day``, ``errors``, ``workers``, ``backlog`` (with the
running ``waiting``), ``bronze_attempts``, ``gaps``. Each shows the files of the newest commit, no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from windlass.errors import ConfigError
from windlass.pipeline import schemas
from windlass.pipeline.files import open_files
from windlass.pipeline.histogram import register_duckdb
from windlass.pipeline.lake import Lake

if TYPE_CHECKING:
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
}
#: The backlog is a running sum, so it is a view of a view.
_BACKLOG = """
SELECT *, sum(ready - departed) OVER (PARTITION BY queue ORDER BY window_start) AS waiting
FROM backlog_changes
"""


class Answer(NamedTuple):
    """Column names and rows."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def query(root: str, sql: str, limit: int = 10_000) -> Answer:
    """Run one query in DuckDB; at most ``limit`` rows."""
    import duckdb

    with connect(root) as connection:
        try:
            result = connection.execute(sql)
        except duckdb.Error as exc:
            raise ConfigError("sql", f"a query over {', '.join([*VIEWS, 'backlog'])} ({exc})") from exc
        columns = [column[0] for column in result.description or []]
        return Answer(columns, result.fetchmany(limit))


def connect(root: str) -> DuckDBPyConnection:
    """A DuckDB connection with the lake's tables as views. Needs the ``duckdb`` package."""
    try:
        import duckdb
    except ImportError as exc:
        raise ConfigError(
            "sql", "run with duckdb installed: pip install duckdb, or use --engine spark"
        ) from exc
    lake = Lake(open_files(root))
    lake.load()
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    register_duckdb(connection)
    for name, table in VIEWS.items():
        paths = lake.paths(lake.state.of(table))
        if paths:
            listed = ", ".join(_quoted(path) for path in paths)
            source = f"read_parquet([{listed}], hive_partitioning = true, union_by_name = true)"
        else:
            connection.register(f"empty_{name}", table.arrow.empty_table())
            source = f"empty_{name}"
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {source}")
    connection.execute(f"CREATE VIEW backlog AS {_BACKLOG}")
    return connection


def register_views(spark: SparkSession, lake: Lake) -> None:
    """The same views in a Spark session."""
    from windlass.pipeline.tables import read_files

    for name, table in VIEWS.items():
        paths = lake.paths(lake.state.of(table))
        frame = (
            read_files(spark, table, lake.root, paths) if paths else spark.createDataFrame([], table.spark)
        )
        frame.createOrReplaceTempView(name)
    spark.sql(_BACKLOG).createOrReplaceTempView("backlog")


def query_spark(spark: SparkSession, root: str, sql: str, limit: int = 10_000) -> Answer:
    """Run one query in Spark; at most ``limit`` rows."""
    lake = Lake(open_files(root, spark))
    lake.load()
    register_views(spark, lake)
    frame = spark.sql(sql).limit(limit)
    return Answer(frame.columns, [tuple(row) for row in frame.collect()])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
