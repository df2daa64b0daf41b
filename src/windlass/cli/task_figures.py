"""Figures per task and per day for ``windlass stats``, from the store's roll-ups."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from windlass.api.metrics import TaskStats, stats_of
from windlass.cli.output import Column, Out
from windlass.cli.values import show_count, show_span, sparkline
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.rollups import Step, total

if TYPE_CHECKING:
    from windlass.api.app import Windlass

TASK_COLUMNS = [
    Column("queue", cut=True),
    Column("task", cut=True),
    Column("runs", right=True),
    Column("retried", right=True, style="yellow"),
    Column("failed", right=True, style="red"),
    Column("success", right=True),
    Column("average", right=True),
    Column("p50", right=True, drop=3),
    Column("p95", right=True),
    Column("p99", right=True, drop=1),
    Column("wait p95", right=True, drop=2),
]
_DAY_S = 86_400


async def show_tasks(app: Windlass, seconds: float, out: Out) -> None:
    """Show every task's figures over the last ``seconds``."""
    found = await task_stats(app, seconds)
    if out.as_json:
        out.document([{"queue": queue, **asdict(stats)} for queue, stats in found])
    elif not found:
        out.text("No attempt ended in that time.")
    else:
        out.table(TASK_COLUMNS, [_task_row(queue, stats) for queue, stats in found])


async def task_stats(app: Windlass, seconds: float) -> list[tuple[str, TaskStats]]:
    """Queue and figures of every task that ran in the last ``seconds``, by queue and name."""
    step: Step = "minute" if seconds <= _DAY_S else "hour"
    start = SYSTEM_CLOCK.now_ms() / 1000 - seconds
    found = []
    for info in await app.queues():
        rows = await app.queue(info.name).get_rollups(step, start=start)
        for task in sorted({row.task for row in rows}):
            merged = total(row for row in rows if row.task == task)
            found.append((info.name, stats_of(merged, task)))
    return found


def _task_row(queue: str, stats: TaskStats) -> list[Any]:
    rate = "" if stats.success_rate is None else f"{stats.success_rate:.1%}"
    times = (stats.average_ms, stats.p50_ms, stats.p95_ms, stats.p99_ms, stats.wait_p95_ms)
    counts = (stats.total, stats.retried, stats.failed)
    return [queue, stats.name, *map(show_count, counts), rate, *map(show_span, times)]


async def show_days(app: Windlass, days: int, out: Out) -> None:
    """Show every queue's runs and failures per day."""
    found = {info.name: await app.queue(info.name).get_daily_totals(days) for info in await app.queues()}
    if out.as_json:
        out.document(
            [
                {"queue": name, "day": day.day.isoformat(), "processed": day.processed, "failed": day.failed}
                for name, totals in found.items()
                for day in totals
            ]
        )
        return
    columns = [Column("queue", cut=True), Column("today", right=True), Column("failed runs", right=True)]
    columns += [
        Column("in all", right=True),
        Column("failed runs", right=True),
        Column("per day", style="green"),
    ]
    rows = [
        [
            name,
            show_count(totals[-1].processed),
            show_count(totals[-1].failed),
            show_count(sum(day.processed for day in totals)),
            show_count(sum(day.failed for day in totals)),
            sparkline([float(day.processed) for day in totals]),
        ]
        for name, totals in found.items()
    ]
    out.table(columns, rows)
