"""Keep leases alive, from where no handler can get in the way.

In production the keeper runs on its own thread with its own event loop and its own client of the store: a
handler that blocks the worker's loop does not cost it its jobs. (Code that holds the interpreter lock past
its lease can: that is what ``isolation="process"`` is for.) Under a driven clock it runs on the worker's
loop, so that tests stay in charge of time.

A lease that could not be renewed until its deadline by *this process's* monotonic clock is lost: the
handler is stopped without asking the store, which may be out of reach.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import JobRecord
from windlass.core.outcome import Extended
from windlass.core.probe import reach
from windlass.errors import StorageError

log: Final = logging.getLogger("windlass.worker")

_BATCH = 1_000
#: After a failed renewal, try again so soon.
_RETRY_MS = 500
#: With nothing to renew the keeper looks again so often. A lease that needs it no sooner is simply found
#: then: waking another thread for every job would cost more than all the rest of holding it.
_IDLE_MS = 5_000
_THIRD = 1 / 3


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
    def lease(self) -> rq.LeaseRef:
        return rq.LeaseRef(self.record.queue, self.record.id, self.token, self.lease_ms)


class LeaseKeeper:
    """Renews every lease it was told to hold at a third of its time.

    ``on_lost(token)`` and ``on_cancel(token)`` are called on the worker's loop.
    """

    def __init__(
        self, store: Store, *, on_lost: Callable[[str], None], on_cancel: Callable[[str], None]
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self._held: dict[str, _Held] = {}
        self._worker_loop = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._next_ms = float("inf")
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def hold(self, token: str, record: JobRecord, lease_ms: int, since_ms: float) -> None:
        """Keep the lease of a job, granted by a request that was sent at ``since_ms`` (monotonic)."""
        self._held[token] = _Held(token, record, lease_ms, since_ms + lease_ms)
        if since_ms + lease_ms * _THIRD < self._next_ms:
            self._call(self._nudge)

    def drop(self, token: str) -> bool:
        """Let go of a lease; False when it was already lost."""
        return self._held.pop(token, None) is not None

    @property
    def tokens(self) -> list[str]:
        return list(self._held)

    async def start(self) -> None:
        """Begin renewing."""
        if self._clock.driven:
            self._task = asyncio.create_task(self._run(), name="windlass-leases")
            return
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._thread_main, args=(started,), name="windlass-leases", daemon=True
        )
        self._thread.start()
        await asyncio.to_thread(started.wait)

    async def stop(self) -> None:
        """Stop renewing and let go of the keeper's own client. Idempotent."""
        self._stopping = True
        self._call(self._nudge)
        if self._task is not None:
            await self._task
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _thread_main(self, started: threading.Event) -> None:
        asyncio.run(self._run(started))

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

    async def _run(self, started: threading.Event | None = None) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        store = self._store if self._clock.driven else self._store.clone()
        if started is not None:
            started.set()
        try:
            while not self._stopping:
                wait_ms = self._wait_ms()
                if not self._clock.driven:
                    wait_ms = min(wait_ms, _IDLE_MS)
                self._next_ms = self._clock.monotonic_ms() + wait_ms
                await self._clock.wait(self._wake, None if wait_ms == float("inf") else wait_ms)
                self._wake.clear()
                if not self._stopping:
                    await self._renew_due(store)
        finally:
            if store is not self._store:
                await store.close()

    def _wait_ms(self) -> float:
        """Time until the first lease has used up a third."""
        now = self._clock.monotonic_ms()
        first = min(
            (held.renew_ms for held in list(self._held.values())),
            default=float("inf"),
        )
        return max(first - now, 0)

    async def _renew_due(self, store: Store) -> None:
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
            self._not_renewed(due, exc)
            await self._clock.wait(asyncio.Event(), _RETRY_MS)
            return
        for held, answer in zip(due, answers, strict=True):
            if answer is Extended.LOST:
                self._lose(held)
                continue
            held.deadline_ms = sent_ms + held.lease_ms
            if answer is Extended.CANCELLING:
                self._tell(self._on_cancel, held.token)

    def _not_renewed(self, due: list[_Held], exc: StorageError) -> None:
        log.warning("could not renew %d leases, trying again: %s", len(due), exc)
        now = self._clock.monotonic_ms()
        for held in due:
            if held.deadline_ms <= now:
                self._lose(held)

    def _lose(self, held: _Held) -> None:
        if self.drop(held.token):
            self._tell(self._on_lost, held.token)

    def _tell(self, callback: Callable[[str], None], token: str) -> None:
        try:
            self._worker_loop.call_soon_threadsafe(callback, token)
        except RuntimeError:  # the worker's loop is gone, and its handlers with it
            return
