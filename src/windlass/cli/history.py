"""``windlass history``: shows finished attempts with their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from windlass.backend import requests as rq
from windlass.cli.output import STATE_STYLES, Column, Out, styled
from windlass.cli.store_commands import StoreOptions, find_queue, store_command
from windlass.cli.values import show_span, show_time
from windlass.errors import HistoryTrimmedError

if TYPE_CHECKING:
    from windlass.api.queue import Queue
    from windlass.core.job import AttemptRecord
    from windlass.core.queue_time import QueueTime

COLUMNS = [
    Column("finished"),
    Column("task", cut=True),
    Column("job", drop=2),
    Column("run", right=True),
    Column("outcome"),
    Column("waited", right=True),
    Column("took", right=True),
    Column("error", cut=True, drop=1),
    Column("worker", cut=True, drop=3),
]


@dataclass(frozen=True, kw_only=True)
class HistoryOptions(StoreOptions):
    """Records of ``queue`` after position ``after`` (None: the last ``limit``)."""

    queue: str
    after: int | None = None
    limit: int = 30


async def run(options: HistoryOptions, out: Out) -> int:
    """Print attempts, oldest first."""
    async with options.app() as app:
        queue = await find_queue(app, options.queue)
        after = options.after if options.after is not None else await _start(queue, options.limit)
        page = await queue.store.execute(rq.ReadHistory(queue=queue.name, after=after, limit=options.limit))
    if out.as_json:
        records = [_view(record) for record in page.records]
        out.document({"records": records, "last": page.last, "newest": page.newest, "oldest": page.oldest})
        return 0
    if not page.records:
        out.text(f"No finished attempts in {options.queue}.")
        return 0
    out.table(COLUMNS, [_row(record) for record in page.records])
    if page.last < page.newest:
        out.note(f"{page.newest - page.last:,} more: add --after {page.last}")
    return 0


async def _start(queue: Queue, limit: int) -> int:
    """The position before the last ``limit`` records."""
    try:
        newest = (await queue.store.execute(rq.ReadHistory(queue=queue.name, limit=1))).newest
        oldest = 1
    except HistoryTrimmedError as exc:
        oldest = exc.oldest
        request = rq.ReadHistory(queue=queue.name, after=oldest - 1, limit=1)
        newest = (await queue.store.execute(request)).newest
    return max(newest - limit, oldest - 1)


def _view(record: AttemptRecord) -> dict[str, Any]:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return {**fields, "queue_time": _waits(record.queue_time)}


def _waits(time: QueueTime | None) -> dict[str, int] | None:
    """Queue time by cause. Stores keep it as an array; here the values have names."""
    if time is None:
        return None
    return {name: getattr(time, name) for name in time.__struct_fields__ if name != "until_ms"}


def _row(record: AttemptRecord) -> list[Any]:
    return [
        styled(show_time(record.finished_ms, with_date=False), "dim"),
        record.task,
        record.job_id,
        str(record.attempt) if record.attempt else "-",
        styled(record.outcome.value, STATE_STYLES.get(record.outcome.value, "yellow")),
        show_span(record.wait_ms),
        show_span(record.duration_ms),
        styled(record.error_class or "", "red"),
        record.worker or "",
    ]


@store_command(
    "history",
    run,
    examples="""
windlass history mail                               the last 30 attempts
windlass history mail --after 1200 --limit 1000 --json
windlass history mail --json | jq '[.records[].duration_ms] | add / length'
""",
)
@click.argument("queue")
@click.option("--after", type=click.IntRange(0), help="Only records after this position of the log.")
@click.option("--limit", "-l", type=click.IntRange(1, 1_000), default=30, show_default=True)
def command(**values: Any) -> HistoryOptions:
    """Show finished attempts of QUEUE: how long each waited and ran, and how it ended."""
    return HistoryOptions(**values)
