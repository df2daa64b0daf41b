"""``windlass pipeline``: the history of a store as tables on Spark, and what can be done with them."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass.backend.urls import DEFAULT_URL
from windlass.cli.output import Column, Out
from windlass.cli.store import carry_out, examples_epilog, url_option
from windlass.cli.values import DURATION
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.masks import DEFAULT_MASK

if TYPE_CHECKING:
    from windlass.pipeline.batch import BatchResult
    from windlass.pipeline.run import Pipeline
    from windlass.pipeline.session import SessionOptions

Work = Callable[..., int]

lake_option = click.option(
    "--lake",
    metavar="PLACE",
    required=True,
    envvar="WINDLASS_LAKE",
    show_envvar=True,
    help="The folder of the lake, or a URL such as s3://bucket/lake.",
)
source_option = click.option(
    "--source", default="default", show_default=True, help="Name of this store within the lake."
)
master_option = click.option(
    "--master", metavar="M", help="Where Spark runs, such as spark://host:7077.  [default: local[*]]"
)
conf_option = click.option(
    "--conf", "-c", multiple=True, metavar="NAME=VALUE", help="A Spark setting (repeatable)."
)


def payload_options(work: Work) -> Work:
    """What is kept of arguments and results."""
    size = click.option(
        "--payload-bytes",
        type=click.IntRange(1),
        default=10_000,
        show_default=True,
        help="With --payloads: longer texts are left out.",
    )
    masks = click.option(
        "--mask",
        multiple=True,
        metavar="FIELD",
        help="With --payloads: another field whose values are hidden (repeatable).",
    )
    asked = click.option("--payloads", is_flag=True, help="Keep arguments and results of jobs as JSON text.")
    return asked(size(masks(work)))


@click.group("pipeline", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Copy every finished attempt into a lake of Delta tables, and query it.

    'run' fills the lake; 'report', 'sql' and 'replay' read it without a JVM. Needs
    pip install 'windlass[spark]' and, for run and backfill, Java 17.
    """


def pipeline_command(name: str, *, examples: str) -> Callable[[Work], click.Command]:
    """A command of the group: ``--json`` and ``--debug``, errors as one line and an exit code."""

    def decorate(work: Work) -> click.Command:
        @functools.wraps(work)
        def callback(as_json: bool, debug: bool, **values: Any) -> None:
            out = Out(as_json=as_json, debug=debug)
            click.get_current_context().exit(carry_out(lambda: work(out, **values), out))

        wrapped: Any = callback
        wrapped = click.option("--debug", is_flag=True, help="Show tracebacks of errors.")(wrapped)
        wrapped = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(wrapped)
        made: click.Command = command.command(name, epilog=examples_epilog(examples))(wrapped)
        return made

    return decorate


# --- filling ----------------------------------------------------------------------------------------------


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
    """A pipeline with a Spark session of its own."""
    from windlass.pipeline.run import Pipeline, RunOptions
    from windlass.pipeline.session import session

    options = RunOptions(url=url or DEFAULT_URL, mask=(*DEFAULT_MASK, *mask), **values)
    with _starting(out), session(_session_options(master, conf)) as spark:
        pipeline = Pipeline(spark, options)
        pipeline.open()
        yield pipeline


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
""",
)
@lake_option
@master_option
@conf_option
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
) -> int:
    """Rebuild silver and gold from bronze, day by day."""
    from windlass.pipeline.backfill import bronze_dates, rebuild
    from windlass.pipeline.session import session

    with _starting(out), session(_session_options(master, conf)) as spark:
        opened = _open_lake(lake, spark)
        first = since.date() if since else None
        last = until.date() if until else None
        with out.progress("working out", len(bronze_dates(opened, first, last))) as advance:
            days = rebuild(spark, opened, first, last, lambda day: advance(1))
    out.done(f"{len(days)} days worked out again.", {"days": days})
    return 0


@pipeline_command("compact", examples="windlass pipeline compact --lake lake")
@lake_option
def compact(out: Out, *, lake: str) -> int:
    """Merge the small files of past batches. A run may continue at the same time."""
    from windlass.pipeline.compact import compact as join_files
    from windlass.pipeline.compact import small_groups
    from windlass.pipeline.lake import Lake

    opened = Lake(lake).open()
    with out.progress("joining files", len(list(small_groups(opened)))) as advance:
        gone = join_files(opened, lambda table: advance(1))
    out.done(f"{gone:,} files fewer.", {"files_fewer": gone})
    return 0


@pipeline_command(
    "prune",
    examples="""
windlass pipeline prune --lake lake                      bronze 30 days, silver 400, gold 5 years
windlass pipeline prune --lake lake --bronze-days 7 --dry-run
""",
)
@lake_option
@click.option("--bronze-days", type=click.IntRange(1), default=30, show_default=True)
@click.option("--silver-days", type=click.IntRange(1), default=400, show_default=True)
@click.option("--gold-days", type=click.IntRange(1), default=5 * 366, show_default=True)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def prune(out: Out, *, lake: str, dry_run: bool, **days: int) -> int:
    """Delete days that are past their retention. 'vacuum' deletes their files."""
    from windlass.pipeline.compact import Retention, expired
    from windlass.pipeline.compact import prune as drop_old
    from windlass.pipeline.lake import Lake

    retention = Retention(**days)
    today = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC).date()
    opened = Lake(lake).open()
    if dry_run:
        gone = [entry for entries in expired(opened, retention, today).values() for entry in entries]
    else:
        gone = drop_old(opened, retention, today)
    rows = sum(entry.rows for entry in gone)
    verb = "would go" if dry_run else "gone"
    out.done(f"{len(gone):,} files with {rows:,} rows {verb}.", {"files": len(gone), "rows": rows})
    return 0


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
    "vacuum",
    examples="""
windlass pipeline vacuum --lake lake                     files that no version of the last 7 days needs
windlass pipeline vacuum --lake lake --hours 0           all old versions, while no run continues
""",
)
@lake_option
@click.option(
    "--hours",
    type=click.IntRange(0),
    default=7 * 24,
    show_default=True,
    help="Keep what was replaced within this time. Below the length of a batch, stop all runs first.",
)
def vacuum(out: Out, *, lake: str, hours: int) -> int:
    """Delete files of old versions and of killed tasks."""
    from windlass.pipeline.compact import vacuum as sweep
    from windlass.pipeline.lake import Lake

    gone = sweep(Lake(lake).open(), hours)
    out.done(f"{gone:,} files deleted.", {"files": gone})
    return 0


@pipeline_command(
    "erase",
    examples="""
windlass pipeline erase --lake lake --where "job_id like 'customer-42-%'" --dry-run
windlass pipeline erase --lake lake --where "list_contains(tags, 'customer-42')"
windlass pipeline vacuum --lake lake --hours 0           and from older versions of the tables
""",
)
@lake_option
@click.option(
    "--where", required=True, metavar="SQL", help="A condition on the columns of 'jobs', and on args."
)
@click.option("--dry-run", is_flag=True, help="Only say how many jobs would go.")
def erase(out: Out, *, lake: str, where: str, dry_run: bool) -> int:
    """Remove jobs and their attempts from every table, for good. Counts in gold stay."""
    from windlass.pipeline.erase import erase as remove_rows
    from windlass.pipeline.erase import select_jobs
    from windlass.pipeline.lake import Lake

    opened = Lake(lake).open()
    if dry_run:
        count = select_jobs(opened.level(), where).num_rows
        out.done(f"{count:,} jobs would go.", {"jobs": count})
        return 0
    gone = remove_rows(opened, where)
    out.done(f"{gone.jobs:,} jobs with {gone.attempts:,} attempts are gone.", vars(gone))
    out.note("older versions of the tables hold them until 'windlass pipeline vacuum'")
    return 0


@pipeline_command(
    "migrate",
    examples="windlass pipeline migrate --from lake --lake s3://bucket/lake",
)
@click.option(
    "--from", "old", metavar="DIR", required=True, help="A lake of the first format. It is only read."
)
@lake_option
@master_option
@conf_option
def migrate(out: Out, *, old: str, lake: str, master: str | None, conf: tuple[str, ...]) -> int:
    """Convert a lake of the first format to Delta tables, in a new place."""
    from windlass.pipeline.lake import Lake
    from windlass.pipeline.migrate import OldLake, steps
    from windlass.pipeline.migrate import migrate as carry_over
    from windlass.pipeline.session import session

    found = OldLake.load(old)
    with out.progress("carrying over", steps()) as advance:
        rows = carry_over(
            found, Lake(lake), lambda: session(_session_options(master, conf)), lambda table: advance(1)
        )
    out.done(f"{rows:,} rows are in {lake}; point 'run' at it from now on.", {"rows": rows})
    return 0


# --- reading ----------------------------------------------------------------------------------------------


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
    from windlass.pipeline.report import NUMBERS, build_report, show_time, status_lines, tables, to_html

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
    if html is not None:
        out.note(f"{html} has the charts")
    return 0


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
        from windlass.pipeline.session import session

        with _starting(out), session(_session_options(master, conf)) as spark:
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
    from windlass.pipeline.store import settled_url

    store = settled_url(url or DEFAULT_URL)
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
    return 0


@pipeline_command("package", examples="windlass pipeline package --to build/")
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), default=Path(), show_default=True)
def package(out: Out, *, to: Path) -> int:
    """Write windlass.zip, which spark-submit and executors take as --py-files."""
    from windlass.pipeline.session import package_zip

    to.mkdir(parents=True, exist_ok=True)
    path = package_zip(to)
    out.done(f"{path}: spark-submit --py-files {path} ...", {"path": str(path)})
    return 0


# --- shared -----------------------------------------------------------------------------------------------


def _session_options(master: str | None, conf: tuple[str, ...]) -> SessionOptions:
    from windlass.pipeline.session import SessionOptions

    pairs = {}
    for item in conf:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.BadParameter("must be NAME=VALUE", param_hint="'--conf'")
        pairs[name] = value
    return SessionOptions(master=master, conf=pairs)


def _open_lake(lake: str, spark: Any) -> Any:
    """A lake that is there, with every batch in all tables."""
    from windlass.pipeline.batch import finish_batches
    from windlass.pipeline.lake import Lake

    opened = Lake(lake).open()
    opened.create()
    finish_batches(spark, opened)
    return opened


def _starting(out: Out) -> Any:
    """Say that a JVM takes its time."""
    import contextlib

    out.note("starting Spark ...")
    return contextlib.nullcontext()
