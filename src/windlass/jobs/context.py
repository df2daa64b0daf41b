"""What a running handler can see: its job, the shared context, a logger that names the job."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from windlass.core.ids import JobRef

if TYPE_CHECKING:
    from windlass.jobs.job import Job

_current: ContextVar[Callable[[], Job[Any]] | None] = ContextVar("windlass_current_job", default=None)


def current_job() -> Job[Any]:
    """The job that the calling handler runs for; ``RuntimeError`` outside of one."""
    get = _current.get()
    if get is None:
        raise RuntimeError(
            "current_job() works only inside a running task: a task that is called as a function has no job "
            "(windlass.testing.inline runs it as one)"
        )
    return get()


def root_of(parent: JobRef) -> JobRef:
    """The top of the flow of a job that gets a child: as the running job says, if it is that; else itself."""
    get = _current.get()
    job = None if get is None else get()
    if job is None or job.ref != parent or job.record.options.root is None:
        return parent
    queue, _, job_id = job.record.options.root.partition("/")
    return JobRef(queue, job_id)


#: Makes what its argument returns the current job of this task or thread (its context dies with it).
set_current_job: Callable[[Callable[[], Job[Any]]], object] = _current.set
