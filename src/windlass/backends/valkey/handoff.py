"""Direct handoff: the server leases a job to an idle worker before the worker claims one.

``lua/includes/78_handoff.lua`` is the server's side. An idle worker that serves one queue registers with its
claim. The server leases the next job to it and publishes the job on the worker's channel. The job waits here
until the worker claims; that claim is answered without a call to the server.

A message may be lost or late, so nothing depends on it. The next claim that reaches the server ends the
registration, and its answer contains the job that was leased under it. A registration is identified by the id
of its claim; messages about a registration that has ended are ignored. A job that the worker does not claim
in time is released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from windlass.backend import requests as rq
from windlass.backends.valkey import records, settlements
from windlass.backends.valkey.codes import GIVEN, LEAVE, TAKE, TAKEN
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import new_id
from windlass.core.job import JobRecord
from windlass.core.outcome import Outcome, Settlement
from windlass.core.paths import took
from windlass.errors import StorageError

if TYPE_CHECKING:
    from windlass.backends.valkey.functions import Functions, Turn
    from windlass.backends.valkey.keys import Keys

log = logging.getLogger("windlass.valkey")

#: A job that its worker has not claimed after twice this time is released.
CLAIM_TIMEOUT_S = 0.1
#: How long a client that closes waits for its releases. Leases that are left then expire.
_CLOSE_TIMEOUT_S = 1.0
#: Starts a job at once if the worker can; returns whether it did. See ``OfferedListener.on_offer``.
Begin = Callable[[JobRecord, float], bool]

_TAKEN = ord(str(TAKEN))
_leased = records.wrap_unreadable(records.leased)


class OfferedJob(NamedTuple):
    """A leased job that came with a message. Its lease began at ``since_ms`` (monotonic) or later."""

    record: JobRecord
    since_ms: float


class _Registration:
    """A claim that asked the server to register the worker as idle."""

    __slots__ = ("is_void", "lease_ms", "sent_ms", "taken_ms")

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self.sent_ms = SYSTEM_CLOCK.monotonic_ms()
        #: The server's time of the registration, once the claim was answered.
        self.taken_ms: int | None = None
        #: The answer to a claim was lost. The worker will reconcile, which releases jobs it does not hold.
        self.is_void = False

    @property
    def is_known(self) -> bool:
        """Whether its claim has been answered, or has failed."""
        return self.is_void or self.taken_ms is not None


class WorkerHandoff:
    """One worker, its only queue, and the jobs that were offered to it."""

    def __init__(self, worker: str, queue: str) -> None:
        self.worker = worker
        self.queue = queue
        #: By claim id: registrations that the server may have.
        self.registrations: dict[str, _Registration] = {}
        self.offered: list[OfferedJob] = []
        #: Claims that were sent and not answered yet.
        self.in_flight = 0
        self.listeners = 0
        #: When the next job is due, by the monotonic clock.
        self.due_ms: float | None = None
        self.begin: Begin | None = None

    def accept(self, news: bytes) -> bool:
        """Read a message; return whether the worker should claim.

        It need not if the message is out of date, or if the worker has started the job at once.
        """
        now_ms, at = int.from_bytes(news[:6], "big"), 7 + news[6]
        claim_id = news[7:at].decode()
        start = at + 2 + int.from_bytes(news[at : at + 2], "big")
        registration = self.registrations.get(claim_id)
        if registration is None or registration.is_void:
            return False
        # Both times are cut to whole milliseconds, so their difference may be almost 1 ms too large.
        taken_ms = now_ms if registration.taken_ms is None else registration.taken_ms
        since_ms = registration.sent_ms + max(now_ms - taken_ms - 1, 0)
        if SYSTEM_CLOCK.monotonic_ms() - since_ms > registration.lease_ms / 2:
            return True  # too old to use: the next claim returns the job with a new lease
        lease = records.Lease(now_ms, self.worker, now_ms + registration.lease_ms)
        token = claim_id + GIVEN
        try:
            (record,) = _leased(self.queue, [news[at + 2 : start]], [news[start:]], [token], lease)
        except StorageError:
            return True  # the next claim returns the job and fails it
        del self.registrations[claim_id]
        if self.begin is not None and self.begin(record, since_ms):
            took("valkey.handoff_begun")
            return False
        self.offered.append(OfferedJob(record, since_ms))
        return True

    def take(self) -> tuple[list[JobRecord], int]:
        """Remove and return the offered jobs, and the most milliseconds since the first lease began."""
        offered, self.offered = self.offered, []
        now_ms = SYSTEM_CLOCK.monotonic_ms()
        held_ms = max((now_ms - one.since_ms for one in offered), default=0)
        return [one.record for one in offered], int(held_ms) + bool(offered)

    def invalidate(self) -> None:
        """Drop what is known: the worker will reconcile, which releases every lease it does not hold."""
        self.offered.clear()
        for registration in self.registrations.values():
            registration.is_void = True


def skip_handoff(request: rq.Request[Any]) -> None:
    """Keep a claim that carries its own time from registering its worker.

    Handoffs go by the clocks of the server and of this machine.
    """
    claim = request.claim if isinstance(request, rq.Settle) else request
    if isinstance(claim, rq.Claim):
        claim.idle = False


class HandoffClaim:
    """One claim in flight: the registration that it asks for, and the one that it ends."""

    def __init__(self, handoff: WorkerHandoff, claim: rq.Claim) -> None:
        self._handoff = handoff
        self._claim_id = claim.claim_id
        self._known = [claim_id for claim_id, one in handoff.registrations.items() if one.is_known]
        self.jobs, self.held_ms = handoff.take()
        self.limit = claim.limit - len(self.jobs)
        #: The registration that the claim ended, and whether no job of it had been received by then.
        self.left, self.left_open = "", False
        #: ``TAKE`` and ``LEAVE``. A registration whose claim is still in flight must not be ended: it uses
        #: one of that claim's slots.
        self.flags = LEAVE if any(one.is_known for one in handoff.registrations.values()) else 0
        if claim.idle and not handoff.in_flight and not self.jobs and self.limit > 0:
            self.flags += TAKE
            handoff.registrations[claim.claim_id] = _Registration(claim.lease_ms)
        handoff.in_flight += 1

    def failed(self) -> None:
        """Note that no answer came: the server may have registered the worker or not."""
        self._handoff.in_flight -= 1
        self._handoff.invalidate()

    def answered(self, turn: Turn) -> None:
        """Note which registrations have begun and ended."""
        handoff = self._handoff
        handoff.in_flight -= 1
        due_ms = turn.next_due_in_ms
        handoff.due_ms = None if due_ms < 0 else SYSTEM_CLOCK.monotonic_ms() + due_ms
        self.left = turn.left[1:].decode()
        self.left_open = handoff.registrations.pop(self.left, None) is not None
        if self.flags & LEAVE and not self.left:
            for claim_id in self._known:  # the server has none of them any more
                handoff.registrations.pop(claim_id, None)
        registration = handoff.registrations.get(self._claim_id)
        if registration is not None and turn.left[0] == _TAKEN:
            took("valkey.handoff_registered")
            registration.taken_ms = turn.now_ms
        elif registration is not None:
            del handoff.registrations[self._claim_id]

    def joined(self, jobs: list[JobRecord]) -> list[JobRecord]:
        """The offered jobs, then ``jobs``, without one that was already received in a message."""
        if self.left and not self.left_open and jobs and jobs[0].token == self.left + GIVEN:
            jobs = jobs[1:]
        return self.jobs + jobs


class Handoffs:
    """The handoffs of all workers of one event loop."""

    def __init__(self, functions: Functions, keys: Keys) -> None:
        self._functions = functions
        self._keys = keys
        self._handoffs: dict[str, WorkerHandoff] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- listeners of workers -----------------------------------------------------------------------

    def add_listener(self, worker: str, queue: str) -> None:
        """``worker`` listens, and serves only ``queue``."""
        handoff = self._handoffs.get(worker)
        if handoff is None or handoff.queue != queue:
            handoff = self._handoffs[worker] = WorkerHandoff(worker, queue)
        handoff.listeners += 1

    def remove_listener(self, worker: str) -> None:
        """A listener of ``worker`` was closed; with its last one the handoff ends."""
        handoff = self._handoffs.get(worker)
        if handoff is None:
            return
        handoff.listeners -= 1
        if not handoff.listeners:
            del self._handoffs[worker]
            self._decline(handoff)

    def on_offer(self, worker: str, begin: Begin) -> None:
        """Pass each job that is offered to ``worker`` to ``begin`` first."""
        handoff = self._handoffs.get(worker)
        if handoff is not None:
            handoff.begin = begin

    def decline(self, worker: str) -> None:
        """Release the jobs of ``worker`` and end its registration; it gets none until it claims again."""
        handoff = self._handoffs.get(worker)
        if handoff is not None:
            self._decline(handoff)

    def invalidate(self, worker: str) -> None:
        """See ``WorkerHandoff.invalidate``."""
        handoff = self._handoffs.get(worker)
        if handoff is not None:
            handoff.invalidate()

    async def close(self) -> None:
        """Release every job that was not started, for at most ``_CLOSE_TIMEOUT_S``."""
        handoffs, self._handoffs = self._handoffs, {}
        for handoff in handoffs.values():
            self._decline(handoff)
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks), timeout=_CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()

    # --- messages and claims ----------------------------------------------------------------------

    def received(self, worker: str, news: bytes) -> bool:
        """Take a message for ``worker``; return whether the worker should claim."""
        handoff = self._handoffs.get(worker)
        if handoff is None or not handoff.accept(news):
            return False
        if handoff.offered:
            loop = asyncio.get_running_loop()
            loop.call_later(CLAIM_TIMEOUT_S, self._release_unclaimed, handoff, handoff.offered[-1])
        return True

    def claimed(self, claim: rq.Claim) -> rq.Claimed | None:
        """The answer to a claim whose worker has offered jobs; None if the claim must go to the server."""
        handoff = self._handoff_of(claim)
        if handoff is None or not handoff.offered:
            return None
        took("valkey.handoff_claimed")
        jobs, held_ms = handoff.take()
        now_ms = jobs[-1].started_ms or 0
        due_ms = None if handoff.due_ms is None else handoff.due_ms - SYSTEM_CLOCK.monotonic_ms()
        return rq.Claimed(jobs, now_ms, None if due_ms is None else max(int(due_ms), 0), held_ms)

    def prepare(self, claim: rq.Claim) -> HandoffClaim | None:
        """What a claim sends about handoffs; None if its worker takes no part in them."""
        handoff = self._handoff_of(claim)
        return None if handoff is None else HandoffClaim(handoff, claim)

    def _handoff_of(self, claim: rq.Claim) -> WorkerHandoff | None:
        found = self._handoffs.get(claim.worker)
        if found is None or len(claim.queues) != 1 or claim.queues[0].name != found.queue or claim.limit < 1:
            return None
        return found

    # --- releasing --------------------------------------------------------------------------------

    def _release_unclaimed(self, handoff: WorkerHandoff, offered: OfferedJob, *, again: bool = True) -> None:
        if not any(one is offered for one in handoff.offered):
            return
        if again or handoff.in_flight:  # the event loop may be late, or a claim in flight will take the job
            later = partial(self._release_unclaimed, handoff, offered, again=False)
            asyncio.get_running_loop().call_later(CLAIM_TIMEOUT_S, later)
        else:
            handoff.offered = [one for one in handoff.offered if one is not offered]
            self._start(self._release(handoff, [(offered.record.id, offered.record.token or "")]))

    def _decline(self, handoff: WorkerHandoff) -> None:
        jobs, _ = handoff.take()
        if jobs or handoff.registrations:
            self._start(self._unregister(handoff, [(job.id, job.token or "") for job in jobs]))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="windlass-valkey-handoff")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _unregister(self, handoff: WorkerHandoff, leases: list[tuple[str, str]]) -> None:
        """End the registration on the server, and release ``leases`` and the job that was leased under it."""
        queue = rq.ClaimQueue(handoff.queue, 0, 0)
        claim = rq.Claim(worker=handoff.worker, queues=[queue], limit=0, claim_id=new_id())
        claiming = HandoffClaim(handoff, claim)
        asked = (claim.worker, claim.lease_ms, claim.claim_id, 0, [(1, 0, 0, 0, claiming.flags)])
        try:
            turn = await self._functions.work([self._root(handoff)], "", [], asked)
        except BaseException as exc:  # the leases will expire
            claiming.failed()
            if not isinstance(exc, StorageError):
                raise
            log.info("the registration of an idle worker could not be ended: %s", exc)
        else:
            claiming.answered(turn)
            if turn.leased and claiming.left_open:
                leases = [*leases, (turn.leased[1].decode(), claiming.left + GIVEN)]
        await self._release(handoff, leases)

    async def _release(self, handoff: WorkerHandoff, leases: list[tuple[str, str]]) -> None:
        ends: list[Any] = []
        for job_id, token in leases:
            end = Settlement(
                queue=handoff.queue, id=job_id, token=token, outcome=Outcome.RELEASE, reason="declined"
            )
            ends.append(settlements.settlement(1, end))
        try:
            if ends:
                await self._functions.work([self._root(handoff)], "", ends, 0)
        except StorageError as exc:  # the leases will expire
            log.info("%d jobs that were offered to a worker could not be released: %s", len(leases), exc)

    def _root(self, handoff: WorkerHandoff) -> str:
        return self._keys.queue(handoff.queue)
