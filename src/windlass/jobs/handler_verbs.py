"""The methods of a job for its own handler: report, stream, suspend, end early.

They write with the lease of the running attempt, and raise ``LeaseLostError`` once there is a newer lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

import msgspec

from windlass.backend import requests as rq
from windlass.backend import stream_requests as sm
from windlass.backend.store import check_changed
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import LOG_LEVELS, LOG_LINE_CHARS, LogLevel, error_info
from windlass.core.outcome import Outcome, Settled, Settlement, to_reason
from windlass.core.text import clean_text
from windlass.errors import (
    ConfigError,
    IllegalTransitionError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
    Suspend,
)
from windlass.jobs.fields import RecordFields

if TYPE_CHECKING:
    from windlass.backend.protocol import TransactionalBackend
    from windlass.jobs.interfaces import JobQueue

ResultT = TypeVar("ResultT")

#: The maximum number of chunks per request, and the pauses before a failed request is repeated.
_CHUNKS = 500
_REPEAT_AFTER_MS = (20, 100, 500)


class HandlerVerbs(RecordFields, Generic[ResultT]):
    """The part of ``Job`` for the handler that runs it."""

    __slots__ = ("_held", "_on_progress", "_queue", "_streamed", "_streaming", "discarded")

    _queue: JobQueue
    #: Whether this is the job of a running handler, which holds its lease.
    _held: bool
    _on_progress: Callable[[Any, Any], None] | None
    _streamed: int
    _streaming: asyncio.Future[None] | None
    #: Inside a handler: True after ``discard()``.
    discarded: bool

    async def log(self, line: str, level: LogLevel = "info") -> None:
        """Store a log line with the job, for ``queue.get_job_logs`` and the dashboard.

        The store adds the time, the attempt and the run.
        """
        if level not in LOG_LEVELS:
            raise ConfigError("level", f"one of {', '.join(LOG_LEVELS)}", level)
        text = clean_text(line, LOG_LINE_CHARS)
        result = await self._queue.store.execute(
            rq.Report(ref=self.ref, token=self._token(), logs=[text], level=level)
        )
        check_changed(self.ref, result, "log to")

    async def update_progress(self, progress: Any) -> None:
        """Report progress, as any JSON value. 0..100 and ``{"current", "total"}`` are shown as bars.

        A handler writes with its lease. Other callers may report progress of any job that has not ended. The
        last value counts.
        """
        data = self._codecs.write_progress(self._record, progress, self._queue.app.max_payload_bytes)
        result = await self._queue.store.execute(rq.Report(ref=self.ref, token=self._token(), progress=data))
        check_changed(self.ref, result, "report progress of", "progress ends with the job")
        self._record.progress = data
        if self._on_progress is not None:
            self._on_progress(self, progress)

    async def stream(self, *chunks: Any) -> None:
        """Write live output. ``queue.read_stream(job.id)`` receives each chunk, in order.

        A chunk is any JSON value. 10,000 chunks or 16 MB are kept with the job. A lost reply does not
        duplicate chunks.
        """
        token = self._token()
        if token is None:
            raise IllegalTransitionError(self.id, self.state, "stream from", "only its running attempt may")
        write, limit = self._codecs.write_chunk, self._queue.app.max_payload_bytes
        data = [write(self._record, chunk, limit) for chunk in chunks]
        first = self._streamed + 1
        self._streamed += len(data)
        # Calls wait for each other, because the store numbers chunks in the order in which they arrive.
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
        """Send an idempotent request, and repeat it after a failure."""
        for pause_ms in _REPEAT_AFTER_MS:
            try:
                return await self._queue.store.execute(request)
            except StorageError:
                await SYSTEM_CLOCK.wait(asyncio.Event(), pause_ms)
        return await self._queue.store.execute(request)

    def suspend(self, signal: str, timeout: float | timedelta | None = None) -> NoReturn:
        """End this run until the signal comes or ``timeout`` has passed, by raising ``Suspend``."""
        raise Suspend(signal, timeout)

    def discard(self) -> None:
        """Allow no more retries: if this attempt fails, the job fails."""
        self.discarded = True

    async def move_to_failed(self, error: BaseException | str, reason: str = "failed_by_hand") -> None:
        """End the running attempt as failed, without a retry. Its later result is ignored."""
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
        """Complete this job in the open transaction of the handler's own database connection.

        The writes of the handler and the completion commit together, or neither does. So effects in that
        database happen exactly once. Call this last in the handler, then commit; the handler's return value
        is ignored. Raises ``LeaseLostError`` when another worker has the job by now; then roll back. Only for
        stores that are a database the application can open; see ``Queue.add_in_transaction``.
        """
        store = self._queue.store
        store.capabilities.require(store.name, "transactions", "return from the handler after the commit")
        record = self._record
        if not self._held:
            raise ConfigError(
                "complete_in_transaction",
                message="complete_in_transaction can be called only in the job's own handler",
            )
        data = self._codecs.write_result(record, result)
        end = Settlement(
            queue=record.queue, id=record.id, token=record.token or "", outcome=Outcome.COMPLETE, result=data
        )
        backend = cast("TransactionalBackend", store.backend)
        if backend.settle_in_transaction(connection, [end])[0] is not Settled.OK:
            raise LeaseLostError(self.queue_name, self.id)

    def _token(self) -> str | None:
        return self._record.token if self._held else None
