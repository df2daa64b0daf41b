"""``windlass jobs``: list, search and export."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.job_views import job_view, now_ms, runs, when_text
from windlass.cli.output import Column, Out, state_text, styled
from windlass.cli.store_commands import StoreOptions, app_option, find_queue, store_command
from windlass.cli.values import parse_pairs, show_age
from windlass.core.states import JobState
from windlass.errors import ConfigError
from windlass.jobs.exported import export_job

if TYPE_CHECKING:
    from windlass.api.app import Windlass
    from windlass.api.queue import Page
    from windlass.jobs.job import Job

STATES = click.Choice([state.value for state in JobState])
_PAGE = 1_000
#: Records of a queue that one page reads, at most, because a user waits for it.
_SCAN = 1_000_000


@dataclass(frozen=True, kw_only=True)
class JobsOptions(StoreOptions):
    """The search. ``queue`` None: all queues."""

    queue: str | None = None
    states: tuple[str, ...] = ()
    name: str | None = None
    tag: str | None = None
    error: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    search: str = ""
    limit: int = 20
    cursor: str | None = None
    export: bool = False


async def run(options: JobsOptions, out: Out) -> int:
    """List jobs, newest first."""
    async with options.app() as app:
        if options.export:
            return await _export(app, options, out)
        found: list[Job[Any]] = []
        cursor = options.cursor
        for name in await _queue_names(app, options):
            page = await _search(app, name, options, options.limit - len(found), options.cursor)
            found += page
            cursor = page.cursor
            if len(found) >= options.limit:
                break
    if options.queue is None:
        cursor = None  # a cursor is valid only for one queue
    if out.as_json:
        out.document({"jobs": [job_view(job) for job in found], "cursor": cursor})
    elif not found:
        out.text("No such jobs." if cursor is None else "None among those looked at.")
    else:
        _draw(found, options, out)
    if cursor is not None:
        out.note(f"More: add --cursor {cursor}")
    return 0


async def _queue_names(app: Windlass, options: JobsOptions) -> list[str]:
    if options.queue is not None:
        return [(await find_queue(app, options.queue)).name]
    return [info.name for info in await app.queues()]


async def _search(
    app: Windlass,
    queue: str,
    options: JobsOptions,
    limit: int,
    cursor: str | None,
    *,
    newest_first: bool = True,
) -> Page:
    return await app.queue(queue).search_jobs(
        name=options.name,
        state=options.states,
        data=options.data,
        tag=options.tag,
        error=options.error,
        query=options.search,
        cursor=cursor,
        limit=limit,
        scan=_SCAN,
        newest_first=newest_first,
    )


async def _export(app: Windlass, options: JobsOptions, out: Out) -> int:
    """Print all matches as JSON lines, oldest first, in the format that ``enqueue --file`` reads."""
    unreadable = 0
    for name in await _queue_names(app, options):
        async for job in _all(app, name, options):
            edges = await job.get_dependencies() if job.state is JobState.BLOCKED else []
            try:
                out.line(export_job(job.record, edges, app.codecs, app.clock.now_ms()))
            except (ValueError, TypeError, ConfigError):
                unreadable += 1
    if unreadable:
        out.note(f"{unreadable} jobs were left out: their stored arguments cannot be read (--app missing?).")
    return 1 if unreadable else 0


async def _all(app: Windlass, queue: str, options: JobsOptions) -> AsyncIterator[Job[Any]]:
    cursor = options.cursor
    while True:
        page = await _search(app, queue, options, _PAGE, cursor, newest_first=False)
        for job in page:
            yield job
        cursor = page.cursor
        if cursor is None:
            return


def _draw(found: list[Job[Any]], options: JobsOptions, out: Out) -> None:
    columns = [
        Column("id"),
        Column("queue", cut=True, drop=1),
        Column("task", cut=True),
        Column("state"),
        Column("runs", right=True),
        Column("added", right=True),
        Column("", drop=2),
        Column("last error", cut=True, drop=3),
    ]
    now = now_ms()
    out.table(columns, [_row(job, now, named=options.queue is None) for job in found])


def _row(job: Job[Any], now: int, *, named: bool) -> list[Any]:
    last = job.errors[-1] if job.errors else None
    error = f"{last.error_class}: {last.message}" if last else job.record.reason
    return [
        job.id,
        job.queue_name if named else "",
        job.name,
        state_text(job.state),
        f"{runs(job)} of {job.max_attempts}",
        show_age(now - job.enqueued_ms),
        styled(when_text(job, now), "dim"),
        styled(" ".join(error.split())[:200], "red" if last else "dim"),
    ]


@store_command(
    "jobs",
    run,
    examples="""
windlass jobs mail --state failed
windlass jobs mail --name 'send_*' --error SMTPError --limit 50
windlass jobs --state active                        all queues
windlass jobs mail --data to=ada@example.com --json
windlass jobs --search 'task:charge_* error:Payment* args.customer.id:42 finished:<1h'
windlass jobs mail --state failed --export > failed.jsonl
""",
)
@click.argument("queue", required=False)
@click.option("--state", "-s", "states", multiple=True, type=STATES, help="Only these states (repeatable).")
@click.option("--name", "-n", metavar="GLOB", help="Only tasks whose name matches (* and ?).")
@click.option("--tag", "-t", help="Only jobs with this tag.")
@click.option("--error", metavar="CLASS", help="Only jobs whose last error is of this class.")
@click.option("--data", "-d", multiple=True, metavar="KEY=VALUE", help="Only jobs with this argument.")
@click.option("--search", "-q", default="", metavar="QUERY", help="Only jobs that match a query (see below).")
@click.option("--limit", "-l", type=click.IntRange(1, 100_000), default=20, show_default=True)
@click.option("--cursor", help="Continue after an earlier page (needs QUEUE).")
@click.option(
    "--export",
    is_flag=True,
    help="All matches as JSON lines, oldest first, with every option: for 'windlass enqueue --file'.",
)
@app_option
def command(queue: str | None, data: tuple[str, ...], cursor: str | None, **values: Any) -> JobsOptions:
    """List the jobs of QUEUE, or of all queues, newest first.

    'runs' shows the runs so far and the maximum.

    A QUERY consists of terms such as task:charge_*, state:failed,retrying, error:Payment*, tag:vip,
    group:acme, worker:w1, args.customer.id:42, finished:<1h, due:<10m, took:>5s, and of words that appear
    anywhere in a job.

    --export writes the id, queue, arguments, all options and the past of each job: state, times, attempts,
    errors and result. 'windlass enqueue --file' adds the jobs as new ones, and finished jobs run again; with
    --restore it restores them as they were. Log lines, live output, schedules and limits are not exported:
    it is not a backup of the store.
    """
    if cursor is not None and queue is None:
        raise click.UsageError("--cursor is a place in one queue: name the queue too.")
    return JobsOptions(queue=queue, data=parse_pairs(data, "--data"), cursor=cursor, **values)
