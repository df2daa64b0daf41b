"""Jobs in the output of commands: a mapping for JSON, and cells for tables."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.states import FINISHED, TIMED, JobState
from windlass.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from windlass.jobs.job import Job


def now_ms() -> int:
    """The time of this machine, for ages in the output."""
    return SYSTEM_CLOCK.now_ms()


def job_view(job: Job[Any]) -> dict[str, Any]:
    """All fields of a job, for JSON."""
    record = job.record
    return {
        "id": job.id,
        "queue": job.queue_name,
        "name": job.name,
        "state": job.state.value,
        "data": readable(job, lambda: job.data, record.payload),
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "deliveries": job.deliveries,
        "stalls": job.stalled_count,
        "manual_retries": job.manual_retries,
        "tags": job.tags,
        "enqueued_ms": job.enqueued_ms,
        "ready_ms": record.ready_ms or None,
        "due_ms": record.due_ms,
        "expires_ms": record.expires_ms,
        "started_ms": job.started_ms,
        "finished_ms": job.finished_ms,
        "worker": job.worker_id,
        "progress": readable(job, lambda: job.progress, record.progress),
        "result": None if record.result is None else readable(job, lambda: job.return_value, record.result),
        "result_expired": record.result_expired,
        "reason": record.reason,
        "cancel_reason": record.cancel_reason,
        "errors": [msgspec.structs.asdict(error) for error in job.errors],
    }


def readable(job: Job[Any], read: Callable[[], Any], raw: bytes | None) -> Any:
    """A decoded value. Bytes that cannot be decoded are shown as stored."""
    try:
        return read()
    except (ValueError, TypeError, ConfigError):
        return {"codec": job.record.codec, "base64": base64.b64encode(raw or b"").decode()}


def when_text(job: Job[Any], now: int) -> str:
    """The relevant time for the job's state, as an age or a wait."""
    from windlass.cli.values import show_age, show_span

    record = job.record
    if job.state in TIMED and record.due_ms is not None:
        return f"in {show_age(record.due_ms - now)}" if record.due_ms > now else "due"
    if job.state is JobState.ACTIVE and record.started_ms is not None:
        return f"for {show_age(now - record.started_ms)}"
    if job.state in FINISHED and record.finished_ms is not None and record.started_ms is not None:
        return f"took {show_span(record.finished_ms - record.started_ms)}"
    return ""


def runs(job: Job[Any]) -> int:
    """Runs that count against the limit, including the current one."""
    return job.attempts + (job.state in (JobState.ACTIVE, JobState.COMPLETED))
