"""``windlass pipeline run``, ``snapshot`` and ``backfill``: the commands that fill a lake, on Spark."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.output import Out
from windlass.cli.pipeline.common import (
    conf_option,
    existing_store,
    lake_option,
    master_option,
    payload_options,
    pipeline_command,
    source_option,
    spark_session,
)
from windlass.cli.store_commands import url_option
from windlass.cli.values import DURATION
from windlass.core.masks import DEFAULT_MASK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windlass.pipeline.backfill import StoredPayloads
    from windlass.pipeline.lake import Lake
    from windlass.pipeline.lake_batch import BatchResult
    from windlass.pipeline.run import Pipeline


@pipeline_command(
    "run",
    examples="""
windlass pipeline run --lake lake                        what is new, then stop
windlass pipeline run --lake lake --continuous --interval 30s
windlass pipeline run --lake /mnt/lake --master spark://host:7077
windlass pipeline run --lake lake --payloads --mask iban    also arguments and results
""",
)
@url_option
@lake_option
@source_option
@master_option
@conf_option
@click.option(
    "--once/--continuous", "once", default=True, help="Stop when everything is copied, or keep running."
)
@click.option(
    "--interval",
    type=DURATION,
    default="10s",
    show_default=True,
    help="With --continuous: time between runs.",
)
@click.option("--max-records", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option(
    "--on-gap",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="When unread records were trimmed: fail, or record the gap and continue.",
)
@click.option(
    "--snapshot/--no-snapshot",
    default=True,
    show_default=True,
    help="Once a day, also list all jobs of the store.",
)
@payload_options
def run(
    out: Out,
    *,
    url: str | None,
    once: bool,
    master: str | None,
    conf: tuple[str, ...],
    mask: tuple[str, ...],
    **values: Any,
) -> int:
    """Copy new records of a store's history into the lake."""
    with _opened(out, url, master, conf, mask, values) as pipeline:
        return _run_once(pipeline, out) if once else _run_on(pipeline, out)


@contextmanager
def _opened(
    out: Out,
    url: str | None,
    master: str | None,
    conf: tuple[str, ...],
    mask: tuple[str, ...],
    values: dict[str, Any],
) -> Iterator[Pipeline]:
    """A pipeline with its own Spark session."""
    _require_packages()
    from windlass.pipeline.run import Pipeline, RunOptions

    options = RunOptions(url=existing_store(url), mask=(*DEFAULT_MASK, *mask), **values)
    with spark_session(out, master, conf) as spark:
        pipeline = Pipeline(spark, options)
        pipeline.open()
        yield pipeline


def _require_packages() -> None:
    """Raise ``ConfigError`` if the packages are missing that the modules of the pipeline import."""
    from windlass.pipeline.session import require_packages

    require_packages()


def _run_once(pipeline: Pipeline, out: Out) -> int:
    results: list[BatchResult] = []
    bar: dict[str, Any] = {}

    def step(result: BatchResult) -> None:
        results.append(result)
        if "advance" not in bar:
            bar["context"] = out.progress("copying", result.records + result.behind)
            bar["advance"] = bar["context"].__enter__()
        bar["advance"](result.records)

    try:
        pipeline.run_once(step)
    finally:
        if bar:
            bar["context"].__exit__(None, None, None)
    attempts = sum(result.attempts for result in results)
    value = {"batches": len(results), "attempts": attempts, "batch": results[-1].number if results else None}
    batches = "1 batch" if len(results) == 1 else f"{len(results)} batches"
    out.done(f"{attempts:,} attempts in {batches}; the lake is up to date.", value)
    return 0


def _run_on(pipeline: Pipeline, out: Out) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def step(result: BatchResult) -> None:
        if out.as_json:
            out.line({"attempts": result.attempts, "behind": result.behind, "batch": result.number})
        else:
            out.text(f"{result.attempts:>10,} attempts copied, {result.behind:,} to go")

    pipeline.run_continuously(stop, step)
    return 0


@pipeline_command(
    "snapshot",
    examples="""
windlass pipeline snapshot --lake lake                   jobs of the store as they are now
windlass pipeline sql --lake lake "select state, count(*) from jobs where not final group by 1"
""",
)
@url_option
@lake_option
@source_option
@master_option
@conf_option
@payload_options
def snapshot(
    out: Out,
    *,
    url: str | None,
    master: str | None,
    conf: tuple[str, ...],
    mask: tuple[str, ...],
    **values: Any,
) -> int:
    """List all jobs of the store into the lake now; 'run' does so once a day."""
    with _opened(out, url, master, conf, mask, values) as pipeline:
        found = pipeline.take_snapshot()
    out.done(f"{found.jobs:,} jobs in the store, {found.fresh:,} of them new to the lake.", vars(found))
    return 0


@pipeline_command(
    "backfill",
    examples="""
windlass pipeline backfill --lake lake                          all of silver and gold from bronze
windlass pipeline backfill --lake lake --since 2026-01-01 --until 2026-01-31
windlass pipeline backfill --lake lake --payloads --url sqlite:///jobs.db    also arguments and results
""",
)
@url_option
@lake_option
@source_option
@master_option
@conf_option
@payload_options
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="First day (UTC).")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help="Last day (UTC).")
def backfill(
    out: Out,
    *,
    lake: str,
    master: str | None,
    conf: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    payloads: bool,
    **values: Any,
) -> int:
    """Rebuild silver and gold from bronze, day by day. The store is read for --payloads only."""
    _require_packages()
    from windlass.pipeline.backfill import bronze_dates, rebuild

    stored = _stored_payloads(**values) if payloads else None
    with spark_session(out, master, conf) as spark:
        opened = _open_lake(lake, spark)
        first = since.date() if since else None
        last = until.date() if until else None
        steps = 2 * len(bronze_dates(opened, first, last))
        with out.progress("working out", steps) as advance:
            days = rebuild(spark, opened, first, last, lambda day: advance(1), stored)
    out.done(f"{len(days)} days rebuilt.", {"days": days})
    return 0


def _stored_payloads(
    url: str | None, source: str, mask: tuple[str, ...], payload_bytes: int
) -> StoredPayloads:
    from windlass.pipeline.backfill import StoredPayloads
    from windlass.pipeline.payloads import Payloads
    from windlass.pipeline.store_requests import absolute_url

    kept = Payloads((*DEFAULT_MASK, *mask), payload_bytes)
    return StoredPayloads(absolute_url(existing_store(url)), source, kept)


def _open_lake(lake: str, spark: SparkSession) -> Lake:
    """Open an existing lake, after finishing batches that are not in all tables."""
    from windlass.pipeline.lake import Lake
    from windlass.pipeline.lake_batch import finish_batches

    opened = Lake(lake).open()
    opened.create()
    finish_batches(spark, opened)
    return opened
