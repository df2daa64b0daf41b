"""Waiting for jobs to finish, for any number of waiters at the cost of one.

Subscribe, then read, then wait for a hint, with a slow re-check behind it (1 s, growing to 5 s). All
waiters of a queue on one event loop share a listener and one batched read; it stays for a moment after the
last of them, since whoever calls once often calls again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from windlass.backend import requests as rq
from windlass.core.job import JobRecord, JobRef
from windlass.core.states import FINISHED
from windlass.errors import JobNotFoundError, StorageError, WaitTimeoutError, WindlassError

if TYPE_CHECKING:
    from windlass.backend.store import Store

FIRST_RECHECK_MS = 1_000
LAST_RECHECK_MS = 5_000
_BATCH = 500

_Future = asyncio.Future[JobRecord]


class Waiters:
    """Everyone who waits for jobs of one queue on one event loop."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue
        #: job id -> its waiters, and whether each has seen the job exist
        self._waiting: dict[str, dict[_Future, bool]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._watching = asyncio.Event()

    async def finished(self, ref: JobRef, timeout_ms: float | None) -> JobRecord:
        """The record of ``ref`` once it finished."""
        future = await self.subscribe(ref.id)
        try:
            return await self.outcome(ref, future, timeout_ms)
        finally:
            self.unsubscribe(ref.id, future)

    async def subscribe(self, job_id: str) -> _Future:
        """Begin to listen for ``job_id``, which need not exist yet."""
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
        waiting = self._waiting.get(job_id)
        if waiting is not None:
            waiting.pop(future, None)
            if not waiting:
                del self._waiting[job_id]
        if future.done() and not future.cancelled():
            future.exception()  # seen: nobody else will look

    async def outcome(
        self, ref: JobRef, future: _Future, timeout_ms: float | None, *, added: bool = False
    ) -> JobRecord:
        """Read once, then wait for ``future``. ``added``: the job was added after ``subscribe``, so its end
        cannot have gone unheard and nothing needs to be read."""
        if future.done():
            return future.result()
        if not added:
            record = await self._store.get(ref)
            if record is None:
                raise JobNotFoundError(ref.queue, ref.id)
            if record.state in FINISHED:
                return record
        self._waiting[ref.id][future] = True
        done = asyncio.Event()
        future.add_done_callback(lambda _: done.set())
        if not await self._store.clock.wait(done, timeout_ms):
            raise WaitTimeoutError(ref.id, (timeout_ms or 0) / 1000)
        return future.result()

    async def close(self) -> None:
        """Stop watching; whoever still waits is cancelled."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None

    async def _run(self) -> None:
        try:
            listener = await self._store.listen([f"done:{self._queue}"])
        except WindlassError as exc:
            self._fail_all(exc)
            return
        finally:
            self._watching.set()
        recheck_ms = FIRST_RECHECK_MS
        try:
            while True:
                touched = await listener.wait(recheck_ms, self._store.clock)
                recheck_ms = FIRST_RECHECK_MS if touched else min(recheck_ms * 2, LAST_RECHECK_MS)
                ids = list(self._waiting)
                if not ids and not touched:
                    return  # nobody came back
                with suppress(StorageError):  # the store is away: look again at the next re-check
                    for start in range(0, len(ids), _BATCH):
                        await self._check(ids[start : start + _BATCH])
        finally:
            listener.close()

    def _fail_all(self, error: WindlassError) -> None:
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)

    async def _check(self, ids: list[str]) -> None:
        # What is read may be older than who begins to wait, or sees their job added, while this is under way:
        # the former are told nothing, the latter not that their job does not exist.
        asked = [dict(self._waiting.get(job_id, {})) for job_id in ids]
        records = await self._store.execute(rq.GetJobs(refs=[JobRef(self._queue, job_id) for job_id in ids]))
        for job_id, futures, record in zip(ids, asked, records, strict=True):
            waiting = self._waiting.get(job_id, {})
            for future, existed in futures.items():
                if future.done() or future not in waiting:
                    continue
                if record is not None and record.state in FINISHED:
                    future.set_result(record)
                elif record is None and existed:
                    future.set_exception(JobNotFoundError(self._queue, job_id))
