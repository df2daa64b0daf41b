"""The job that callbacks of ``queue.on("added")`` receive."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from windlass.core.job import Event, JobRecord
from windlass.jobs.job import Job

if TYPE_CHECKING:
    from windlass.jobs.interfaces import JobQueue

#: Attributes of the event, which callbacks used to receive, and their replacements.
_OF_EVENT = {
    "type": 'queue.on("enqueued") or queue.on("scheduled"), whose callbacks receive the event',
    "at_ms": "job.record.enqueued_ms",
    "job_id": "job.id",
    "task": "job.name",
}


class AddedJob(Job[Any]):
    """A job that was added. The attributes of its event still work, but are deprecated."""

    __slots__ = ("_event",)

    def __init__(self, queue: JobQueue, record: JobRecord, event: Event) -> None:
        super().__init__(queue, record)
        self._event = event

    if not TYPE_CHECKING:  # type checkers see only the attributes of a job

        def __getattr__(self, name: str) -> Any:
            instead = _OF_EVENT.get(name)
            if instead is None:
                return super().__getattr__(name)
            warnings.warn(
                f'queue.on("added") passes the job, not the event: instead of .{name} use {instead}',
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(self._event, name)
