"""A report of the lake for a period: figures for the terminal, and one HTML page with charts.

Reads gold and the jobs that are alive, without a JVM. The page loads nothing from the network: styles and
charts are inline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any

from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.text import many, printable, show_age
from windlass.pipeline import charts, schemas
from windlass.pipeline.gold import Gold, Row, add_up
from windlass.pipeline.lake import Lake
from windlass.pipeline.status import LakeStatus, lake_status
from windlass.pipeline.transforms.grains import GRAIN_MS

#: The maximum number of points in a chart. The grain follows from it and the length of the period.
_POINTS = 400
#: The maximum length of an error in a table.
_MESSAGE_CHARS = 100
_TOP = 12


@dataclass
class LakeReport:
    """The figures of a period."""

    lake: str
    since_ms: int
    until_ms: int
    grain: str
    total: Row
    by_task: list[Row]
    by_queue: list[Row]
    #: One row per window for all queues together. No window is left out.
    over_time: list[Row]
    #: By queue: one row per window.
    queues_over_time: dict[str, list[Row]]
    errors: list[Row]
    workers: list[Row]
    #: The current status of the lake.
    status: LakeStatus
    backlog: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    gaps: int = 0
    #: How many of the counted attempts were erased.
    erased: int = 0
    #: Jobs that were alive in the newest snapshot of their store, by source, queue and state.
    alive: list[Row] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.total.get("attempts")


def build_report(gold: Gold, since_ms: int | None, until_ms: int | None) -> LakeReport:
    """Build a report. Without bounds it covers everything that the lake holds."""
    days = gold.rollups("day")
    if days:
        first, last = days[0]["window_start"], days[-1]["window_start"] + GRAIN_MS["day"]
    else:
        first = last = since_ms or 0
    since = since_ms if since_ms is not None else first
    until = until_ms if until_ms is not None else last
    if since_ms is None and until_ms is None and days:
        since, until = _trimmed(gold, since, until)
    grain = _grain(until - since)
    rows = gold.rollups(grain, since, until)
    windows = list(range(since - since % GRAIN_MS[grain], until, GRAIN_MS[grain]))
    totals = add_up(rows, ())
    by_queue = {queue["queue"]: queue for queue in add_up(rows, ("queue",))}
    return LakeReport(
        lake=gold.lake.url,
        since_ms=since,
        until_ms=until,
        grain=grain,
        total=totals[0] if totals else {},
        by_task=_busiest(add_up(rows, ("queue", "task"))),
        by_queue=_busiest(by_queue.values()),
        over_time=_filled(add_up(rows, ("window_start",)), windows),
        queues_over_time={
            queue: _filled(add_up([r for r in rows if r["queue"] == queue], ("window_start",)), windows)
            for queue in by_queue
        },
        errors=_errors(gold.rows(schemas.GOLD_ERRORS, since, until)),
        workers=_workers(gold.rows(schemas.GOLD_WORKERS, since - since % GRAIN_MS["hour"], until)),
        status=lake_status(Lake(gold.lake.place).open()),
        backlog=_backlog(gold.rows(schemas.GOLD_BACKLOG, None, until), windows),
        gaps=sum(entry.rows for entry in gold.lake.entries(schemas.BRONZE_GAPS)),
        erased=gold.erased(since, until),
        alive=gold.alive(),
    )


def _trimmed(gold: Gold, since: int, until: int) -> tuple[int, int]:
    """The bounds of the lake without empty windows at both ends, in hours, or in minutes for a short span."""
    for grain in ("hour", "minute"):
        windows = [row["window_start"] for row in gold.rollups(grain, since, until)]
        if windows:
            since, until = windows[0], windows[-1] + GRAIN_MS[grain]
        if _grain(until - since) != "minute":
            break
    return since, until


def _grain(span_ms: int) -> str:
    for grain in ("minute", "hour"):
        if span_ms <= _POINTS * GRAIN_MS[grain]:
            return grain
    return "day"


def _busiest(rows: Any) -> list[Row]:
    return sorted(rows, key=lambda row: -row["attempts"])


def _filled(rows: Sequence[Row], windows: Sequence[int]) -> list[Row]:
    known = {row["window_start"]: row for row in rows}
    return [known.get(window, {"window_start": window}) for window in windows]


def _errors(rows: Sequence[Row]) -> list[Row]:
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = (row["queue"], row["task"], row["error_fingerprint"])
        seen = found.get(key)
        if seen is None:
            found[key] = dict(row)
            continue
        newest = row if row["last_ms"] >= seen["last_ms"] else seen
        found[key] = {
            **newest,
            "occurrences": seen["occurrences"] + row["occurrences"],
            "failed": seen["failed"] + row["failed"],
            "first_ms": min(seen["first_ms"], row["first_ms"]),
        }
    return sorted(found.values(), key=lambda row: -row["occurrences"])


def _workers(rows: Sequence[Row]) -> list[Row]:
    found: dict[str, Row] = {}
    for row in rows:
        seen = found.setdefault(row["worker"], {**row, "attempts": 0, "failed": 0, "busy_ms": 0})
        for name in ("attempts", "failed", "busy_ms"):
            seen[name] += row[name]
        seen["first_ms"] = min(seen["first_ms"], row["first_ms"])
        seen["last_ms"] = max(seen["last_ms"], row["last_ms"])
    for row in found.values():
        row["slots"] = row["busy_ms"] / max(row["last_ms"] - row["first_ms"], 1)
    return sorted(found.values(), key=lambda row: -row["busy_ms"])


def _backlog(rows: Sequence[Row], windows: Sequence[int]) -> dict[str, list[tuple[int, int]]]:
    """By queue: (window, jobs that waited at its end)."""
    changes: dict[str, dict[int, int]] = {}
    for row in rows:
        of_queue = changes.setdefault(row["queue"], {})
        of_queue[row["window_start"]] = of_queue.get(row["window_start"], 0) + row["ready"] - row["departed"]
    step = windows[1] - windows[0] if len(windows) > 1 else GRAIN_MS["minute"]
    found = {}
    for queue, of_queue in changes.items():
        waiting, points, left = 0, [], sorted(of_queue.items(), reverse=True)
        for window in windows:
            while left and left[-1][0] < window + step:
                waiting += left.pop()[1]
            points.append((window, waiting))
        found[queue] = points
    return found


# --- HTML -------------------------------------------------------------------------------------------------


def to_html(report: LakeReport) -> str:
    """The report as one self-contained page."""
    span = f"{show_time(report.since_ms)} to {show_time(report.until_ms)} UTC, by the {report.grain}"
    parts = [
        f"<header><h1>Windlass report</h1><p>{escape(span)}</p></header>",
        _tiles(report),
        *(_figure(title, note, svg) for title, note, svg in _charts(report)),
        _table("Tasks", _TASK_HEAD, [_task_cells(row) for row in report.by_task[:_TOP]]),
        _table("Queues", _QUEUE_HEAD, [_queue_cells(row) for row in report.by_queue[:_TOP]]),
        _table("Errors", _ERROR_HEAD, [_error_cells(row) for row in report.errors[:_TOP]]),
        _table("Workers", _WORKER_HEAD, [_worker_cells(row) for row in report.workers[:_TOP]]),
    ]
    if report.is_empty:
        parts = [parts[0], "<p>No attempts in this period.</p>"]
    alive = _table(_alive_title(report), _ALIVE_HEAD, _alive_cells(report))
    body = "\n".join([*parts, alive, _lake_section(report.status)])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Windlass report</title><style>{charts.STYLE}</style></head><body><main>{body}</main>"
        "</body></html>\n"
    )


def _lake_section(status: LakeStatus) -> str:
    """How recent the figures are, and the last activity of the pipeline."""
    items = "".join(f"<li>{escape(line)}</li>" for line in status_lines(status))
    return f"<h2>Pipeline</h2><ul>{items}</ul>"


def _charts(report: LakeReport) -> list[tuple[str, str, str]]:
    windows, step = [row["window_start"] for row in report.over_time], GRAIN_MS[report.grain]
    queues = sorted(
        report.queues_over_time,
        key=lambda name: -sum(r.get("attempts", 0) for r in report.queues_over_time[name]),
    )[:6]

    def times(measure: str) -> str:
        series = {
            n: [row.get(f"{measure}_{n}_ms") for row in report.over_time] for n in ("p50", "p95", "p99")
        }
        return charts.lines(windows, step, series, log=True, label=show_ms)

    def count(rows: Sequence[Row], *names: str) -> list[float | None]:
        return [float(sum(row.get(name, 0) for name in names)) for row in rows]

    per = f"attempts per {report.grain}"
    return [
        (
            "Throughput",
            f"{per}, by queue",
            charts.stacked(windows, step, {q: count(report.queues_over_time[q], "attempts") for q in queues}),
        ),
        (
            "Failures",
            f"{per} that did not end well",
            charts.stacked(
                windows,
                step,
                {
                    "retried": count(report.over_time, "retried"),
                    "failed": count(report.over_time, "failed", "expired"),
                    "stalled": count(report.over_time, "stalled"),
                },
                warm=True,
            ),
        ),
        (
            "Run time",
            "of an attempt, logarithmic",
            times("duration"),
        ),
        (
            "Waiting time",
            "from ready to started, logarithmic",
            times("wait"),
        ),
        (
            "Backlog",
            "jobs that waited at the end of each window, among those settled since",
            charts.lines(
                windows,
                step,
                {q: [float(v) for _, v in report.backlog[q]] for q in queues if q in report.backlog},
            ),
        ),
    ]


def _tiles(report: LakeReport) -> str:
    total = report.total
    if not total:
        return ""
    ended = total["completed"] + total["failed"]
    success = f"{100 * total['completed'] / ended:.1f} %" if ended else "-"
    tiles = [
        ("attempts", f"{total['attempts']:,}"),
        ("completed", f"{total['completed']:,}"),
        ("failed", f"{total['failed']:,}"),
        ("retried", f"{total['retried']:,}"),
        ("success", success),
        ("run time p95", show_ms(total["duration_p95_ms"])),
        ("wait p95", show_ms(total["wait_p95_ms"])),
    ]
    if report.gaps:
        tiles.append(("gaps in the log", str(report.gaps)))
    if report.erased:
        tiles.append(("of these erased", f"{report.erased:,}"))
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in tiles)
    return f'<section class="tiles">{cells}</section>'


def _figure(title: str, note: str, svg: str) -> str:
    return f"<figure><figcaption><b>{escape(title)}</b> {escape(note)}</figcaption>{svg}</figure>"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    kinds = [' class="n"' if name in NUMBERS else "" for name in head]
    top = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h2>{escape(title)}</h2><div class="wide">{table}</div>'


# --- cells, for the page and for the terminal ---------------------------------------------------------------

_TASK_HEAD = (
    "queue",
    "task",
    "attempts",
    "completed",
    "retried",
    "failed",
    "other",
    "run p50",
    "run p95",
    "run p99",
    "wait p95",
)
_QUEUE_HEAD = (
    "queue",
    "attempts",
    "completed",
    "retried",
    "failed",
    "cancelled",
    "stalled",
    "run p95",
    "wait p95",
)
#: Headings by the names of ``schemas.CAUSES``.
_CAUSE_HEAD = ("queue", "task", "scheduled", "parked", "blocked", "in line")
_ERROR_HEAD = ("error", "queue", "task", "times", "final", "first", "last", "example")
_WORKER_HEAD = ("worker", "attempts", "failed", "busy", "slots busy")
_ALIVE_HEAD = ("queue", "state", "jobs")
#: Columns that are right-aligned.
NUMBERS = {
    *_TASK_HEAD[2:],
    *_QUEUE_HEAD[1:],
    *_CAUSE_HEAD[2:],
    "times",
    "final",
    "busy",
    "slots busy",
    "jobs",
}


def tables(report: LakeReport) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    """Title, header and cells of each table."""
    return [
        ("Tasks", _TASK_HEAD, [_task_cells(row) for row in report.by_task]),
        ("Queues", _QUEUE_HEAD, [_queue_cells(row) for row in report.by_queue]),
        ("Queue time, all attempts together", _CAUSE_HEAD, _cause_cells(report.by_task)),
        ("Errors", _ERROR_HEAD, [_error_cells(row) for row in report.errors[:_TOP]]),
        ("Workers", _WORKER_HEAD, [_worker_cells(row) for row in report.workers[:_TOP]]),
        (_alive_title(report), _ALIVE_HEAD, _alive_cells(report)),
    ]


def _alive_title(report: LakeReport) -> str:
    """The title with the time of the snapshots, the oldest if there are several."""
    seen = min((row["seen_ms"] for row in report.alive), default=0)
    return f"Jobs alive, seen {show_time(seen)} UTC"


def _alive_cells(report: LakeReport) -> list[list[str]]:
    found: Counter[tuple[str, str]] = Counter()
    for row in report.alive:
        found[row["queue"], row["state"] or "ran since"] += row["jobs"]
    return [[queue, state, f"{count:,}"] for (queue, state), count in sorted(found.items())]


def status_lines(status: LakeStatus) -> list[str]:
    """The status of a lake, one fact per line."""
    now_ms = SYSTEM_CLOCK.now_ms()
    lines = []
    for source in status.sources:
        newest = "none" if source.newest_ms is None else show_time(source.newest_ms)
        age = show_age(max(now_ms - source.read_ms, 0))
        lines.append(
            f"{source.source}: batch {source.batch} read {show_time(source.read_ms)} ({age} ago), "
            f"newest attempt {newest}"
        )
        if source.lacking:
            lines.append(f"  not yet in {', '.join(source.lacking)}: a run is writing it, or the next will")
    rows = status.rows
    lines.append(f"{many(rows['silver/attempts'], 'attempt')} of {many(rows['silver/jobs'], 'job')}")
    if status.gaps:
        lines.append(f"{status.lost:,} records were lost unread, in {many(status.gaps, 'gap')}")
    failure = status.last_failure
    if failure is not None:
        after = "; batches went through since" if failure.is_over else ""
        text = printable(f"{failure.error}: {failure.message}" if failure.message else failure.error)
        lines.append(f"last failure of {failure.source}, {show_time(failure.at_ms)}: {text}{after}")
    return lines


def _task_cells(row: Row) -> list[str]:
    figures = [row[name] for name in ("attempts", "completed", "retried", "failed")]
    # The other outcomes (snoozed, released, cancelled, stalled, expired), so that each line adds up.
    counts = [f"{count:,}" for count in (*figures, figures[0] - sum(figures[1:]))]
    times = [show_ms(row[f"duration_{name}_ms"]) for name in ("p50", "p95", "p99")]
    return [row["queue"], row["task"], *counts, *times, show_ms(row["wait_p95_ms"])]


def _cause_cells(rows: Sequence[Row]) -> list[list[str]]:
    """What attempts of each task waited for. Tasks whose records lack this are left out."""
    names = [f"{cause}_sum_ms" for cause in schemas.CAUSES]
    return [
        [row["queue"], row["task"], *(show_ms(row[name]) for name in names)]
        for row in rows
        if any(row[name] is not None for name in names)
    ]


def _queue_cells(row: Row) -> list[str]:
    names = ("attempts", "completed", "retried", "failed", "cancelled", "stalled")
    return [
        row["queue"],
        *(f"{row[name]:,}" for name in names),
        show_ms(row["duration_p95_ms"]),
        show_ms(row["wait_p95_ms"]),
    ]


def _error_cells(row: Row) -> list[str]:
    return [
        _error_name(row),
        row["queue"],
        row["task"],
        f"{row['occurrences']:,}",
        f"{row['failed']:,}",
        show_time(row["first_ms"]),
        show_time(row["last_ms"]),
        row["last_job_id"],
    ]


def _error_name(row: Row) -> str:
    """The class and newest message, or else part of the fingerprint, to distinguish errors."""
    name, fingerprint = row["error_class"] or "", row["error_fingerprint"]
    if row.get("last_message"):
        return f"{name}: {printable(row['last_message'])[:_MESSAGE_CHARS]}"
    return name if fingerprint == name else f"{name} {fingerprint[:6]}".strip()


def _worker_cells(row: Row) -> list[str]:
    return [
        row["worker"],
        f"{row['attempts']:,}",
        f"{row['failed']:,}",
        show_ms(row["busy_ms"]),
        f"{row['slots']:.2f}",
    ]


def show_ms(value: float | None) -> str:
    """A duration for display."""
    if value is None:
        return "-"
    for limit, divisor, unit in ((1_000, 1, "ms"), (120_000, 1_000, "s"), (7_200_000, 60_000, "min")):
        if value < limit:
            return f"{value / divisor:.3g} {unit}"
    return f"{value / 3_600_000:.1f} h"


def show_time(ms: int) -> str:
    """A UTC time for display."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
