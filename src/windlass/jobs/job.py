"""``Job``: one unit of work, as users hold it.

A job is a snapshot of its record plus the verbs that change it. Inside a handler it carries the lease, so
progress, logs and data are written under its token; a newer lease makes them raise ``LeaseLostError``.

The verbs of a handler are in ``handler_verbs``, those about other jobs in ``dependency_verbs``.
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
    """A job of a queue. Fields show the record as it was last read; ``refresh`` reads it again."""

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
        #: What the ``add`` that returned this job did: queued, duplicate, replaced or cached.
        self.outcome: AddOutcome | None = outcome
        #: For ``replaced``: options of that ``add`` which this job did not take, because it ran before.
        self.not_taken: tuple[str, ...] = ()
        #: Inside a handler: set when the attempt should stop.
        self.abort_signal: AbortSignal | None = AbortSignal() if held else None
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
        """Its queue."""
        return self._queue

    @property
    def progress(self) -> Any:
        """The last reported progress, or None."""
        return self._codecs.read_progress(self._record)

    @property
    def enqueue_result(self) -> dict[str, Any]:
        """What became of the ``add`` that returned this job, in words that other systems use.

        ``{"status": "queued"}``, ``{"status": "duplicate", "existing_state": ...}``, or
        ``{"status": "completed", "result": ...}`` when it was answered from a result that is kept.
        """
        match self.outcome:
            case None:
                raise ConfigError("enqueue_result", "asked of a job that an add returned")
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
        """A standard logger that names this job on every line."""
        if self._logger is None:
            self._logger = JobLogger(self)
        return self._logger

    @property
    def return_value(self) -> Any:
        """What ``result`` gives of a completed job, None before; ``ResultExpiredError`` past its time."""
        value = super().return_value
        return value if self._record.result is None else self._queue.app.typed_result(self.name, value)

    @property
    def sync(self) -> HeldJob:
        """The verbs of a running handler for plain functions: ``current_job().sync.log("...")``."""
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
        """Add a job that this one is to wait for, to its own queue or another.

        From a handler: raise ``WaitForChildren()`` once all are added, and the job runs again, from the
        start, when they have ended. Give children a ``job_id`` that a second run would choose as well, and
        they are not added twice. A job that has not started yet is blocked until the child has ended.
        """
        target = self._queue if queue is None else self._queue.app.queue(queue)
        parent = Dependency(self.queue_name, self.id, to_on_failure(on_failure))
        added: Job[Any] = await target.add(name, data, parent=parent, **options)
        return added

    # --- changes from anywhere -------------------------------------------------------------------------

    async def cancel(self, reason: str = "") -> CancelResult:
        """Cancel it: at once while pending, by notifying its worker while it runs."""
        return await self._queue.cancel(self.id, reason)

    async def remove(self, *, force: bool = False) -> None:
        """Delete the record. An active job is refused unless ``force``."""
        await self._queue.remove(self.id, force=force)

    async def retry(self) -> None:
        """Run a finished job again with a fresh budget; make a retrying one ready now."""
        await self._queue.retry(self.id)

    async def update_data(self, data: Any) -> None:
        """Replace the payload of a pending job, or of the running one by its own handler."""
        payload = self._codecs.change(self._record, pack_data(data), self._queue.app.max_payload_bytes)
        await self._change(
            "change the data of", rq.ChangeJob(ref=self.ref, token=self._token(), payload=payload)
        )
        self._record.payload = payload
        self._call = None

    async def promote(self) -> None:
        """Make a scheduled or retrying job ready now; any other state is refused."""
        record = await self._fresh()
        if record.state not in DUE_LATER:
            raise IllegalTransitionError(
                self.id, record.state, "promote", "only scheduled or retrying jobs wait for a time"
            )
        await self._change("promote", rq.ChangeJob(ref=self.ref, delay_ms=0))

    async def change_priority(self, priority: int) -> None:
        """Move a pending job to another priority (to the back of it).

        ``OrderedGroupError`` when its group is ordered: there the order of adding counts.
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

    # --- questions -----------------------------------------------------------------------------------------

    async def refresh(self) -> Job[ResultT]:
        """Read the record again; ``JobNotFoundError`` when it is gone."""
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
        """The state in the store, now."""
        return (await self._fresh()).state

    async def is_completed(self) -> bool:
        return await self.get_state() is JobState.COMPLETED

    async def is_failed(self) -> bool:
        return await self.get_state() is JobState.FAILED

    async def is_cancelled(self) -> bool:
        return await self.get_state() is JobState.CANCELLED

    async def is_revoked(self) -> bool:
        """Cancelled, or running with cancellation asked for."""
        record = await self._fresh()
        return record.state is JobState.CANCELLED or record.cancel_reason is not None

    async def is_active(self) -> bool:
        return await self.get_state() is JobState.ACTIVE

    async def is_waiting(self) -> bool:
        return await self.get_state() is JobState.WAITING

    async def is_delayed(self) -> bool:
        """Waiting for a time: scheduled or retrying."""
        return await self.get_state() in DUE_LATER

    async def is_blocked(self) -> bool:
        """Waiting for other jobs."""
        return await self.get_state() is JobState.BLOCKED

    async def is_suspended(self) -> bool:
        """Waiting for a signal."""
        return await self.get_state() is JobState.SUSPENDED

    async def is_finished(self) -> bool:
        return await self.get_state() in FINISHED

    async def wait_until_finished(self, timeout: float | timedelta | None = WAIT_S) -> JobState:
        """Wait until it completed, failed or was cancelled; ``WaitTimeoutError`` when that takes longer."""
        self._record = await self._queue.wait_for(self.ref, timeout)
        self._call = None
        return self._record.state

    async def result(self, timeout: float | timedelta | None = WAIT_S) -> ResultT:
        """Wait for the result. Raises what became of the job otherwise:

        ``JobFailedError`` (``MaxRetriesError`` when attempts ran out), ``JobCancelledError``,
        ``WaitTimeoutError``, ``JobNotFoundError``; ``ResultExpiredError`` when it had completed before and
        its result is past its time (callers that wait while it runs get it, whatever its ``result_ttl``);
        ``ClosedError`` when the queue or the app is closed meanwhile.
        """
        if self._held:
            raise ConfigError("result", "awaited outside of the job's own handler")
        await self.wait_until_finished(timeout)
        value: ResultT = self._queue.result_of(self._record)
        return value


class HeldJob:
    """What a plain (threaded) handler can do with its job: the same verbs, blocking."""

    def __init__(self, job: Job[Any]) -> None:
        self._job = job

    def log(self, line: str, level: LogLevel = "info") -> None:
        """Keep a line with the job; see ``Job.log``."""
        self._run(self._job.log(line, level))

    def update_progress(self, progress: Any) -> None:
        """Report progress."""
        self._run(self._job.update_progress(progress))

    def update_data(self, data: Any) -> None:
        """Replace the payload."""
        self._run(self._job.update_data(data))

    def stream(self, *chunks: Any) -> None:
        """Put out live."""
        self._run(self._job.stream(*chunks))

    def add_child(self, name: str, data: Any = None, **options: Unpack[ChildOptionsDict]) -> Job[Any]:
        """Add a job that this one is to wait for; see ``Job.add_child``."""
        return self._run(self._job.add_child(name, data, **options))

    def get_children_values(self) -> dict[str, Any]:
        """The results of the jobs that this one waited for."""
        return self._run(self._job.get_children_values())

    def get_failed_children(self) -> dict[str, str]:
        """Why jobs that this one waited for did not complete."""
        return self._run(self._job.get_failed_children())

    def _run(self, verb: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        loop = self._job.loop
        if loop is None:
            verb.close()
            raise RuntimeError(
                "job.sync works inside a plain function that runs as a task; await the verb instead"
            )
        return asyncio.run_coroutine_threadsafe(verb, loop).result()
