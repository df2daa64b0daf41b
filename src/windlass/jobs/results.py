"""Waiting for jobs to finish. Any number of waiters costs as much as one.

A waiter subscribes, reads the job once, then waits for a hint. A slow re-check (1 s, growing to 5 s) covers
lost hints. All waiters of a queue on one event loop share a listener and batched reads. The listener stays
open for a moment after the last waiter, since a caller that waited once often waits again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from windlass.backend import requests as rq
from windlass.backend.protocol import AwaitingListener
from windlass.core.job import Completed, JobRecord, JobRef
from windlass.core.lasting_task import LastingTask
from windlass.core.states import FINISHED, JobState
from windlass.errors import JobNotFoundError, StorageError, WaitTimeoutError, WindlassError

if TYPE_CHECKING:
    from windlass.backend.protocol import Listener
    from windlass.backend.store import Store

FIRST_RECHECK_MS = 1_000
MAX_RECHECK_MS = 5_000
_BATCH = 500
#: A completion without details, which may concern an earlier job of the same id. Older than any new job.
_UNKNOWN = Completed("", None, -1, -1, "")

_Future = asyncio.Future[JobRecord]


class Waiters:
    """All waiters for jobs of one queue on one event loop."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue
        #: Waiters by job id, and whether each has seen that the job exists.
        self._waiting: dict[str, dict[_Future, bool]] = {}
        #: The added jobs of waiters that only need the completion, not the whole record.
        self._added: dict[_Future, JobRecord] = {}
        #: Completions that came before the waiter's own add or read was answered.
        self._early: dict[_Future, Completed] = {}
        self._watch: LastingTask | None = None
        self._watching = asyncio.Event()
        self._listener: Listener | None = None
        self._notified = False
        #: The error of new waiters after a close.
        self._ended: WindlassError | None = None

    async def finished(self, ref: JobRef, timeout_ms: float | None) -> JobRecord:
        """Wait until ``ref`` has finished and return its record."""
        future = await self.subscribe(ref.id)
        try:
            return await self.outcome(ref, future, timeout_ms)
        finally:
            self.unsubscribe(ref.id, future)

    async def subscribe(self, job_id: str) -> _Future:
        """Start to listen for ``job_id``, which need not exist yet. Returns the future to pass to
        ``outcome``.
        """
        if self._ended is not None:
            raise self._ended
        future: _Future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, {})[future] = False
        if self._watch is None or self._watch.over.done():
            self._watching.clear()
            self._watch = LastingTask(f"wait-{self._queue}", self._run, self._store.clock)
        try:
            await self._watching.wait()
        except BaseException:
            self.unsubscribe(job_id, future)
            raise
        return future

    def unsubscribe(self, job_id: str, future: _Future) -> None:
        """Stop listening for ``job_id`` with this future."""
        self._added.pop(future, None)
        self._early.pop(future, None)
        waiting = self._waiting.get(job_id)
        if waiting is not None:
            waiting.pop(future, None)
            if not waiting:
                del self._waiting[job_id]
        if future.done() and not future.cancelled():
            future.exception()  # mark the exception as retrieved

    async def outcome(
        self,
        ref: JobRef,
        future: _Future,
        timeout_ms: float | None,
        *,
        added: JobRecord | None = None,
        there: bool = False,
    ) -> JobRecord:
        """Read the job once, then wait for ``future``.

        ``added`` is a job that was added after ``subscribe``. Its completion cannot have been missed, so it
        need not be read. ``there``: the job had not ended when the waiter subscribed, so the waiter gets the
        result even if it has expired since. Raises ``WaitTimeoutError`` and ``JobNotFoundError``.
        """
        if future.done():
            return future.result()
        early = self._early.pop(future, None)
        if added is not None and early is not None and early.started_ms >= added.enqueued_ms:
            return _completed(added, early)
        if added is not None:
            self._added[future] = added
        else:
            record = (await self._store.execute(rq.GetJobs(refs=[ref], late=there)))[0]
            if record is None:
                raise JobNotFoundError(ref.queue, ref.id)
            if record.state in FINISHED:
                return record
        self._waiting[ref.id][future] = True
        if self._early.pop(future, early) is not None and self._listener is not None:
            self._listener.wake()  # read the job again: the early completion may concern another one
        try:
            async with self._store.clock.timeout(timeout_ms):
                return await future
        except TimeoutError as exc:
            raise WaitTimeoutError(ref.id, (timeout_ms or 0) / 1000) from exc

    async def close(self, error: WindlassError) -> None:
        """Stop listening. All pending waits raise ``error``."""
        watch = self._watch
        self.end(error)
        if watch is not None:
            await watch.stop()

    def end(self, error: WindlassError) -> None:
        """Like ``close``, without waiting for the listener."""
        self._ended = error
        self._fail_all(error)
        self._watching.set()  # releases callers that wait for the listener
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _run(self) -> None:
        try:
            await self._listen()
        except Exception as exc:  # closed, or a damaged answer: reading again would not help
            self._fail_all(exc)
        finally:
            self._watching.set()

    async def _listen(self) -> None:
        listener = self._listener = await self._store.listen_completed(self._queue, self._receive)
        if isinstance(listener, AwaitingListener):
            listener.awaits = self._waiting.__contains__
        self._watching.set()
        recheck_ms = FIRST_RECHECK_MS
        try:
            while True:
                touched = bool(await listener.wait(recheck_ms, self._store.clock)) or self._notified
                self._notified = False
                recheck_ms = FIRST_RECHECK_MS if touched else min(recheck_ms * 2, MAX_RECHECK_MS)
                ids = list(self._waiting)
                if not ids and not touched:
                    return  # no waiter for a whole re-check
                with suppress(StorageError):  # unreachable: try again at the next re-check
                    for start in range(0, len(ids), _BATCH):
                        await self._check(ids[start : start + _BATCH])
        finally:
            self._listener = None
            listener.close()

    def _receive(self, news: list[Completed]) -> None:
        """Handle completions that the store sent. Waiters that need the whole record are woken to read it."""
        self._notified = True
        for one in news:
            for future, existed in self._waiting.get(one.id, {}).items():
                added = self._added.get(future)
                if not existed:
                    self._early[future] = one
                elif added is not None and one.started_ms >= added.enqueued_ms:
                    if not future.done():
                        future.set_result(_completed(added, one))
                elif self._listener is not None:
                    self._listener.wake()

    def _fail_all(self, error: Exception) -> None:
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)

    async def _check(self, ids: list[str]) -> None:
        # The answer may be older than waiters that subscribe during the read, so only earlier ones get it. It
        # may also be older than a job that is added during the read. A waiter that had not seen its job yet
        # does not get "not found". A finished record may be an older job of the same id, so it reads again.
        asked = [dict(self._waiting.get(job_id, {})) for job_id in ids]
        refs = [JobRef(self._queue, job_id) for job_id in ids]
        records = await self._store.execute(rq.GetJobs(refs=refs, late=True))
        for job_id, futures, record in zip(ids, asked, records, strict=True):
            waiting = self._waiting.get(job_id, {})
            for future, existed in futures.items():
                if future.done() or future not in waiting:
                    continue
                if record is not None and record.state in FINISHED:
                    if existed:
                        future.set_result(record)
                    elif not waiting[future]:
                        self._early.setdefault(future, _UNKNOWN)
                    elif self._listener is not None:
                        self._listener.wake()  # the job was added during the read: read again
                elif record is None and existed:
                    future.set_exception(JobNotFoundError(self._queue, job_id))


def _completed(added: JobRecord, news: Completed) -> JobRecord:
    """Return the record of an added job that completed at its first attempt."""
    return msgspec.structs.replace(
        added,
        state=JobState.COMPLETED,
        deliveries=1,
        worker=news.worker,
        started_ms=news.started_ms,
        finished_ms=news.finished_ms,
        result=news.result,
    )
