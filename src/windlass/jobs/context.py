"""The job of the running handler."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from windlass.core.ids import JobRef

if TYPE_CHECKING:
    from windlass.jobs.job import Job

_current: ContextVar[Callable[[], Job[Any]] | None] = ContextVar("windlass_current_job", default=None)


def current_job() -> Job[Any]:
    """Return the job that the calling handler runs for. Raises ``RuntimeError`` outside of a handler."""
    get = _current.get()
    if get is None:
        raise RuntimeError(
            "current_job() works only inside a running task: a task that is called as a function has no job "
            "(windlass.testing.inline runs it as one)"
        )
    return get()


def root_of(parent: JobRef) -> JobRef:
    """Return the top of the flow of ``parent`` if it is the running job, otherwise ``parent``."""
    get = _current.get()
    job = None if get is None else get()
    if job is None or job.ref != parent or job.record.options.root is None:
        return parent
    queue, _, job_id = job.record.options.root.partition("/")
    return JobRef(queue, job_id)


#: Set the function that returns the current job of this task or thread.
set_current_job: Callable[[Callable[[], Job[Any]]], object] = _current.set
