"""Renew leases on a separate thread, and stop handlers whose lease is lost.

The renewal thread has its own event loop and its own client of the store, so that a handler that blocks the
worker's loop does not lose its jobs. (Code that holds the interpreter lock for longer than the lease still
can; ``isolation="process"`` avoids that.)

The worker's loop watches the deadlines, independently of the renewal, by the monotonic clock of this process.
A handler whose lease was not renewed is stopped shortly before the lease ends, without asking the store,
which may be unreachable. So it has ended before another worker can begin the job.
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
#: The keeper checks for new leases at least this often. It is only woken for a lease that is due earlier:
#: waking another thread for every job would cost more than everything else about its lease.
_IDLE_MS = 5_000
_THIRD = 1 / 3
#: How long before the end of its lease a handler is stopped: a fraction of the lease, and a minimum.
_MARGIN, _LEAST_MARGIN_MS = 0.1, 200


def margin_ms(lease_ms: float) -> float:
    """How long before the end of a lease its handler is stopped."""
    return max(lease_ms * _MARGIN, _LEAST_MARGIN_MS)


class _Held(msgspec.Struct, gc=False):
    """A lease and its deadline, by the monotonic clock."""

    token: str
    record: JobRecord
    lease_ms: int
    deadline_ms: float

    @property
    def renew_ms(self) -> float:
        """When a third of the lease is used up."""
        return self.deadline_ms - self.lease_ms * 2 / 3

    @property
    def stop_ms(self) -> float:
        """When the handler is stopped unless the lease was renewed."""
        return self.deadline_ms - margin_ms(self.lease_ms)

    @property
    def lease(self) -> rq.LeaseRef:
        return rq.LeaseRef(self.record.queue, self.record.id, self.token, self.lease_ms)


class LeaseKeeper:
    """Renews every lease that it holds after a third of its time.

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
        #: The renewal thread's loop, and the event that wakes it.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._next_ms = float("inf")
        self._begun = self._stopping = False
        self._started, self._ended = asyncio.Event(), asyncio.Event()

    def hold(self, records: list[JobRecord], lease_ms: int, since_ms: float) -> None:
        """Keep the leases that were granted by a request sent at ``since_ms`` (monotonic).

        ``lease_ms`` is for jobs without their own lease time.
        """
        shortest_ms = lease_ms
        for record in records:
            token, own_ms = record.token or "", record.options.lease_ms or lease_ms
            self._held[token] = _Held(token, record, own_ms, since_ms + own_ms)
            if own_ms < shortest_ms:
                shortest_ms = own_ms
        # All were granted at the same time, so the shortest lease is renewed and stopped first.
        if since_ms + shortest_ms * _THIRD < self._next_ms:
            self._call_renewal_loop(self._wake_renewal)
        stop_ms = since_ms + shortest_ms - margin_ms(shortest_ms)
        if stop_ms < self._next_stop_ms:
            self._next_stop_ms = stop_ms
            self._watch_wake.set()

    def drop(self, token: str) -> bool:
        """Stop renewing a lease; False when it was already lost."""
        return self._held.pop(token, None) is not None

    @property
    def tokens(self) -> list[str]:
        """The tokens of all leases that are held."""
        return list(self._held)

    async def start(self) -> None:
        """Start the renewal thread and the watch of deadlines."""
        self._begun = True
        self._supervisor.start("lease-watch", self._watch)
        self._clock.run_apart("windlass-leases", self._keep_renewing)
        await self._started.wait()

    async def stop(self) -> None:
        """Stop renewing and close the client of the renewal thread. Idempotent."""
        self._stopping = True
        self._held.clear()
        self._call_renewal_loop(self._wake_renewal)
        self._supervisor.release("lease-watch")
        if self._begun:
            await self._ended.wait()

    # --- on the worker's loop: watch deadlines -------------------------------------------------------

    async def _watch(self) -> None:
        """Stop handlers whose lease is about to end."""
        while True:
            now_ms = self._clock.monotonic_ms()
            for held in [held for held in self._held.values() if held.stop_ms <= now_ms]:
                if held.stop_ms <= now_ms:  # otherwise the other thread has just renewed it
                    self._lose(held.token)
            first_ms = min((held.stop_ms for held in self._held.values()), default=float("inf"))
            self._next_stop_ms = first_ms
            wait_ms = None if first_ms == float("inf") else max(first_ms - now_ms, 1)
            await self._clock.wait(self._watch_wake, wait_ms)
            self._watch_wake.clear()

    def _lose(self, token: str) -> None:
        if self.drop(token):
            self._on_lost(token)

    # --- on the renewal thread -----------------------------------------------------------------------

    def _call_renewal_loop(self, step: Callable[[], None]) -> None:
        """Call ``step`` on the loop of the renewal thread, if it runs."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(step)
        except RuntimeError:  # the renewal loop has ended
            return

    def _wake_renewal(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def _keep_renewing(self) -> None:
        """Renew until ``stop``. After an unexpected error, start again with a new client."""
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        self._call_worker_loop(self._started.set)
        try:
            while not self._stopping:
                try:
                    await self._renew_with_a_client()
                except Exception:
                    log.exception("unexpected error while renewing leases; it is tried again")
                    await self._clock.wait(asyncio.Event(), _RETRY_MS)
        finally:
            self._call_worker_loop(self._ended.set)

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
                renewing.cancel()  # a stop abandons a pending call
            await store.close()

    async def _pause(self) -> None:
        """Wait until the first lease is due for renewal."""
        assert self._wake is not None
        now_ms = self._clock.monotonic_ms()
        self._next_ms = float("inf")  # a lease that ``hold`` adds during the search wakes this loop
        first_ms = min((held.renew_ms for held in list(self._held.values())), default=float("inf"))
        wait_ms = min(max(first_ms - now_ms, 0), _IDLE_MS)
        self._next_ms = now_ms + wait_ms
        await self._clock.wait(self._wake, wait_ms)
        self._wake.clear()

    async def _until_done_or_stopping(self, renewing: asyncio.Task[None]) -> None:
        assert self._wake is not None
        renewing.add_done_callback(lambda task: self._wake_renewal())
        while not renewing.done() and not self._stopping:
            await self._wake.wait()
            self._wake.clear()

    async def _renew_due(self, store: Store) -> None:
        if self._worker_loop.is_closed():  # the loop ended without a close, so its leases expire
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
                self._call_worker_loop(self._lose, held.token)
                continue
            held.deadline_ms = sent_ms + held.lease_ms
            if answer is Extended.CANCELLING:
                self._call_worker_loop(self._on_cancel, held.token)

    def _call_worker_loop(self, callback: Callable[..., object], *args: object) -> None:
        """Call ``callback`` on the worker's loop."""
        try:
            self._worker_loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the worker's loop has ended, and so have its handlers
            self._stopping = True
