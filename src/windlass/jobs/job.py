"""``Job``: one unit of work, as users see it.

A job is a snapshot of its record, with methods that change it. Inside a handler it holds the lease: progress,
logs and data are written with its token, and raise ``LeaseLostError`` once there is a newer lease.

``handler_verbs`` has the methods for handlers, ``dependency_verbs`` those about other jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from windlass.backend import requests as rq
from windlass.backend.store import check_changed
from windlass.core import foreign_names
from windlass.core.edges import Dependency, to_on_failure
from windlass.core.foreign_names import ForeignNames
from windlass.core.job import JobRecord, LogLevel
from windlass.core.option_values import WAIT_S, seconds_to_ms
from windlass.core.options import ChildOptionsDict
from windlass.core.outcome import AddOutcome, CancelResult
from windlass.core.states import DUE_LATER, FINISHED, JobState
from windlass.errors import ConfigError, IllegalTransitionError, JobNotFoundError
from windlass.jobs.abort import AbortSignal
from windlass.jobs.dependency_verbs import DependencyVerbs
from windlass.jobs.handler_verbs import HandlerVerbs
from windlass.jobs.logger import JobLogger
from windlass.jobs.payload import Call, pack_data

if TYPE_CHECKING:
    from windlass.jobs.interfaces import JobQueue
    from windlass.serde.codecs import Codecs

ResultT = TypeVar("ResultT")
AnswerT = TypeVar("AnswerT")


class Job(HandlerVerbs[ResultT], DependencyVerbs, ForeignNames, Generic[ResultT]):
    """A job of a queue. The fields show the record as it was last read; ``refresh`` reads it again."""

    _called = "a job"
    _elsewhere = foreign_names.JOB

    __slots__ = ("_logger", "abort_signal", "context", "loop", "not_taken", "outcome")

    def __init__(
        self,
        queue: JobQueue,
        record: JobRecord,
        outcome: AddOutcome | None = None,
        *,
        held: bool = False,
        abort_signal: AbortSignal | None = None,
        context: Any = None,
        on_progress: Callable[[Job[Any], Any], None] | None = None,
        call: Call | None = None,
    ) -> None:
        self._queue = queue
        self._record = record
        self._call = call
        self._held = held
        self._logger: JobLogger | None = None
        self._on_progress = on_progress
        self._streamed = 0
        self._streaming: asyncio.Future[None] | None = None
        #: The outcome of the ``add`` that returned this job: queued, duplicate, replaced or cached.
        self.outcome: AddOutcome | None = outcome
        #: For ``replaced``: options of that ``add`` that this job did not take, because it had already run.
        self.not_taken: tuple[str, ...] = ()
        #: Inside a handler: set when the attempt should stop.
        self.abort_signal: AbortSignal | None = abort_signal
        #: Inside a handler: the worker's shared context.
        self.context: Any = context
        #: Inside a handler that runs in a thread: the worker's event loop, for ``sync``.
        self.loop: asyncio.AbstractEventLoop | None = None
        #: Inside a handler: True after ``discard()``.
        self.discarded: bool = False

    def __repr__(self) -> str:
        return f"<Job {self.name} {self.id} of {self.queue_name}: {self.state.value}>"

    # --- fields ------------------------------------------------------------------------------------

    @property
    def _codecs(self) -> Codecs:
        return self._queue.app.codecs

    @property
    def queue(self) -> JobQueue:
        """The queue of the job."""
        return self._queue

    @property
    def progress(self) -> Any:
        """The last reported progress, or None."""
        return self._codecs.read_progress(self._record)

    @property
    def enqueue_result(self) -> dict[str, Any]:
        """The outcome of the ``add`` that returned this job, in the words of other job systems.

        ``{"status": "queued"}``, ``{"status": "duplicate", "existing_state": ...}``, or ``{"status":
        "completed", "result": ...}`` when a stored result answered it.
        """
        match self.outcome:
            case None:
                raise ConfigError(
                    "enqueue_result", message="enqueue_result is known only for a job that an add returned"
                )
            case AddOutcome.DUPLICATE:
                return {"status": "duplicate", "existing_state": self.state}
            case AddOutcome.CACHED:
                return {"status": "completed", "result": self.return_value}
        return {"status": "queued"}

    @property
    def run_id(self) -> str | None:
        """Inside a handler: the id of this attempt, unique forever."""
        return self._record.token if self._held else None

    @property
    def logger(self) -> JobLogger:
        """A standard logger that adds this job to every line."""
        if self._logger is None:
            self._logger = JobLogger(self)
        return self._logger

    @property
    def return_value(self) -> Any:
        """The result of a completed job; None before. Raises ``ResultExpiredError`` when it has expired."""
        value = super().return_value
        return value if self._record.result is None else self._queue.app.typed_result(self.name, value)

    @property
    def sync(self) -> HeldJob:
        """The methods for handlers that are plain functions: ``current_job().sync.log("...")``."""
        return HeldJob(self)

    # --- children ---------------------------------------------------------------------------------------

    async def add_child(
        self,
        name: str,
        data: Any = None,
        *,
        queue: str | None = None,
        on_failure: str = "fail",
        **options: Unpack[ChildOptionsDict],
    ) -> Job[Any]:
        """Add a job that this one waits for, to its own queue or another.

        In a handler, raise ``WaitForChildren()`` after adding all children; the job runs again from the start
        when they have ended. Give each child a ``job_id`` that a second run would also choose, so that it is
        not added twice. A job that has not started yet is blocked until the child has ended.
        """
        target = self._queue if queue is None else self._queue.app.queue(queue)
        parent = Dependency(self.queue_name, self.id, to_on_failure(on_failure))
        added: Job[Any] = await target.add(name, data, parent=parent, **options)
        return added

    # --- changes ---------------------------------------------------------------------------------------

    async def cancel(self, reason: str = "") -> CancelResult:
        """Cancel the job. A pending job ends at once; the worker of a running job is notified."""
        return await self._queue.cancel(self.id, reason)

    async def remove(self, *, force: bool = False) -> None:
        """Delete the record. Raises ``IllegalTransitionError`` for an active job unless ``force``."""
        await self._queue.remove(self.id, force=force)

    async def retry(self) -> None:
        """Run a finished job again with all its attempts, or make a retrying job ready now."""
        await self._queue.retry(self.id)

    async def update_data(self, data: Any) -> None:
        """Replace the data of a pending job, or of a running job from its own handler."""
        payload = self._codecs.change(self._record, pack_data(data), self._queue.app.max_payload_bytes)
        await self._change(
            "change the data of", rq.ChangeJob(ref=self.ref, token=self._token(), payload=payload)
        )
        self._record.payload = payload
        self._call = None

    async def promote(self) -> None:
        """Make a scheduled or retrying job ready now. Raises ``IllegalTransitionError`` in other states."""
        record = await self._fresh()
        if record.state not in DUE_LATER:
            raise IllegalTransitionError(
                self.id, record.state, "promote", "only scheduled or retrying jobs wait for a time"
            )
        await self._change("promote", rq.ChangeJob(ref=self.ref, delay_ms=0))

    async def change_priority(self, priority: int) -> None:
        """Move a pending job to the end of another priority.

        Raises ``OrderedGroupError`` when its group is ordered.
        """
        self._queue.defaults.merged({"priority": priority})  # checks the range
        await self._change("change the priority of", rq.ChangeJob(ref=self.ref, priority=priority))
        self._record.priority = priority

    async def change_delay(self, delay: float | timedelta) -> None:
        """Make a pending job due ``delay`` from now."""
        delay_ms = seconds_to_ms(delay, "delay")
        await self._change("change the delay of", rq.ChangeJob(ref=self.ref, delay_ms=delay_ms))

    async def _change(self, action: str, request: rq.ChangeJob) -> None:
        result = await self._queue.store.execute(request)
        check_changed(self.ref, result, action, "only pending jobs can be changed")

    # --- reading -------------------------------------------------------------------------------------------

    async def refresh(self) -> Job[ResultT]:
        """Read the record again. Raises ``JobNotFoundError`` when it is gone."""
        await self._fresh()
        return self

    async def _fresh(self) -> JobRecord:
        record = await self._queue.store.get(self.ref)
        if record is None:
            raise JobNotFoundError(self.queue_name, self.id)
        if not self._held:
            self._record = record
            self._call = None
        return record

    async def get_state(self) -> JobState:
        """Read the current state from the store."""
        return (await self._fresh()).state

    async def is_completed(self) -> bool:
        """Whether it has completed, read from the store."""
        return await self.get_state() is JobState.COMPLETED

    async def is_failed(self) -> bool:
        """Whether it has failed, read from the store."""
        return await self.get_state() is JobState.FAILED

    async def is_cancelled(self) -> bool:
        """Whether it was cancelled, read from the store."""
        return await self.get_state() is JobState.CANCELLED

    async def is_revoked(self) -> bool:
        """Whether it was cancelled, or runs and was asked to stop."""
        record = await self._fresh()
        return record.state is JobState.CANCELLED or record.cancel_reason is not None

    async def is_active(self) -> bool:
        """Whether it is running, read from the store."""
        return await self.get_state() is JobState.ACTIVE

    async def is_waiting(self) -> bool:
        """Whether it is ready and waits for a worker."""
        return await self.get_state() is JobState.WAITING

    async def is_delayed(self) -> bool:
        """Whether it is scheduled or retrying."""
        return await self.get_state() in DUE_LATER

    async def is_blocked(self) -> bool:
        """Whether it waits for other jobs."""
        return await self.get_state() is JobState.BLOCKED

    async def is_suspended(self) -> bool:
        """Whether it waits for a signal."""
        return await self.get_state() is JobState.SUSPENDED

    async def is_finished(self) -> bool:
        """Whether it has completed, failed or was cancelled."""
        return await self.get_state() in FINISHED

    async def wait_until_finished(self, timeout: float | timedelta | None = WAIT_S) -> JobState:
        """Wait until it has completed, failed or was cancelled. Raises ``WaitTimeoutError``."""
        self._record = await self._queue.wait_for(self.ref, timeout)
        self._call = None
        return self._record.state

    async def result(self, timeout: float | timedelta | None = WAIT_S) -> ResultT:
        """Wait for the result and return it.

        Raises ``JobFailedError`` (``MaxRetriesError`` when no attempt is left), ``JobCancelledError``,
        ``WaitTimeoutError`` or ``JobNotFoundError``. Raises ``ResultExpiredError`` when the job had completed
        before and its result has expired; callers that wait while it runs get the result regardless of its
        ``result_ttl``. Raises ``ClosedError`` when the queue or the app is closed during the wait.
        """
        if self._held:
            raise ConfigError("result", message="a handler cannot wait for the result of its own job")
        await self.wait_until_finished(timeout)
        value: ResultT = self._queue.result_of(self._record)
        return value


class HeldJob:
    """The methods of a job for a handler that runs in a thread. They block."""

    def __init__(self, job: Job[Any]) -> None:
        self._job = job

    def log(self, line: str, level: LogLevel = "info") -> None:
        """Store a log line with the job; see ``Job.log``."""
        self._run(self._job.log(line, level))

    def update_progress(self, progress: Any) -> None:
        """Report progress; see ``Job.update_progress``."""
        self._run(self._job.update_progress(progress))

    def update_data(self, data: Any) -> None:
        """Replace the data; see ``Job.update_data``."""
        self._run(self._job.update_data(data))

    def stream(self, *chunks: Any) -> None:
        """Write live output; see ``Job.stream``."""
        self._run(self._job.stream(*chunks))

    def add_child(self, name: str, data: Any = None, **options: Unpack[ChildOptionsDict]) -> Job[Any]:
        """Add a job that this one waits for; see ``Job.add_child``."""
        return self._run(self._job.add_child(name, data, **options))

    def get_children_values(self) -> dict[str, Any]:
        """Return the results of the jobs that this one waited for; see ``Job.get_children_values``."""
        return self._run(self._job.get_children_values())

    def get_failed_children(self) -> dict[str, str]:
        """Return why jobs that this one waited for failed; see ``Job.get_failed_children``."""
        return self._run(self._job.get_failed_children())

    def _run(self, verb: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        loop = self._job.loop
        if loop is None:
            verb.close()
            raise RuntimeError(
                "job.sync works inside a plain function that runs as a task; await the verb instead"
            )
        return asyncio.run_coroutine_threadsafe(verb, loop).result()
