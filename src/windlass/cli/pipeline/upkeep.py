"""``windlass pipeline compact``, ``prune``, ``vacuum``, ``erase``, ``migrate``, ``package``: maintenance."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from windlass.cli.output import Out
from windlass.cli.pipeline.common import (
    conf_option,
    lake_option,
    master_option,
    pipeline_command,
    session_options,
)
from windlass.core.clock import SYSTEM_CLOCK


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
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
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
@click.option("--dry-run", is_flag=True, help="Only show how many jobs would be erased.")
def erase(out: Out, *, lake: str, where: str, dry_run: bool) -> int:
    """Remove jobs and their attempts from every table, for good. Counts in gold stay."""
    from windlass.pipeline.erase import erase as remove_rows
    from windlass.pipeline.erase import select_jobs
    from windlass.pipeline.lake import Lake

    opened = Lake(lake).open()
    if dry_run:
        count = select_jobs(opened.level(), where).num_rows
        out.done(f"{count:,} jobs would be erased.", {"jobs": count})
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
            found, Lake(lake), lambda: session(session_options(master, conf)), lambda table: advance(1)
        )
    out.done(f"{rows:,} rows are in {lake}; point 'run' at it from now on.", {"rows": rows})
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
