"""The base of the parts of ``Queue``: the modules ``queue_*`` build on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from windlass.backend.closing import Closing
from windlass.backend.store import Store
from windlass.core.ids import is_text
from windlass.core.job import JobRecord, JobRef
from windlass.core.options import JobOptions
from windlass.errors import ConfigError
from windlass.jobs.interfaces import JobQueue
from windlass.jobs.job import Job

if TYPE_CHECKING:
    from windlass.api.interfaces import App


#: Longer than the limit for new ids, so that imported jobs with longer ids can be read and removed.
_LONGEST_ID = 1_024


class QueueContext:
    """The queue's name, its app and its store."""

    def __init__(self, name: str, app: App, defaults: JobOptions) -> None:
        self.name: str = name
        self.app: App = app
        self.defaults: JobOptions = defaults
        self._closing = Closing(
            f"queue {name!r}", f"take another: app.queue({name!r}), or Queue({name!r}, ...)"
        )

    @property
    def store(self) -> Store:
        """The app's store. Raises ``ClosedError`` after ``close``."""
        self._closing.check()
        return self.app.store

    @property
    def _as_queue(self) -> JobQueue:
        """This object as a ``Queue``, for jobs and helpers that need one."""
        return cast("JobQueue", self)

    def _job(self, record: JobRecord) -> Job[Any]:
        """Return the public job object of a record."""
        return Job(self._as_queue, record)

    def _ref(self, job_id: str) -> JobRef:
        """Return the reference of a job. Raises ``ConfigError`` if ``job_id`` cannot be an id."""
        if not job_id or not is_text(job_id) or len(job_id) > _LONGEST_ID:
            raise ConfigError(
                "job_id", f"the id of a job, a text of at most {_LONGEST_ID} characters", job_id
            )
        return JobRef(self.name, job_id)
