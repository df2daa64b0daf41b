"""What a running handler can see: its job, the shared context, a logger that names the job."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.job import Job

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


#: Makes what its argument returns the current job of this task or thread (its context dies with it).
set_current_job: Callable[[Callable[[], Job[Any]]], object] = _current.set


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds job id, task, queue and attempt to every line, as fields and as a prefix."""

    def __init__(self, job: Job[Any]) -> None:
        super().__init__(
            logging.getLogger("windlass.job"),
            {"job_id": job.id, "task": job.name, "queue": job.queue_name, "attempt": job.attempt},
        )

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        facts = self.extra or {}
        kwargs["extra"] = {**facts, **kwargs.get("extra", {})}
        return f"[{facts.get('task')} {facts.get('job_id')}] {msg}", kwargs
