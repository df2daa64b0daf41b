"""``windlass pipeline status``, ``report``, ``sql`` and ``replay``: the commands that read a lake."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli.output import Column, Out
from windlass.cli.pipeline.common import (
    conf_option,
    existing_store,
    lake_option,
    master_option,
    pipeline_command,
    source_option,
    spark_session,
)
from windlass.cli.store_commands import url_option
from windlass.cli.values import DURATION
from windlass.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from windlass.pipeline.report import LakeReport


@pipeline_command("status", examples="windlass pipeline status --lake lake")
@lake_option
def status(out: Out, *, lake: str) -> int:
    """Show how fresh the lake is, what it holds, and why a run stopped last."""
    from windlass.pipeline.lake import Lake
    from windlass.pipeline.report import status_lines
    from windlass.pipeline.status import lake_status

    found = lake_status(Lake(lake).open())
    if out.as_json:
        out.document(asdict(found))
        return 0
    for line in status_lines(found):
        out.text(line)
    columns = [Column("TABLE"), Column("ROWS", right=True), Column("BYTES", right=True)]
    out.table(columns, [[path, f"{rows:,}", f"{found.bytes[path]:,}"] for path, rows in found.rows.items()])
    return 0


@pipeline_command(
    "report",
    examples="""
windlass pipeline report --lake lake
windlass pipeline report --lake lake --last 7d --html report.html
""",
)
@lake_option
@click.option("--last", type=DURATION, help="Only the last period, such as 24h or 7d.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with charts."
)
def report(out: Out, *, lake: str, last: float | None, html: Path | None) -> int:
    """Show throughput, run and waiting times, failures and errors."""
    from windlass.pipeline.gold import Gold
    from windlass.pipeline.report import build_report, to_html

    now_ms = SYSTEM_CLOCK.now_ms()
    since = None if last is None else now_ms - round(last * 1000)
    built = build_report(Gold(lake), since, None if last is None else now_ms)
    if html is not None:
        html.write_text(to_html(built), encoding="utf-8")
    if out.as_json:
        figures = {
            "total": built.total,
            "erased": built.erased,
            "tasks": built.by_task,
            "errors": built.errors,
            "alive": built.alive,
            "lake": asdict(built.status),
        }
        out.document(figures)
        return 0
    _show_report(out, built)
    if html is not None:
        out.note(f"{html} has the charts")
    return 0


def _show_report(out: Out, built: LakeReport) -> None:
    from windlass.pipeline.report import NUMBERS, show_time, status_lines, tables

    if built.is_empty:
        out.text("No attempts in this period.")
    else:
        out.text(f"{show_time(built.since_ms)} to {show_time(built.until_ms)} UTC")
    for title, head, rows in tables(built):
        if rows:
            out.text()
            columns = [Column(name, right=name in NUMBERS) for name in head]
            out.text(title, "bold")
            out.table(columns, rows)
    out.text()
    out.text("Pipeline", "bold")
    for line in status_lines(built.status):
        out.text(line)
    if built.erased:
        out.note(f"{built.erased:,} of these attempts were erased: counted above, and in no other table")


@pipeline_command(
    "sql",
    examples="""
windlass pipeline sql --lake lake "select task, sum(attempts), max(duration_p99_ms) from day group by task"
windlass pipeline sql --lake lake "select * from errors order by occurrences desc limit 10"
windlass pipeline sql --lake lake --engine spark "select count(*) from attempts"
""",
)
@lake_option
@master_option
@conf_option
@click.argument("query")
@click.option("--engine", type=click.Choice(["duckdb", "spark"]), default="duckdb", show_default=True)
@click.option("--limit", type=click.IntRange(1), default=1_000, show_default=True)
def sql(
    out: Out, *, lake: str, master: str | None, conf: tuple[str, ...], query: str, engine: str, limit: int
) -> int:
    """Query the lake: attempts, jobs, minute, hour, day, errors, workers, backlog, gaps, erased."""
    from windlass.pipeline import sqlquery

    if engine == "duckdb":
        answer = sqlquery.query(lake, query, limit)
    else:
        with spark_session(out, master, conf) as spark:
            answer = sqlquery.query_spark(spark, lake, query, limit)
    if out.as_json:
        out.document([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
        return 0
    out.table(
        [Column(name) for name in answer.columns],
        [["" if cell is None else str(cell) for cell in row] for row in answer.rows],
    )
    if len(answer.rows) == limit:
        out.note(f"the first {limit:,} rows; --limit shows more")
    return 0


@pipeline_command(
    "replay",
    examples="""
windlass pipeline replay --lake lake --where "task = 'charge' and error_class = 'Timeout'" --dry-run
windlass pipeline replay --lake lake --where "error_message like '%timeout%' and args.customer = 42"
windlass pipeline replay --lake lake --where "queue = 'pay' and date >= current_date - 7"
""",
)
@url_option
@lake_option
@source_option
@click.option(
    "--where", required=True, metavar="SQL", help="A condition on the columns of 'jobs', and on args."
)
@click.option("--dry-run", is_flag=True, help="Only say what would run again.")
def replay(out: Out, *, url: str | None, lake: str, source: str, where: str, dry_run: bool) -> int:
    """Run failed jobs again, chosen by SQL; reports which of them the store has already pruned."""
    from windlass.pipeline.replay import replay as run_again
    from windlass.pipeline.replay import select_failed
    from windlass.pipeline.store_requests import absolute_url

    store = absolute_url(existing_store(url))
    chosen = select_failed(lake, where, source, store)
    with out.progress("retrying", len(chosen)) as advance:
        result = run_again(store, chosen, dry_run=dry_run, progress=advance)
    counts = {name: len(jobs) for name, jobs in vars(result).items()}
    verb = "would run" if dry_run else "run"
    out.done(
        f"{len(chosen):,} failed jobs chosen: {counts['retried']:,} {verb} again, {counts['pruned']:,} are "
        f"pruned, {counts['changed']:,} are not failed any more.",
        {"chosen": len(chosen), **counts, "pruned_ids": [job.job_id for job in result.pruned]},
    )
    if chosen and counts["pruned"] == len(chosen):
        out.note(f"The store has none of these jobs: is --url the store of source {source!r}?")
    return 0
