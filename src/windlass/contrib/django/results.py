"""Converts a job to a ``TaskResult`` of Django."""

from __future__ import annotations

import builtins
import re
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from windlass.contrib.django._tasks import TaskError, TaskResult, TaskResultStatus
from windlass.core.job import ErrorInfo
from windlass.core.states import JobState
from windlass.jobs.job import Job

_STATUS = {
    JobState.ACTIVE: TaskResultStatus.RUNNING,
    JobState.COMPLETED: TaskResultStatus.SUCCESSFUL,
    JobState.FAILED: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}
#: Used for the workers of earlier runs, because a job only stores its last one.
EARLIER = "earlier"


def to_result(task: Any, backend: str, job: Job[Any]) -> Any:
    """The current result of ``task`` in the store."""
    runs = job.deliveries
    result = TaskResult(
        task=task,
        id=job.id,
        status=_STATUS.get(job.state, TaskResultStatus.READY),
        enqueued_at=_moment(job.enqueued_ms),
        started_at=_moment(job.started_ms),
        last_attempted_at=_moment(job.started_ms),
        finished_at=_moment(job.finished_ms),
        args=job.args,
        kwargs=job.kwargs,
        backend=backend,
        errors=[to_error(error) for error in job.errors],
        worker_ids=[EARLIER] * (runs - 1) + [job.worker_id or EARLIER] if runs else [],
    )
    if job.state is JobState.COMPLETED:
        object.__setattr__(result, "_return_value", job.return_value)
    return result


def to_error(error: ErrorInfo) -> Any:
    """An error of an attempt. The class has its full path if the traceback names its module."""
    return TaskError(exception_class_path=_class_path(error), traceback=error.traceback or error.message)


def _class_path(error: ErrorInfo) -> str:
    name = error.error_class
    if hasattr(builtins, name):
        return f"builtins.{name}"
    full = re.findall(rf"^((?:\w+\.)+{re.escape(name)})(?::|$)", error.traceback, re.MULTILINE)
    return str(full[-1]) if full else f"builtins.{Exception.__name__}"


def _moment(at_ms: int | None) -> datetime | None:
    if at_ms is None:
        return None
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment if settings.USE_TZ else timezone.make_naive(moment)
