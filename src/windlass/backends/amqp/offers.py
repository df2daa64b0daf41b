"""Offers: an idle worker starts a job when its message arrives, without a claim.

A worker that serves one queue, found it empty and now listens is offered each message that its idle consumer
receives (see ``intake``). If it has a free slot, it starts the job at once. Otherwise the message waits for a
claim, like any other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

from windlass.backend import requests as rq
from windlass.backend.hub import Hub, HubListener, worker_and_queue
from windlass.backends.amqp.timing import says_time
from windlass.core.clock import SYSTEM_CLOCK, Clock
from windlass.core.job import JobRecord

log = logging.getLogger("windlass.amqp")

Begin = Callable[[JobRecord, float], bool]


class Offer:
    """A job that is offered to a worker. ``answered`` gets whether the worker began it."""

    __slots__ = ("_ticket", "answered", "job", "since_ms")

    def __init__(self, job: JobRecord, answered: Callable[[bool], None]) -> None:
        self.job = job
        self.answered = answered
        #: When its lease began, by the monotonic clock.
        self.since_ms = SYSTEM_CLOCK.monotonic_ms()
        # The one that pops the ticket decides: the worker, or the timeout that withdraws the offer.
        self._ticket = [True]

    def take(self) -> bool:
        """Take the right to answer, from any thread. False when another thread has taken it."""
        try:
            return self._ticket.pop()
        except IndexError:
            return False


class OfferTimeouts:
    """Withdraws offers that a worker does not answer in time, because its event loop is blocked.

    All offers share one timer, to wake the connection's thread less often.
    """

    def __init__(self, call_later: Callable[[float, Callable[[], None]], object], seconds: float) -> None:
        self._call_later = call_later
        self._seconds = seconds
        #: The oldest first. Answered offers stay until their time is over.
        self._open: deque[Offer] = deque()
        self._timed = False

    def add(self, offer: Offer) -> None:
        """Withdraw ``offer`` when its time is over."""
        self._open.append(offer)
        self._set_timer()

    def _set_timer(self) -> None:
        if not self._timed:
            self._timed = True
            self._call_later(self._seconds, self.check)

    def check(self) -> None:
        """Withdraw late offers; check again later if there are others."""
        self._timed = False
        last_ms = SYSTEM_CLOCK.monotonic_ms() - self._seconds * 1_000
        while self._open and self._open[0].since_ms <= last_ms:
            offer = self._open.popleft()
            if offer.take():
                offer.answered(False)
        if self._open:
            self._set_timer()


class Offers:
    """The workers of this process that may get offers, by queue. Usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, list[WorkerListener]] = {}

    def listen(self, hub: Hub, topics: Iterable[str]) -> HubListener | WorkerListener:
        """Make a listener for ``topics``. The listener of a worker with one queue also gets offers."""
        inner = hub.listen(topics)
        place = worker_and_queue(inner.topics)
        if place is None:
            return inner
        listener = WorkerListener(self, inner, *place)
        with self._lock:
            self._listeners.setdefault(listener.queue, []).append(listener)
        return listener

    def forget(self, listener: WorkerListener) -> None:
        with self._lock:
            listeners = self._listeners.get(listener.queue, [])
            if listener in listeners:
                listeners.remove(listener)
            if not listeners:
                self._listeners.pop(listener.queue, None)

    def claimed(self, claim: rq.Claim, count: int) -> None:
        """Note that a claim was answered with ``count`` jobs: an idle worker may get offers from now on.

        But not if the claim carries a time: offered jobs start by the clock of this machine.
        """
        with self._lock:
            found = [one for item in claim.queues for one in self._listeners.get(item.name, ())]
        for listener in found:
            if listener.worker == claim.worker:
                listener.set_free_slots(claim.limit - count if claim.idle and not says_time(claim) else 0)
                listener.lease_ms = claim.lease_ms

    def find(self, queue: str) -> WorkerListener | None:
        """A worker with a free slot for a job of ``queue``, or None."""
        with self._lock:
            return next((one for one in self._listeners.get(queue, ()) if one.is_open), None)

    def free_slots(self, queue: str) -> int:
        """How many jobs of ``queue`` the idle workers can start."""
        with self._lock:
            return sum(one.free_slots for one in self._listeners.get(queue, ()) if one.is_open)


class OfferedSlot:
    """The slot of a worker that an offered job takes."""

    __slots__ = ("_claims", "_listener")

    def __init__(self, listener: WorkerListener) -> None:
        self._listener = listener
        self._claims = listener.claims

    def release(self) -> None:
        """Allow another offer, because the job has ended. After a claim its answer says how many slots are
        free."""
        if self._listener.claims == self._claims:
            self._listener.free_slots += 1


class WorkerListener:
    """See ``backend.protocol.OfferedListener``."""

    def __init__(self, offers: Offers, inner: HubListener, worker: str, queue: str) -> None:
        self._offers = offers
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._begin: Begin | None = None
        self.topics = inner.topics
        self.worker = worker
        self.queue = queue
        #: How many jobs may be offered now, and their lease.
        self.free_slots = 0
        self.lease_ms = 0
        #: How often ``free_slots`` was set.
        self.claims = 0

    @property
    def is_open(self) -> bool:
        return self.free_slots > 0 and self._begin is not None

    def set_free_slots(self, count: int) -> None:
        """Note how many jobs may be offered. Offered jobs that have not ended yet are not counted."""
        self.claims += 1
        self.free_slots = count

    def offer(self, job: JobRecord, answered: Callable[[bool], None]) -> Offer:
        """Offer a job to the worker. ``answered`` is called on the worker's loop with whether it began."""
        self.free_slots -= 1
        offer = Offer(job, answered)
        try:
            self._loop.call_soon_threadsafe(self._deliver_offer, offer)
        except RuntimeError:  # the loop was closed without closing its listener
            self.close()
        return offer

    def _deliver_offer(self, offer: Offer) -> None:
        if not offer.take():
            return
        began = False
        try:
            began = self._begin is not None and self._begin(offer.job, offer.since_ms)
        except Exception:
            log.exception("a worker could not begin a job that it was offered")
        offer.answered(began)

    def on_offer(self, begin: Begin) -> None:
        self._begin = begin

    def decline(self) -> None:
        self.set_free_slots(0)

    async def wait(self, timeout_ms: float | None = None, clock: Clock = SYSTEM_CLOCK) -> frozenset[str]:
        return await self._inner.wait(timeout_ms, clock)

    def wake(self) -> None:
        self._inner.wake()

    def close(self) -> None:
        self._begin = None
        self._offers.forget(self)
        self._inner.close()
