"""Renew leases on a thread that handlers cannot block, and stop handlers that lost their lease.

Leases are renewed apart from the worker's loop, on a thread with its own event loop and its own client of
the store: a handler that blocks the worker's loop does not cost it its jobs. (Code that holds the
interpreter lock past its lease can: that is what ``isolation="process"`` is for.)

Whether a lease still holds is watched on the worker's loop, apart from the renewing: by *this process's*
monotonic clock, whatever call is pending. A margin before the lease ends the handler is stopped without
asking the store, which may be out of reach, so that it is over before another worker can begin the job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import JobRecord
from windlass.core.outcome import Extended
from windlass.core.probe import reach
from windlass.core.text import printable
from windlass.errors import StorageError
from windlass.worker.supervisor import TaskSupervisor

log: Final = logging.getLogger("windlass.worker")

_BATCH = 1_000
#: How long to wait after a failed renewal.
_RETRY_MS = 500
#: With nothing to renew the keeper looks again so often. A lease that needs it no sooner is simply found
#: then: waking another thread for every job would cost more than all the rest of holding it.
_IDLE_MS = 5_000
_THIRD = 1 / 3
#: A handler is stopped this long before its lease ends: this fraction of it, and at least this much.
_MARGIN, _LEAST_MARGIN_MS = 0.1, 200


def margin_ms(lease_ms: float) -> float:
    """How long before the end of a lease its handler is stopped."""
    return max(lease_ms * _MARGIN, _LEAST_MARGIN_MS)


class _Held(msgspec.Struct):
    token: str
    record: JobRecord
    lease_ms: int
    deadline_ms: float

    @property
    def renew_ms(self) -> float:
        """When a third of its time is used up."""
        return self.deadline_ms - self.lease_ms * 2 / 3

    @property
    def stop_ms(self) -> float:
        """When its handler is stopped unless it was renewed."""
        return self.deadline_ms - margin_ms(self.lease_ms)

    @property
    def lease(self) -> rq.LeaseRef:
        return rq.LeaseRef(self.record.queue, self.record.id, self.token, self.lease_ms)


class LeaseKeeper:
    """Renews every lease that it holds at a third of its time.

    ``on_lost(token)`` and ``on_cancel(token)`` are called on the worker's loop.
    """

    def __init__(
        self,
        store: Store,
        supervisor: TaskSupervisor,
        *,
        on_lost: Callable[[str], None],
        on_cancel: Callable[[str], None],
    ) -> None:
        self._store = store
        self._supervisor = supervisor
        self._clock = store.clock
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self._held: dict[str, _Held] = {}
        self._worker_loop = asyncio.get_running_loop()
        self._watch_wake = asyncio.Event()
        self._next_stop_ms = float("inf")
        #: The renewing side: its loop and what wakes it.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._next_ms = float("inf")
        self._begun = self._stopping = False
        self._started, self._ended = asyncio.Event(), asyncio.Event()

    def hold(self, token: str, record: JobRecord, lease_ms: int, since_ms: float) -> None:
        """Keep the lease of a job, granted by a request that was sent at ``since_ms`` (monotonic)."""
        deadline_ms = since_ms + lease_ms
        self._held[token] = _Held(token, record, lease_ms, deadline_ms)
        if since_ms + lease_ms * _THIRD < self._next_ms:
            self._call(self._nudge)
        stop_ms = deadline_ms - margin_ms(lease_ms)
        if stop_ms < self._next_stop_ms:
            self._next_stop_ms = stop_ms
            self._watch_wake.set()

    def drop(self, token: str) -> bool:
        """Drop a lease; False when it was already lost."""
        return self._held.pop(token, None) is not None

    @property
    def tokens(self) -> list[str]:
        return list(self._held)

    async def start(self) -> None:
        """Begin renewing."""
        self._begun = True
        self._supervisor.start("lease-watch", self._watch)
        self._clock.run_apart("windlass-leases", self._keep_renewing)
        await self._started.wait()

    async def stop(self) -> None:
        """Stop renewing and close the keeper's own client. Idempotent."""
        self._stopping = True
        self._held.clear()
        self._call(self._nudge)
        self._supervisor.release("lease-watch")
        if self._begun:
            await self._ended.wait()

    # --- on the worker's loop: does every lease still hold? ------------------------------------------

    async def _watch(self) -> None:
        while True:
            now_ms = self._clock.monotonic_ms()
            for held in [held for held in self._held.values() if held.stop_ms <= now_ms]:
                if held.stop_ms <= now_ms:  # else it was renewed just now, by the other thread
                    self._lose(held.token)
            first_ms = min((held.stop_ms for held in self._held.values()), default=float("inf"))
            self._next_stop_ms = first_ms
            wait_ms = None if first_ms == float("inf") else max(first_ms - now_ms, 1)
            await self._clock.wait(self._watch_wake, wait_ms)
            self._watch_wake.clear()

    def _lose(self, token: str) -> None:
        if self.drop(token):
            self._on_lost(token)

    # --- renewing, on a thread of its own ------------------------------------------------------------

    def _call(self, step: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(step)
        except RuntimeError:  # the keeper's loop ended meanwhile
            return

    def _nudge(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def _keep_renewing(self) -> None:
        """Renew until it is stopped; whatever goes wrong, begin again."""
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        self._call_soon(self._started.set)
        try:
            while not self._stopping:
                try:
                    await self._renew_with_a_client()
                except Exception:
                    log.exception("renewing leases met an unexpected error and continues")
                    await self._clock.wait(asyncio.Event(), _RETRY_MS)
        finally:
            self._call_soon(self._ended.set)

    async def _renew_with_a_client(self) -> None:
        store = self._store.clone()
        renewing: asyncio.Task[None] | None = None
        try:
            while not self._stopping:
                if renewing is None or renewing.done():
                    await self._pause()
                    renewing = asyncio.create_task(self._renew_due(store))
                await self._until_done_or_stopping(renewing)
                if renewing.done():
                    renewing.result()
        finally:
            if renewing is not None:
                renewing.cancel()  # a call that is still pending at a stop is abandoned
            await store.close()

    async def _pause(self) -> None:
        """Until the first lease has used up a third."""
        assert self._wake is not None
        now_ms = self._clock.monotonic_ms()
        first_ms = min((held.renew_ms for held in list(self._held.values())), default=float("inf"))
        wait_ms = min(max(first_ms - now_ms, 0), _IDLE_MS)
        self._next_ms = now_ms + wait_ms
        await self._clock.wait(self._wake, wait_ms)
        self._wake.clear()

    async def _until_done_or_stopping(self, renewing: asyncio.Task[None]) -> None:
        assert self._wake is not None
        renewing.add_done_callback(lambda task: self._nudge())
        while not renewing.done() and not self._stopping:
            await self._wake.wait()
            self._wake.clear()

    async def _renew_due(self, store: Store) -> None:
        if self._worker_loop.is_closed():  # without a close: the leases of what ran there run out
            self._stopping = True
            return
        now = self._clock.monotonic_ms()
        due = [held for held in list(self._held.values()) if held.renew_ms <= now + 1]
        for start in range(0, len(due), _BATCH):
            await self._renew(store, due[start : start + _BATCH])

    async def _renew(self, store: Store, due: list[_Held]) -> None:
        sent_ms = self._clock.monotonic_ms()
        reach("leases.renewing", count=len(due))
        try:
            answers = await store.execute(rq.Extend(leases=[held.lease for held in due]))
        except StorageError as exc:
            log.warning("could not renew %d leases, retrying: %s", len(due), printable(str(exc)))
            await self._clock.wait(asyncio.Event(), _RETRY_MS)
            return
        for held, answer in zip(due, answers, strict=True):
            if answer is Extended.LOST:
                self._call_soon(self._lose, held.token)
                continue
            held.deadline_ms = sent_ms + held.lease_ms
            if answer is Extended.CANCELLING:
                self._call_soon(self._on_cancel, held.token)

    def _call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Call on the worker's loop."""
        try:
            self._worker_loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the worker's loop has ended, and so have its handlers
            self._stopping = True
