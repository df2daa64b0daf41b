"""Jobs that the server leases to a worker before it asks, see ``lua/includes/78_handoff.lua``.

A worker that serves one queue and has nothing to do takes a seat with its claim. The job that it is then
given comes with a message and waits here until the worker, woken as by any hint, claims: that claim is
answered at once. The message may be lost or late, so nothing rests on it: the next claim that reaches the
server leaves the seat and brings along what was given there. Each seat goes by the id of its claim; whatever
is received about a seat that was left means nothing any more. What a worker does not claim in time
is given back.
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

#: A job that its worker did not claim for twice as long is given back: the worker wants none just now.
PATIENCE_S = 0.1
#: For this long a client that closes tries to give back what it has; then its leases run out.
_LAST_S = 1.0
Begin = Callable[[JobRecord, float], bool]

_TAKEN = ord(str(TAKEN))


class Given(NamedTuple):
    """A leased job that came with a message; its lease began no earlier than ``since_ms`` (monotonic)."""

    record: JobRecord
    since_ms: float


class _OpenHandoff:
    """A claim that asked for a seat."""

    __slots__ = ("lease_ms", "sent_ms", "taken_ms", "void")

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self.sent_ms = SYSTEM_CLOCK.monotonic_ms()
        #: The server's time when the seat was taken, once that is known.
        self.taken_ms: int | None = None
        #: Its answer was lost: the worker gives back what it does not know of.
        self.void = False

    @property
    def is_known(self) -> bool:
        """Whether its claim is over."""
        return self.void or self.taken_ms is not None


class WorkerHandoff:
    """One worker, its only queue, and what came for it."""

    def __init__(self, worker: str, queue: str) -> None:
        self.worker = worker
        self.queue = queue
        #: By claim: seats that may be taken now.
        self.seats: dict[str, _OpenHandoff] = {}
        self.given: list[Given] = []
        self.under_way = 0
        self.listeners = 0
        #: When the next job is due, by the monotonic clock.
        self.due_ms: float | None = None
        #: Who starts what comes at once, if it may.
        self.begin: Begin | None = None

    def accept(self, news: bytes) -> bool:
        """Whether a message brings a job that is to be claimed: it was not begun at once."""
        now_ms, at = int.from_bytes(news[:6], "big"), 7 + news[6]
        claim_id = news[7:at].decode()
        start = at + 2 + int.from_bytes(news[at : at + 2], "big")
        seat = self.seats.get(claim_id)
        if seat is None or seat.void:
            return False
        # Whole milliseconds: what is left of both may be almost one.
        taken_ms = now_ms if seat.taken_ms is None else seat.taken_ms
        since_ms = seat.sent_ms + max(now_ms - taken_ms - 1, 0)
        if SYSTEM_CLOCK.monotonic_ms() - since_ms > seat.lease_ms / 2:
            return True  # it was long under way: the next claim brings it with a new lease
        lease = records.Lease(now_ms, self.worker, now_ms + seat.lease_ms)
        token = claim_id + GIVEN
        (record,) = records.leased(self.queue, [news[at + 2 : start]], [news[start:]], [token], lease)
        del self.seats[claim_id]
        if self.begin is not None and self.begin(record, since_ms):
            took("valkey.seat_begun")
            return False
        self.given.append(Given(record, since_ms))
        return True

    def take(self) -> tuple[list[JobRecord], int]:
        """What was given, and how long ago the first of these leases began at most."""
        given, self.given = self.given, []
        now_ms = SYSTEM_CLOCK.monotonic_ms()
        held_ms = max((now_ms - one.since_ms for one in given), default=0)
        return [one.record for one in given], int(held_ms) + bool(given)

    def forget(self) -> None:
        """The worker gives back every lease that it does not hold."""
        self.given.clear()
        for seat in self.seats.values():
            seat.void = True


def stay_out(request: rq.Request[Any]) -> None:
    """A claim that says the time takes no seat: seats go by the clocks of the server and of this machine."""
    claim = request.claim if isinstance(request, rq.Settle) else request
    if isinstance(claim, rq.Claim):
        claim.idle = False


class HandoffOffer:
    """One claim on its way: what it says about seats, and what its answer says."""

    def __init__(self, place: WorkerHandoff, claim: rq.Claim) -> None:
        self._place = place
        self._claim_id = claim.claim_id
        self._known = [claim_id for claim_id, seat in place.seats.items() if seat.is_known]
        self.jobs, self.held_ms = place.take()
        self.limit = claim.limit - len(self.jobs)
        #: The seat that was left, and whether nothing had come of it until then.
        self.left, self.left_open = "", False
        #: What the claim says to the server. A seat whose claim is under way keeps one of that claim's slots.
        self.says = LEAVE if any(seat.is_known for seat in place.seats.values()) else 0
        if claim.idle and not place.under_way and not self.jobs and self.limit > 0:
            self.says += TAKE
            place.seats[claim.claim_id] = _OpenHandoff(claim.lease_ms)
        place.under_way += 1

    def failed(self) -> None:
        """No answer came: there may be a seat or none."""
        self._place.under_way -= 1
        self._place.forget()

    def answered(self, turn: Turn) -> None:
        """Note what became of the seats."""
        place = self._place
        place.under_way -= 1
        due_ms = turn.next_due_in_ms
        place.due_ms = None if due_ms < 0 else SYSTEM_CLOCK.monotonic_ms() + due_ms
        self.left = turn.left[1:].decode()
        self.left_open = place.seats.pop(self.left, None) is not None
        if self.says & LEAVE and not self.left:
            for claim_id in self._known:  # the server has forgotten them
                place.seats.pop(claim_id, None)
        seat = place.seats.get(self._claim_id)
        if seat is not None and turn.left[0] == _TAKEN:
            took("valkey.seat_taken")
            seat.taken_ms = turn.now_ms
        elif seat is not None:
            del place.seats[self._claim_id]

    def joined(self, jobs: list[JobRecord]) -> list[JobRecord]:
        """The jobs to start: those that came with messages first, one that is known already left out."""
        if self.left and not self.left_open and jobs and jobs[0].token == self.left + GIVEN:
            jobs = jobs[1:]
        return self.jobs + jobs


class Handoffs:
    """The places of the workers of one event loop."""

    def __init__(self, functions: Functions, keys: Keys) -> None:
        self._functions = functions
        self._keys = keys
        self._places: dict[str, WorkerHandoff] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- who may be given something ---------------------------------------------------------------

    def open(self, worker: str, queue: str) -> None:
        """``worker`` listens, and serves nothing but ``queue``."""
        place = self._places.get(worker)
        if place is None or place.queue != queue:
            place = self._places[worker] = WorkerHandoff(worker, queue)
        place.listeners += 1

    def shut(self, worker: str) -> None:
        """``worker`` listens no more."""
        place = self._places.get(worker)
        if place is None:
            return
        place.listeners -= 1
        if not place.listeners:
            del self._places[worker]
            self._decline(place)

    def on_offer(self, worker: str, begin: Begin) -> None:
        """``begin`` is shown what is given to ``worker`` as it comes."""
        place = self._places.get(worker)
        if place is not None:
            place.begin = begin

    def decline(self, worker: str) -> None:
        """``worker`` wants nothing until it claims again."""
        place = self._places.get(worker)
        if place is not None:
            self._decline(place)

    def forget(self, worker: str) -> None:
        place = self._places.get(worker)
        if place is not None:
            place.forget()

    async def close(self) -> None:
        """Give back what was not started."""
        places, self._places = self._places, {}
        for place in places.values():
            self._decline(place)
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks), timeout=_LAST_S)
            for task in late:
                task.cancel()

    # --- messages and claims ----------------------------------------------------------------------

    def received(self, worker: str, news: bytes) -> bool:
        """A message for ``worker``; whether it should claim."""
        place = self._places.get(worker)
        if place is None or not place.accept(news):
            return False
        if place.given:
            asyncio.get_running_loop().call_later(PATIENCE_S, self._look_after, place, place.given[-1])
        return True

    def claimed(self, claim: rq.Claim) -> rq.Claimed | None:
        """The answer to a claim of a worker that was given something already."""
        place = self._place_of(claim)
        if place is None or not place.given:
            return None
        took("valkey.seat_claimed")
        jobs, held_ms = place.take()
        now_ms = jobs[-1].started_ms or 0
        due_ms = None if place.due_ms is None else place.due_ms - SYSTEM_CLOCK.monotonic_ms()
        return rq.Claimed(jobs, now_ms, None if due_ms is None else max(int(due_ms), 0), held_ms)

    def offer(self, claim: rq.Claim) -> HandoffOffer | None:
        """What a claim that goes to the server has to do with seats."""
        place = self._place_of(claim)
        return None if place is None else HandoffOffer(place, claim)

    def _place_of(self, claim: rq.Claim) -> WorkerHandoff | None:
        place = self._places.get(claim.worker)
        if place is None or len(claim.queues) != 1 or claim.queues[0].name != place.queue or claim.limit < 1:
            return None
        return place

    # --- giving back ------------------------------------------------------------------------------

    def _look_after(self, place: WorkerHandoff, given: Given, *, again: bool = True) -> None:
        if not any(one is given for one in place.given):
            return
        if again or place.under_way:  # the loop was held up, or the claim behind this one will take it
            look = partial(self._look_after, place, given, again=False)
            asyncio.get_running_loop().call_later(PATIENCE_S, look)
        else:
            place.given = [one for one in place.given if one is not given]
            self._start(self._give_back(place, [(given.record.id, given.record.token or "")]))

    def _decline(self, place: WorkerHandoff) -> None:
        jobs, _ = place.take()
        if jobs or place.seats:
            self._start(self._leave(place, [(job.id, job.token or "") for job in jobs]))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="windlass-valkey-seat")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, place: WorkerHandoff, leases: list[tuple[str, str]]) -> None:
        """Leave the seat at the server, and give back what was given there."""
        queue = rq.ClaimQueue(place.queue, 0, 0)
        claim = rq.Claim(worker=place.worker, queues=[queue], limit=0, claim_id=new_id())
        offer = HandoffOffer(place, claim)
        asked = (claim.worker, claim.lease_ms, claim.claim_id, 0, [(1, 0, 0, 0, offer.says)])
        try:
            turn = await self._functions.work([self._root(place)], "", [], asked)
        except StorageError as exc:  # the leases run out
            offer.failed()
            log.info("a seat could not be left: %s", exc)
        else:
            offer.answered(turn)
            if turn.leased and offer.left_open:
                leases = [*leases, (turn.leased[1].decode(), offer.left + GIVEN)]
        await self._give_back(place, leases)

    async def _give_back(self, place: WorkerHandoff, leases: list[tuple[str, str]]) -> None:
        ends: list[Any] = []
        for job_id, token in leases:
            end = Settlement(
                queue=place.queue, id=job_id, token=token, outcome=Outcome.RELEASE, reason="declined"
            )
            ends.append(settlements.settlement(1, end))
        try:
            if ends:
                await self._functions.work([self._root(place)], "", ends, 0)
        except StorageError as exc:  # the leases run out
            log.info("%d jobs that were not wanted could not be given back: %s", len(leases), exc)

    def _root(self, place: WorkerHandoff) -> str:
        return self._keys.queue(place.queue)
