"""``Job``: one unit of work, as users hold it.

A job is a snapshot of its record plus the verbs that change it. Inside a handler it carries the lease, so
progress, logs and data are written under its token; a newer lease makes them raise ``LeaseLostError``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, Unpack, cast

import msgspec

from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backend import stream_requests as sm
from windlass.backend.store import check_changed
from windlass.core import foreign_names
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.edges import Dependency, Edge, EdgeStatus, to_on_failure
from windlass.core.foreign_names import ForeignNames
from windlass.core.job import LOG_LEVELS, LOG_LINE_CHARS, JobRecord, LogLevel, error_info
from windlass.core.option_values import WAIT_S, seconds_to_ms
from windlass.core.options import ChildOptionsDict
from windlass.core.outcome import AddOutcome, CancelResult, Outcome, Settled, Settlement, to_reason
from windlass.core.states import DUE_LATER, FINISHED, JobState
from windlass.core.text import clean_text
from windlass.errors import (
    ConfigError,
    IllegalTransitionError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
    Suspend,
)
from windlass.jobs.abort import AbortSignal
from windlass.jobs.fields import JobFields
from windlass.jobs.logger import JobLogger
from windlass.jobs.payload import Call, pack_data

if TYPE_CHECKING:
    from windlass.backend.protocol import TransactionalBackend
    from windlass.jobs.interfaces import JobQueue
    from windlass.serde.codecs import Codecs

ResultT = TypeVar("ResultT")
AnswerT = TypeVar("AnswerT")

#: Chunks of live output that go in one request, and pauses after which one that failed is sent again.
_CHUNKS = 500
_REPEAT_AFTER_MS = (20, 100, 500)


class Job(JobFields, ForeignNames, Generic[ResultT]):
    """A job of a queue. Fields show the record as it was last read; ``refresh`` reads it again."""

    _called = "a job"
    _elsewhere = foreign_names.JOB

    __slots__ = (
        "_held",
        "_logger",
        "_on_progress",
        "_queue",
        "_streamed",
        "_streaming",
        "abort_signal",
        "context",
        "discarded",
        "loop",
        "not_taken",
        "outcome",
    )

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

    # --- inside a handler ----------------------------------------------------------------------------

    async def log(self, line: str, level: LogLevel = "info") -> None:
        """Keep a line with the job, readable with ``queue.get_job_logs`` and in the dashboard.

        The store notes the time, the attempt and the run with it.
        """
        if level not in LOG_LEVELS:
            raise ConfigError("level", f"one of {', '.join(LOG_LEVELS)}", level)
        text = clean_text(line, LOG_LINE_CHARS)
        result = await self._queue.store.execute(
            rq.Report(ref=self.ref, token=self._token(), logs=[text], level=level)
        )
        check_changed(self.ref, result, "log to")

    async def update_progress(self, progress: Any) -> None:
        """Report progress: any JSON value; 0..100 and ``{"current", "total"}`` are drawn as bars.

        Inside a handler under its lease; from outside for any job that has not ended, the last value counts.
        """
        data = self._codecs.write_progress(self._record, progress, self._queue.app.max_payload_bytes)
        result = await self._queue.store.execute(rq.Report(ref=self.ref, token=self._token(), progress=data))
        check_changed(self.ref, result, "report progress of", "progress ends with the job")
        self._record.progress = data
        if self._on_progress is not None:
            self._on_progress(self, progress)

    async def update_data(self, data: Any) -> None:
        """Replace the payload of a pending job, or of the running one by its own handler."""
        payload = self._codecs.change(self._record, pack_data(data), self._queue.app.max_payload_bytes)
        await self._change(
            "change the data of", rq.ChangeJob(ref=self.ref, token=self._token(), payload=payload)
        )
        self._record.payload = payload
        self._call = None

    async def stream(self, *chunks: Any) -> None:
        """Put out live: ``queue.read_stream(job.id)`` sees each chunk, in order, as it comes.

        Any JSON value. 10,000 chunks or 16 MB are kept with the job; a lost reply doubles nothing.
        """
        token = self._token()
        if token is None:
            raise IllegalTransitionError(self.id, self.state, "stream from", "only its running attempt may")
        write, limit = self._codecs.write_chunk, self._queue.app.max_payload_bytes
        data = [write(self._record, chunk, limit) for chunk in chunks]
        first = self._streamed + 1
        self._streamed += len(data)
        # One after the other: the store numbers them in the order in which they come.
        before, self._streaming = self._streaming, asyncio.get_running_loop().create_future()
        mine = self._streaming
        try:
            if before is not None:
                await before
            for start in range(0, len(data), _CHUNKS):
                part = data[start : start + _CHUNKS]
                request = sm.AppendStream(ref=self.ref, token=token, first=first + start, chunks=part)
                check_changed(self.ref, await self._repeated(request), "stream from")
        finally:
            mine.set_result(None)

    async def _repeated(self, request: rq.Request[rq.ChangeResult]) -> rq.ChangeResult:
        """Send a request that may be repeated; a short failure is ridden out."""
        for pause_ms in _REPEAT_AFTER_MS:
            try:
                return await self._queue.store.execute(request)
            except StorageError:
                await SYSTEM_CLOCK.wait(asyncio.Event(), pause_ms)
        return await self._queue.store.execute(request)

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

    def suspend(self, signal: str, timeout: float | timedelta | None = None) -> NoReturn:
        """End this run until the signal comes or ``timeout`` passed; raises ``Suspend``."""
        raise Suspend(signal, timeout)

    @property
    def sync(self) -> HeldJob:
        """The verbs of a running handler for plain functions: ``current_job().sync.log("...")``."""
        return HeldJob(self)

    def discard(self) -> None:
        """Allow no more retries: if this attempt fails, the job has failed."""
        self.discarded = True

    async def move_to_failed(self, error: BaseException | str, reason: str = "failed_by_hand") -> None:
        """End the running attempt as failed, now and for good. Later results of it are ignored."""
        token = self._token()
        if token is None:
            raise IllegalTransitionError(
                self.id, self.state, "fail", "only its running attempt may; use cancel"
            )
        failure = error_info(type(error).__name__ if isinstance(error, BaseException) else "Failed", error)
        brief = self._queue.app.messages.brief(failure.message)
        end = Settlement(
            queue=self.queue_name,
            id=self.id,
            token=token,
            outcome=Outcome.FAIL,
            error=msgspec.structs.replace(failure, brief=brief),
            reason=to_reason(reason),
        )
        result = await self._queue.store.execute(rq.Settle(items=[end]))
        if result.items[0] is Settled.GONE:
            raise JobNotFoundError(self.queue_name, self.id)
        if result.items[0] is Settled.LOST:
            raise LeaseLostError(self.queue_name, self.id)

    def complete_in_transaction(self, connection: Any, result: ResultT | None = None) -> None:
        """Complete this job inside the open transaction of the handler's own database connection.

        What the handler wrote and the completion commit together, or neither does: at least once becomes
        once, for effects in that database. Call it last in the handler, then commit; what the handler returns
        after that does not count. ``LeaseLostError`` when another worker has the job by now: roll back. Only
        for stores that are a database the application can open; see ``Queue.add_in_transaction``.
        """
        store = self._queue.store
        store.capabilities.require(store.name, "transactions", "return from the handler after the commit")
        record = self._record
        if not self._held:
            raise ConfigError("complete_in_transaction", "called by the job's own handler")
        data = self._codecs.write_result(record, result)
        end = Settlement(
            queue=record.queue, id=record.id, token=record.token or "", outcome=Outcome.COMPLETE, result=data
        )
        backend = cast("TransactionalBackend", store.backend)
        if backend.settle_in_transaction(connection, [end])[0] is not Settled.OK:
            raise LeaseLostError(self.queue_name, self.id)

    def _token(self) -> str | None:
        return self._record.token if self._held else None

    # --- what it waits for -------------------------------------------------------------------------------

    async def get_dependencies(self) -> list[Edge]:
        """The edges to the jobs that this one waits for, or waited for."""
        return (await self._edges(values=False)).depends_on

    async def get_dependents(self) -> list[Edge]:
        """The edges from jobs that wait for this one, or waited for it (1,000 at most)."""
        return (await self._edges(values=False)).dependents

    async def get_children_values(self) -> dict[str, Any]:
        """The results of the jobs that this one waited for and that completed: ``"queue:id"`` -> value.

        In the order in which the edges were made. They are kept with this job, whatever became of the
        children's own records.
        """
        return {
            f"{edge.child.queue}:{edge.child.id}": self._codecs.edge_value(edge)
            for edge in (await self._edges()).depends_on
            if edge.status is EdgeStatus.DONE
        }

    async def get_failed_children(self) -> dict[str, str]:
        """Why jobs that this one waited for did not complete: ``"queue:id"`` -> reason and error."""
        return {
            f"{edge.child.queue}:{edge.child.id}": f"{edge.reason}: {edge.error}"
            if edge.error
            else edge.reason
            for edge in (await self._edges(values=False)).depends_on
            if edge.status in (EdgeStatus.FAILED, EdgeStatus.IGNORED)
        }

    async def _edges(self, *, values: bool = True) -> fl.Dependencies:
        request = fl.GetDependencies(refs=[self.ref], values=values)
        return (await self._queue.store.execute(request))[0]

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
