"""``windlass job``: shows everything about one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from windlass.cli.job_views import job_view, now_ms, readable, runs
from windlass.cli.output import Out, state_text, styled
from windlass.cli.store_commands import StoreOptions, app_option, find_queue, store_command
from windlass.cli.values import show_age, show_span, show_time
from windlass.core.states import JobState
from windlass.errors import JobNotFoundError

if TYPE_CHECKING:
    from rich.text import Text

    from windlass.core.job import ErrorInfo
    from windlass.jobs.job import Job

#: Shorter values are shown on one line.
_ONE_LINE = 70


@dataclass(frozen=True, kw_only=True)
class JobCommandOptions(StoreOptions):
    """The job, and how many of its log lines to show."""

    queue: str
    id: str
    logs: int = 20
    traces: bool = True


class LogTail(NamedTuple):
    """The last lines of a job's log, and how many are stored in total."""

    lines: list[str]
    total: int


async def run(options: JobCommandOptions, out: Out) -> int:
    """Show one job."""
    async with options.app() as app:
        queue = await find_queue(app, options.queue)
        job = await queue.get_job(options.id)
        if job is None:
            raise JobNotFoundError(options.queue, options.id)
        _, total = await queue.get_job_logs(options.id, 0, 1)
        lines, total = await queue.get_job_logs(
            options.id, max(total - options.logs, 0), max(options.logs, 1)
        )
    logs = LogTail(lines[: options.logs], total)
    if out.as_json:
        out.document({**job_view(job), "logs": logs.lines, "log_lines": logs.total})
        return 0
    _draw_head(job, out)
    _draw_timeline(job, out)
    _draw_values(job, out)
    _draw_errors(job, options, out)
    _draw_logs(logs, out)
    return 0


def _draw_head(job: Job[Any], out: Out) -> None:
    line = styled(job.name, "bold")
    line.append("  ")
    line.append_text(state_text(job.state))
    if job.reason and job.state in (JobState.FAILED, JobState.CANCELLED):
        line.append(f" ({job.reason})", style="dim")
    out.text(line)
    facts = [f"{job.queue_name}/{job.id}", f"run {runs(job)} of {job.max_attempts}"]
    facts.append(f"deliveries {job.deliveries}")
    if job.priority:
        facts.append(f"priority {job.priority}")
    if job.stalled_count:
        facts.append(f"stalled {job.stalled_count}x")
    if job.manual_retries:
        facts.append(f"retried by hand {job.manual_retries}x")
    if job.tags:
        facts.append("tags " + ", ".join(job.tags))
    out.text(" · ".join(facts), "dim")


def _draw_timeline(job: Job[Any], out: Out) -> None:
    record, now = job.record, now_ms()
    moments: list[tuple[int, str]] = [(record.enqueued_ms, "added")]
    moments += [(e.at_ms, f"attempt {e.attempt} failed: {e.error_class}") for e in job.errors if e.at_ms]
    if record.ready_ms > record.enqueued_ms:
        moments.append((record.ready_ms, "ready to run"))
    if record.started_ms is not None:
        by = f" by {job.worker_id}" if job.worker_id else ""
        moments.append((record.started_ms, f"started{by}"))
    if record.finished_ms is not None:
        moments.append((record.finished_ms, job.state.value))
    _title("Timeline", out)
    before = record.enqueued_ms
    for at, what in sorted(moments, key=lambda moment: moment[0]):
        gap = f"+{show_span(at - before)}" if at > before else ""
        out.text(f"  {show_time(at)}  {gap:>8}  {what}")
        before = at
    ahead = [(record.due_ms, "due")]
    if job.state is JobState.ACTIVE:
        ahead.append((record.lease_until_ms, "lease ends"))
    for then, what in ahead:
        if then is not None:
            out.text(f"  {show_time(then)}  {'':>8}  {what}, {_ahead(then - now)}")
    if record.cancel_reason is not None:
        out.text(f"  cancellation was asked for: {record.cancel_reason or 'no reason given'}", "magenta")


def _ahead(ms: int) -> str:
    return f"in {show_age(ms)}" if ms > 0 else f"{show_age(-ms)} ago"


def _draw_values(job: Job[Any], out: Out) -> None:
    record = job.record
    _title("Arguments", out)
    _draw_json(readable(job, lambda: job.data, record.payload), out)
    if record.progress is not None:
        _title("Progress", out)
        out.text("  " + progress_text(readable(job, lambda: job.progress, record.progress)))
    if record.result is not None:
        _title("Result", out)
        _draw_json(readable(job, lambda: job.return_value, record.result), out)
    elif record.result_expired:
        _title("Result", out)
        out.text("  past its time (result_ttl)", "dim")


def progress_text(progress: Any) -> str:
    """Progress as a bar if it is a percentage or has ``current`` and ``total``, else as JSON."""
    share: float | None = None
    match progress:
        case bool():
            pass
        case int() | float():
            share = progress / 100
        case {"current": int() | float() as current, "total": int() | float() as total} if total:
            share = current / total
    if share is None:
        return msgspec.json.encode(progress).decode()
    full = round(min(max(share, 0), 1) * 30)
    detail = "" if isinstance(progress, (int, float)) else "  " + msgspec.json.encode(progress).decode()
    return f"{'━' * full}{'─' * (30 - full)} {share:.0%}{detail}"


def _draw_json(value: Any, out: Out) -> None:
    text = msgspec.json.encode(value, enc_hook=str)
    lines = [text] if len(text) <= _ONE_LINE else msgspec.json.format(text, indent=2).splitlines()
    for line in map(bytes.decode, lines):
        out.text(f"  {line}")


def _draw_errors(job: Job[Any], options: JobCommandOptions, out: Out) -> None:
    if not job.errors:
        return
    _title(f"Errors ({len(job.errors)}, newest last)", out)
    for error in job.errors:
        out.text(_error_line(error))
    last = job.errors[-1]
    if options.traces and last.traceback:
        out.text()
        for line in last.traceback.splitlines():
            out.text(f"  {line}", "dim")


def _error_line(error: ErrorInfo) -> Text:
    line = styled(f"  {show_time(error.at_ms)}  " if error.at_ms else "  ", "dim")
    line.append(f"attempt {error.attempt}  " if error.attempt else "")
    line.append(error.error_class, style="bold red")
    message = " ".join(error.message.split())
    line.append(f": {message}" if message else "", style="red")
    return line


def _draw_logs(logs: LogTail, out: Out) -> None:
    if not logs.lines:
        return
    shown = f"last {len(logs.lines)} of {logs.total}" if logs.total > len(logs.lines) else str(logs.total)
    _title(f"Log ({shown})", out)
    for line in logs.lines:
        out.text(f"  {line}")


def _title(text: str, out: Out) -> None:
    out.text()
    out.text(text, "bold")


@store_command(
    "job",
    run,
    examples="""
windlass job mail 0197b7c2d5f47a3c9d0c8f5b6f0a1c2d
windlass job mail order-17 --logs 200
windlass job mail order-17 --json | jq .errors
""",
)
@click.argument("queue")
@click.argument("id")
@click.option(
    "--logs", type=click.IntRange(0, 1_000), default=20, show_default=True, help="Log lines to show."
)
@click.option("--traces/--no-traces", default=True, help="Show the traceback of the last error.")
@app_option
def command(**values: Any) -> JobCommandOptions:
    """Show one job: its timeline, arguments, progress, result, errors and log."""
    return JobCommandOptions(**values)
