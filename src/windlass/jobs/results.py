"""Waiting for jobs to finish, for any number of waiters at the cost of one.

Subscribe, then read, then wait for a hint, with a slow re-check behind it (1 s, growing to 5 s). All
waiters of a queue on one event loop share a listener and one batched read; it stays for a moment after the
last of them, since a caller that called once often calls again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from windlass.backend import requests as rq
from windlass.core.job import Completed, JobRecord, JobRef
from windlass.core.states import FINISHED, JobState
from windlass.errors import JobNotFoundError, StorageError, WaitTimeoutError, WindlassError

if TYPE_CHECKING:
    from windlass.backend.protocol import Listener
    from windlass.backend.store import Store

FIRST_RECHECK_MS = 1_000
LAST_RECHECK_MS = 5_000
_BATCH = 500
#: Received about a job before it is known what it was about: older than any job that is added now.
_SOMETHING = Completed("", None, -1, -1, "")

_Future = asyncio.Future[JobRecord]


class Waiters:
    """All waiters for jobs of one queue on one event loop."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue
        #: job id -> its waiters, and whether each has seen the job exist
        self._waiting: dict[str, dict[_Future, bool]] = {}
        #: Jobs as they were added, for those whose waiters want to know nothing but how they ended.
        self._added: dict[_Future, JobRecord] = {}
        #: What was received about jobs before the caller that adds them, or looks at them, had an answer.
        self._early: dict[_Future, Completed] = {}
        self._watch: asyncio.Task[None] | None = None
        self._watching = asyncio.Event()
        self._listener: Listener | None = None
        self._heard = False
        #: The error that new waiters get after a close.
        self._ended: WindlassError | None = None

    async def finished(self, ref: JobRef, timeout_ms: float | None) -> JobRecord:
        """The record of ``ref`` once it finished."""
        future = await self.subscribe(ref.id)
        try:
            return await self.outcome(ref, future, timeout_ms)
        finally:
            self.unsubscribe(ref.id, future)

    async def subscribe(self, job_id: str) -> _Future:
        """Begin to listen for ``job_id``, which need not exist yet."""
        if self._ended is not None:
            raise self._ended
        future: _Future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, {})[future] = False
        if self._watch is None or self._watch.done():
            self._watching.clear()
            self._watch = asyncio.create_task(self._run(), name=f"windlass-wait-{self._queue}")
        try:
            await self._watching.wait()
        except BaseException:
            self.unsubscribe(job_id, future)
            raise
        return future

    def unsubscribe(self, job_id: str, future: _Future) -> None:
        self._added.pop(future, None)
        self._early.pop(future, None)
        waiting = self._waiting.get(job_id)
        if waiting is not None:
            waiting.pop(future, None)
            if not waiting:
                del self._waiting[job_id]
        if future.done() and not future.cancelled():
            future.exception()  # seen: no other code will look

    async def outcome(
        self,
        ref: JobRef,
        future: _Future,
        timeout_ms: float | None,
        *,
        added: JobRecord | None = None,
        there: bool = False,
    ) -> JobRecord:
        """Read once, then wait for ``future``.

        ``added``: the job, which was added after ``subscribe``. Its end cannot have gone unheard, so nothing
        needs to be read, and how it ended is all that is asked for. ``there``: the job had not ended when its
        waiter subscribed, who gets its result also past its time.
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
            self._listener.wake()  # it is not known what that was about
        try:
            async with self._store.clock.timeout(timeout_ms):
                return await future
        except TimeoutError as exc:
            raise WaitTimeoutError(ref.id, (timeout_ms or 0) / 1000) from exc

    async def close(self, error: WindlassError) -> None:
        """Stop watching; every wait under way raises ``error``."""
        watch = self._watch
        self.end(error)
        if watch is not None:
            with suppress(asyncio.CancelledError):
                await watch

    def end(self, error: WindlassError) -> None:
        """What ``close`` does, except for waiting until it is done."""
        self._ended = error
        self._fail_all(error)
        self._watching.set()  # a watch that has not begun yet never will
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _run(self) -> None:
        try:
            await self._listen()
        except WindlassError as exc:  # closed, say: there is no use in looking again
            self._fail_all(exc)
        finally:
            self._watching.set()

    async def _listen(self) -> None:
        listener = self._listener = await self._store.listen_completed(self._queue, self._receive)
        self._watching.set()
        recheck_ms = FIRST_RECHECK_MS
        try:
            while True:
                touched = bool(await listener.wait(recheck_ms, self._store.clock)) or self._heard
                self._heard = False
                recheck_ms = FIRST_RECHECK_MS if touched else min(recheck_ms * 2, LAST_RECHECK_MS)
                ids = list(self._waiting)
                if not ids and not touched:
                    return  # no waiter came back
                with suppress(StorageError):  # the store is unreachable: look again at the next re-check
                    for start in range(0, len(ids), _BATCH):
                        await self._check(ids[start : start + _BATCH])
        finally:
            self._listener = None
            listener.close()

    def _receive(self, news: list[Completed]) -> None:
        """The store sent how some jobs completed. A waiter that needs more than that has to look."""
        self._heard = True
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

    def _fail_all(self, error: WindlassError) -> None:
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)

    async def _check(self, ids: list[str]) -> None:
        # What is read may be older than who begins to wait, or sees their job added, while this is under way:
        # the former receive nothing, the latter not that their job does not exist. Those who have not seen
        # their job yet look for themselves, or have it looked at again: it may be an older one of that id.
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
                        self._early.setdefault(future, _SOMETHING)
                    elif self._listener is not None:
                        self._listener.wake()  # seen meanwhile: look once more
                elif record is None and existed:
                    future.set_exception(JobNotFoundError(self._queue, job_id))


def _completed(added: JobRecord, news: Completed) -> JobRecord:
    """A job that was added and completed at its first attempt."""
    return msgspec.structs.replace(
        added,
        state=JobState.COMPLETED,
        deliveries=1,
        worker=news.worker,
        started_ms=news.started_ms,
        finished_ms=news.finished_ms,
        result=news.result,
    )
