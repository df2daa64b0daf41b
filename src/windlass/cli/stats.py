"""``windlass stats``: shows totals, and with ``--watch`` live rates."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from windlass.backend import requests as rq
from windlass.cli import task_figures
from windlass.cli.job_views import now_ms
from windlass.cli.output import Column, Out, make_table, styled
from windlass.cli.store_commands import StoreOptions, shown_url, store_command
from windlass.cli.values import DURATION, show_age, show_count, show_rate, show_time, sparkline
from windlass.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import RenderableType

    from windlass.api.app import Windlass
    from windlass.core.job import QueueInfo

#: Number of samples in a sparkline.
_BARS = 24
_RATES = ("enqueued", "completed", "failed", "retrying")
#: The columns of ``_now_cells``: a queue and its jobs at this moment.
_NOW_COLUMNS = (
    Column("queue", cut=True),
    Column("waiting", right=True, style="cyan"),
    Column("later", right=True),
    Column("active", right=True, style="bold green"),
    Column("oldest", right=True),
)


@dataclass(frozen=True, kw_only=True)
class StatsOptions(StoreOptions):
    """``watch``: sample every ``interval`` seconds, for ``seconds`` (None: until Ctrl-C).

    ``tasks``: figures per task of the last ``period`` seconds. ``days``: totals of this many days.
    """

    tasks: bool = False
    period: float = 3_600
    days: int | None = None
    watch: bool = False
    interval: float = 1
    seconds: float | None = None


@dataclass(slots=True)
class QueueStats:
    """One queue at one time. Rates are per second since the previous sample."""

    info: QueueInfo
    lifetime: dict[str, int]
    #: How long the longest waiting job has waited.
    latency_ms: int
    rates: dict[str, float] = field(default_factory=dict)

    def view(self) -> dict[str, Any]:
        """For programs."""
        return {
            "queue": self.info.name,
            "paused": self.info.paused,
            "counts": self.info.counts,
            "oldest_ready_ms": self.info.oldest_ready_ms,
            "latency_ms": self.latency_ms,
            "lifetime": self.lifetime,
            "rates": self.rates,
        }


@dataclass(slots=True)
class Sample:
    """The store at one time."""

    at_ms: int
    monotonic_ms: float
    queues: list[QueueStats]
    workers: int
    busy: int
    slots: int

    def view(self) -> dict[str, Any]:
        """For programs."""
        return {
            "at_ms": self.at_ms,
            "workers": self.workers,
            "busy": self.busy,
            "slots": self.slots,
            "utilisation": self.busy / self.slots if self.slots else None,
            "queues": [queue.view() for queue in self.queues],
        }


async def run(options: StatsOptions, out: Out) -> int:
    """Show the figures once, or until interrupted."""
    async with options.app() as app:
        if options.tasks:
            await task_figures.show_tasks(app, options.period, out)
            return 0
        if options.days is not None:
            await task_figures.show_days(app, options.days, out)
            return 0
        if not options.watch:
            sample = await take(app, None)
            if out.as_json:
                out.document(sample.view())
            else:
                _print(sample, app.url, out)
            return 0
        with suppress(asyncio.CancelledError):  # Ctrl-C ends watching
            if out.as_json or not out.is_terminal:
                await _stream(app, options, out)
            else:
                await _watch(app, options, out)
    return 0


async def take(app: Windlass, before: Sample | None) -> Sample:
    """Read the figures from the store."""
    infos = await app.queues()
    lifetime: dict[str, dict[str, int]] = {}
    for row in await app.store.execute(rq.ReadCounters()):
        totals = lifetime.setdefault(row.queue, {})
        totals[row.outcome] = totals.get(row.outcome, 0) + row.total
    workers, at_ms = await app.workers(), now_ms()
    sample = Sample(
        at_ms=at_ms,
        monotonic_ms=SYSTEM_CLOCK.monotonic_ms(),
        queues=[
            QueueStats(info, lifetime.get(info.name, {}), max(at_ms - (info.oldest_ready_ms or at_ms), 0))
            for info in infos
        ],
        workers=len(workers),
        busy=sum(worker.busy for worker in workers),
        slots=sum(worker.concurrency for worker in workers),
    )
    if before is not None:
        add_rates(sample, before)
    return sample


def add_rates(sample: Sample, before: Sample) -> None:
    """Compute rates per second from the growth of the lifetime counters."""
    seconds = max((sample.monotonic_ms - before.monotonic_ms) / 1000, 0.001)
    known = {queue.info.name: queue.lifetime for queue in before.queues}
    for queue in sample.queues:
        old = known.get(queue.info.name, {})
        queue.rates = {
            name: round(max(queue.lifetime.get(name, 0) - old.get(name, 0), 0) / seconds, 3)
            for name in _RATES
        }


async def _samples(app: Windlass, options: StatsOptions) -> AsyncIterator[Sample]:
    """A sample per interval, the first at once, until the time is up."""
    start = SYSTEM_CLOCK.monotonic_ms()
    sample: Sample | None = None
    turn = 0
    while True:
        sample = await take(app, sample)
        yield sample
        turn += 1
        due_ms = start + turn * options.interval * 1000
        if options.seconds is not None and due_ms - start > options.seconds * 1000:
            return
        await asyncio.sleep(max(due_ms - SYSTEM_CLOCK.monotonic_ms(), 0) / 1000)


async def _stream(app: Windlass, options: StatsOptions, out: Out) -> None:
    async for sample in _samples(app, options):
        if out.as_json:
            out.line(sample.view())
        else:
            _print(sample, app.url, out)


async def _watch(app: Windlass, options: StatsOptions, out: Out) -> None:
    from rich.live import Live

    trails: dict[str, deque[float]] = {}
    with Live(console=out.console, auto_refresh=False, screen=options.seconds is None) as live:
        async for sample in _samples(app, options):
            for queue in sample.queues:
                trail = trails.setdefault(queue.info.name, deque([0.0] * _BARS, maxlen=_BARS))
                if queue.rates:
                    trail.append(queue.rates["completed"])
            live.update(_picture(sample, trails, app.url, out.console.width), refresh=True)


def _print(sample: Sample, url: str, out: Out) -> None:
    if not sample.queues:
        out.text(f"No queues yet in {shown_url(url)}.")
        return
    out.console.print(_totals_table(sample, out.console.width))
    out.text(_workers_line(sample), "dim")


def _picture(sample: Sample, trails: dict[str, deque[float]], url: str, width: int) -> RenderableType:
    from rich.console import Group

    head = styled(f"{shown_url(url)}  {show_time(sample.at_ms, with_date=False)[:-4]}", "dim")
    table = _rates_table(sample, trails, width)
    return Group(head, table, styled(_workers_line(sample), "dim"))


def _workers_line(sample: Sample) -> str:
    if not sample.workers:
        return "no worker is alive"
    return f"{sample.workers} worker{'s' * (sample.workers != 1)}, {sample.busy} of {sample.slots} slots busy"


def _totals_table(sample: Sample, width: int) -> RenderableType:
    columns = [
        *_NOW_COLUMNS,
        Column("added", right=True),
        Column("completed", right=True, style="green"),
        Column("retried", right=True, style="yellow"),
        Column("failed", right=True, style="red"),
    ]
    rows = []
    for queue in sample.queues:
        total = queue.lifetime
        rows.append(
            [
                *_now_cells(queue, sample.at_ms),
                show_count(total.get("enqueued", 0)),
                show_count(total.get("completed", 0)),
                show_count(total.get("retrying", 0)),
                show_count(total.get("failed", 0)),
            ]
        )
    return make_table(columns, rows, width)


def _rates_table(sample: Sample, trails: dict[str, deque[float]], width: int) -> RenderableType:
    columns = [
        *_NOW_COLUMNS,
        Column("added/s", right=True),
        Column("done/s", right=True, style="green"),
        Column("retry/s", right=True, style="yellow", drop=1),
        Column("fail/s", right=True, style="red"),
        Column("done", style="green"),
        Column("in all", right=True, drop=2),
    ]
    bars = _BARS if width >= 96 else 8
    rows = []
    for queue in sample.queues:
        rates = [
            show_rate(queue.rates.get(name, 0)) for name in ("enqueued", "completed", "retrying", "failed")
        ]
        trail = list(trails[queue.info.name])[-bars:]
        done = show_count(queue.lifetime.get("completed", 0))
        rows.append([*_now_cells(queue, sample.at_ms), *rates, sparkline(trail), done])
    return make_table(columns, rows, width)


def _now_cells(queue: QueueStats, now: int) -> list[Any]:
    info = queue.info
    counts = info.counts
    name = styled(info.name, "")
    if info.paused:
        name.append(" paused", style="yellow")
    later = sum(counts.get(state, 0) for state in ("scheduled", "retrying", "blocked", "parked"))
    oldest = None if info.oldest_ready_ms is None else now - info.oldest_ready_ms
    return [
        name,
        show_count(counts.get("waiting", 0)),
        show_count(later),
        show_count(counts.get("active", 0)),
        show_age(oldest),
    ]


@store_command(
    "stats",
    run,
    examples="""
windlass stats
windlass stats --tasks --period 24h                 per task: runs, success, percentiles
windlass stats --tasks --period 7d                  the failures of a week, by task
windlass stats --days 30                            per day
windlass stats --watch                              live, until Ctrl-C
windlass stats --watch --interval 5s --for 1m
windlass stats --json | jq '.queues[] | {queue, rates, lifetime}'
""",
)
@click.option("--tasks", "-t", is_flag=True, help="Figures per task: runs, success, run and wait times.")
@click.option(
    "--period", type=DURATION, default="1h", show_default=True, help="With --tasks: the period to summarise."
)
@click.option("--days", type=click.IntRange(1, 1_830), metavar="N", help="Totals of the last N days.")
@click.option("--watch", "-w", is_flag=True, help="Keep updating, with rates per second.")
@click.option(
    "--interval",
    "-i",
    type=DURATION,
    default="1s",
    show_default=True,
    help="With --watch: time between samples.",
)
@click.option("--for", "seconds", type=DURATION, help="With --watch: stop after this long.")
def command(**values: Any) -> StatsOptions:
    """Show the waiting and running jobs of each queue, and its lifetime totals.

    'later' counts jobs that are due in the future. Totals never decrease: added, completed, retried and
    failed count all attempts since the queue was created, even when their records are gone. A run that
    fails counts as retried if the job runs again, else as failed. With --watch and --json, each sample is
    one line.
    """
    if values["tasks"] + values["watch"] + (values["days"] is not None) > 1:
        raise click.UsageError("Choose one of --tasks, --days and --watch.")
    if values["period"] < 60:
        raise click.BadParameter("must be at least 1m", param_hint="'--period'")
    if values["interval"] < 0.1:
        raise click.BadParameter("must be at least 100ms", param_hint="'--interval'")
    return StatsOptions(**values)
