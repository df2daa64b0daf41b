"""``windlass schedules``: lists, shows and changes recurring schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from windlass.cli.job_views import now_ms
from windlass.cli.output import Column, Out, styled
from windlass.cli.store_commands import StoreOptions, app_option, shown_url, store_command
from windlass.cli.values import show_age, show_count, show_time
from windlass.errors import ScheduleNotFoundError

if TYPE_CHECKING:
    from windlass.api.queue import Queue
    from windlass.schedules.verbs import ScheduleInfo

COLUMNS = [
    Column("queue", cut=True),
    Column("schedule", cut=True),
    Column("task", cut=True, drop=2),
    Column("rule"),
    Column("next", right=True),
    Column("last", right=True),
    Column("jobs", right=True),
    Column("source", cut=True, drop=1),
]
_CHANGES = ("pause", "resume", "run", "remove")


@dataclass(frozen=True, kw_only=True)
class SchedulesOptions(StoreOptions):
    """The action and the schedule (for ``list``: the queue, or all queues)."""

    action: str = "list"
    queue: str | None = None
    name: str | None = None


async def run(options: SchedulesOptions, out: Out) -> int:
    """List schedules, show one, or change one."""
    async with options.app() as app:
        if options.action == "list":
            infos = await app.schedules()
            return _list([info for info in infos if options.queue in (None, info.queue)], app.url, out)
        queue, name = app.queue(options.queue or ""), options.name or ""
        if options.action == "show":
            return _show(await _get(queue, name), out)
        return await _change(queue, name, options.action, out)


def _list(infos: list[ScheduleInfo], url: str, out: Out) -> int:
    if out.as_json:
        out.document([schedule_view(info) for info in infos])
    elif not infos:
        out.text(f"No schedules in {shown_url(url)}.")
    else:
        now = now_ms()
        out.table(COLUMNS, [_row(info, now) for info in infos])
    return 0


def _show(info: ScheduleInfo, out: Out) -> int:
    if out.as_json:
        out.document(schedule_view(info))
        return 0
    for title, value in _facts(info):
        out.text(f"{title:>10}  {value}")
    return 0


async def _get(queue: Queue, name: str) -> ScheduleInfo:
    info = await queue.get_job_scheduler(name)
    if info is None:
        raise ScheduleNotFoundError(queue.name, name)
    return info


async def _change(queue: Queue, name: str, action: str, out: Out) -> int:
    title = f"{name} of {queue.name}"
    if action == "run":
        job = await queue.run_job_scheduler(name)
        out.done(f"Added job {job.id} of schedule {title}.", {"job_id": job.id})
        return 0
    if action == "remove":
        await _get(queue, name)
        await queue.remove_job_scheduler(name)
        out.done(f"Removed schedule {title}. Jobs that it made stay.", {"removed": name})
        return 0
    changes: dict[str, Callable[[str], Awaitable[None]]] = {
        "pause": queue.pause_job_scheduler,
        "resume": queue.resume_job_scheduler,
    }
    await changes[action](name)
    out.done(f"{action.capitalize()}d schedule {title}.", {f"{action}d": name})
    return 0


def schedule_view(info: ScheduleInfo) -> dict[str, Any]:
    """A schedule as a JSON value."""
    record = info.record
    return {
        "queue": info.queue,
        "name": info.name,
        "task": info.task,
        "data": info.data,
        "rule": msgspec.structs.asdict(record.rule),
        "end_ms": record.end_ms,
        "limit": record.limit,
        "missed": record.missed,
        "overlap": record.overlap,
        "source": record.source,
        "paused": record.paused,
        "next_ms": record.next_ms,
        "last_ms": record.last_ms,
        "last_job_id": record.last_job_id,
        "fired": record.fired,
        "skipped": record.skipped,
    }


def _row(info: ScheduleInfo, now: int) -> list[Any]:
    record = info.record
    coming: Any = "" if record.next_ms is None else f"in {show_age(max(record.next_ms - now, 0))}"
    if record.paused:
        coming = styled("paused", "yellow")
    last = "" if record.last_ms is None else show_age(now - record.last_ms)
    return [
        info.queue,
        info.name,
        info.task,
        rule_text(info),
        coming,
        last,
        show_count(info.fired),
        info.source,
    ]


def rule_text(info: ScheduleInfo) -> str:
    """A rule in a few words."""
    rule = info.record.rule
    if rule.every_ms is not None:
        return f"every {rule.every_ms / 1000:g} s"
    text = rule.cron or f"strategy {rule.strategy}"
    return text if rule.timezone == "UTC" else f"{text} ({rule.timezone})"


def _facts(info: ScheduleInfo) -> list[tuple[str, str]]:
    record = info.record
    bounds = [f"missed: {record.missed}", f"overlap: {record.overlap}"]
    bounds += [f"limit: {record.limit}"] if record.limit is not None else []
    bounds += [f"end: {show_time(record.end_ms)}"] if record.end_ms is not None else []
    facts = [
        ("schedule", f"{info.name} of queue {info.queue}{' (paused)' * info.paused}"),
        ("rule", f"{rule_text(info)}; {', '.join(bounds)}"),
        ("task", info.task),
        ("data", msgspec.json.encode(info.data).decode()),
        ("next", _when(info.next_run)),
        ("last", _when(info.last_run) + (f", job {info.last_job_id}" if info.last_job_id else "")),
        ("jobs", f"{info.fired:,} made, {info.skipped:,} slots left out"),
    ]
    return [*facts, ("source", info.source)] if info.source else facts


def _when(instant: datetime | None) -> str:
    return "never" if instant is None else show_time(round(instant.timestamp() * 1000))


@store_command(
    "schedules",
    run,
    examples="""
windlass schedules                                  all of them
windlass schedules show mail nightly-report
windlass schedules pause mail nightly-report
windlass schedules run mail nightly-report          now, besides its slots
windlass schedules --json | jq '.[] | {name, next_ms}'
""",
)
@click.argument(
    "action",
    type=click.Choice(["list", "show", *_CHANGES]),
    default="list",
    metavar="[list|show|pause|resume|run|remove]",
)
@click.argument("queue", required=False)
@click.argument("name", required=False)
@app_option
def command(**values: Any) -> SchedulesOptions:
    """List recurring schedules, or show, pause, resume, run or remove one.

    'next' is the time of the next job, 'last' the age of the last one, 'jobs' how many jobs its slots have
    added. A worker that starts adds the schedules of its code again: remove such a schedule from the code,
    or pause it.
    """
    if values["action"] != "list" and values["name"] is None:
        raise click.UsageError(f"Say which: windlass schedules {values['action']} QUEUE NAME")
    return SchedulesOptions(**values)
