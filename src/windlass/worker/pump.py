"""The pump: decides a worker's next request to its store. It does no I/O and has no clock.

The driver reports events to it: attempts that begin and end, hints, answers and failures of requests, pauses,
rate limits, the close. ``next`` returns the next step: settle and claim in one exchange, reconcile leases,
check whether jobs are left, wait until a time, or finish.

Under load one exchange carries many jobs. An idle worker never waits for a batch to fill. A claim never asks
for more jobs than there are free slots. Each settlement is in at most one exchange at a time; when that
exchange fails, its settlements go back to ``unsettled`` and are sent again.

With a store that can work in parallel to its client, two lanes each use half of the slots: the store settles
the jobs of one lane while the jobs of the other run. ``next`` drives the first lane and
``next_in_second_lane`` the second, which is active only while there is enough work for both.

With a server that pushes jobs (``claims_separately``), the first lane claims and the second settles. The next
job can begin before the previous one is settled, even with one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from windlass.backend.requests import Claimed, ClaimQueue
from windlass.core.job import JobRecord
from windlass.core.outcome import Settlement
from windlass.worker.shares import SharePlanner

#: How long to wait after a failed step: the first time, and at most.
FIRST_BACKOFF_MS, MAX_BACKOFF_MS = 100, 5_000
#: A wait may end this much early, because the clocks of event loops are coarse.
_EARLY_MS = 5
#: With fewer slots than this, a second lane has too little to do.
_LANES_FROM = 16
#: With separate claims: the worker may have this many unsettled jobs, or one for each slot if that is more.
_UNSETTLED = 50


@dataclass(slots=True, eq=False)
class Exchange:
    """Send ``settlements`` and claim from ``queues``, in one request. One of the two may be empty."""

    settlements: list[Settlement]
    queues: list[ClaimQueue]
    #: The maximum number of jobs to claim.
    limit: int
    #: Whether no job runs here. The store may then hand out a job before the next claim.
    idle: bool
    #: The number of hints received when the exchange was planned.
    hints: int


@dataclass(slots=True, frozen=True)
class ReconcileStep:
    """Release leases that this worker does not hold. ``tokens`` are held: their settlements are unsent."""

    tokens: list[str]


@dataclass(slots=True, frozen=True)
class Wait:
    """Wait until ``until_ms``, or until the listener wakes."""

    until_ms: float
    #: Wait for the whole time, as a backoff after a failure.
    ignore_hints: bool = False


@dataclass(slots=True, frozen=True)
class Check:
    """Ask the store whether jobs are left."""


@dataclass(slots=True, frozen=True)
class AllDone:
    """The pump has finished; the driver's loop ends."""


CHECK: Final = Check()
DONE: Final = AllDone()
Step = Exchange | ReconcileStep | Wait | Check | AllDone


class Pump:
    """The state of one worker's requests to its store. Used on the worker's loop only."""

    def __init__(
        self,
        shares: SharePlanner,
        *,
        slots: int,
        poll_ms: float,
        until_empty: bool = False,
        jitter: Callable[[], float] = lambda: 1,
    ) -> None:
        self._shares = shares
        self._poll_ms = poll_ms
        self._jitter = jitter
        #: The maximum number of jobs that run at once.
        self.slots: int = slots
        #: Whether the store works in parallel to its client, so that two lanes pay off.
        self.overlaps: bool = False
        #: Whether the server pushes jobs, so that claims need not wait for settlements.
        self.claims_separately: bool = False
        #: Whether to finish when no job is left.
        self.until_empty: bool = until_empty
        self.paused: bool = False
        self.closing: bool = False
        #: Claim no jobs before this time.
        self.limited_until_ms: float = 0
        #: Settlements that are not in an exchange.
        self.unsettled: list[Settlement] = []
        self.running: int = 0
        self._busy: dict[str, int] = {}
        self._in_flight: list[Exchange] = []
        self._requested = 0  # jobs that exchanges in flight may still claim
        self._should_claim = True  # whether the store may have jobs
        self._hints = 0
        self._next_due_ms: float | None = None
        self._claimed_any = False  # whether jobs were claimed since the queues were last drained
        self._wait: Wait | None = None
        self._checked = self._finished = self._fail_fast = self._lost_reply = False
        self._failures = 0
        self._backoff_until_ms = 0.0

    # --- events --------------------------------------------------------------------------------------

    def began(self, queue: str) -> None:
        """A job took a slot."""
        self.running += 1
        self._busy[queue] = self._busy.get(queue, 0) + 1

    def freed(self, queue: str) -> None:
        """A slot is free again."""
        self.running -= 1
        self._busy[queue] -= 1

    def ended(self, end: Settlement) -> bool:
        """Queue a settlement. Returns whether the driver must be woken.

        With earlier settlements in the queue, the driver is already awake. With separate claims the first
        lane may be waiting all the same, and it can fill the slot that became free.
        """
        self.unsettled.append(end)
        return self._is_separate or len(self.unsettled) == 1

    @property
    def waits_for_slots(self) -> bool:
        """Whether the first lane can claim when a slot becomes free, or must settle by itself."""
        return self._should_claim or not self._is_separate

    def hint(self) -> None:
        """Note that there may be jobs. This overrides the answer of an exchange that is in flight."""
        self._should_claim = True
        self._hints += 1

    def woke(self, now_ms: float, topics: frozenset[str]) -> None:
        """A wait ended: hints for ``topics`` came, the driver was woken, or the time is over."""
        wait, self._wait = self._wait, None
        time_passed = wait is not None and now_ms >= wait.until_ms - _EARLY_MS
        # After the full time a job may be due, or a hint was lost. Unsettled jobs also end a wait early.
        if (time_passed and not topics and (self._is_separate or not self.unsettled)) or any(
            topic.startswith("ready:") for topic in topics
        ):
            self.hint()
            self._shares.refill()

    def close(self) -> None:
        """Stop claiming. The pump finishes when no job runs and all are settled."""
        self.closing = True

    def fail_fast(self) -> None:
        """End the current backoff. The next failure ends the pump."""
        self._fail_fast, self._backoff_until_ms = True, 0

    def interrupted(self) -> None:
        """The reply to a request may be lost: reconcile before any other step."""
        self._lost_reply, self._wait = True, None

    def step_failed(self, now_ms: float) -> None:
        """A step failed: back off, then reconcile."""
        self.interrupted()
        if self._fail_fast:
            self._finished = True
            return
        backoff = min(FIRST_BACKOFF_MS * 2**self._failures, MAX_BACKOFF_MS)
        self._failures = min(self._failures + 1, 10)
        self._backoff_until_ms = now_ms + backoff * self._jitter()

    def abandon(self) -> int:
        """Drop all unsettled settlements; returns their number."""
        left, self.unsettled = len(self.unsettled), []
        return left

    # --- the next step -----------------------------------------------------------------------------------

    def next(self, now_ms: float) -> Step:
        """Return the next step of the first lane."""
        if self._finished:
            return DONE
        if now_ms < self._backoff_until_ms:
            return Wait(self._backoff_until_ms, ignore_hints=True)
        if self._lost_reply:
            return ReconcileStep([end.token for end in self.unsettled])
        queues, limit = self._plan(now_ms)
        if self._is_separate:
            if queues and self._should_claim:
                return self._send([], queues, limit)
        elif self.unsettled or (queues and self._should_claim):
            return self._send(self._take_settlements(), queues, limit)
        if not self.running and not self._in_flight and not self.unsettled:
            if self.closing:
                return DONE
            if self.until_empty and not self._checked:
                return CHECK
        self._checked = False
        self._wait = Wait(self._wake_at(now_ms))
        return self._wait

    def wants_second_lane(self, now_ms: float) -> bool:
        """Whether the second lane has at least half a batch to settle or claim."""
        if self._is_separate:
            blocked = self._finished or self._lost_reply or now_ms < self._backoff_until_ms
            return bool(self.unsettled) and not blocked
        if not self._has_lanes:
            return False
        enough = self._batch // 2
        return len(self.unsettled) >= enough or (self._should_claim and self.free_slots(now_ms) >= enough)

    def next_in_second_lane(self, now_ms: float) -> Exchange | None:
        """Return an exchange for the second lane; None when there is too little for one."""
        if not self.wants_second_lane(now_ms):
            return None
        queues, limit = ([], 0) if self._is_separate else self._plan(now_ms)
        return self._send(self._take_settlements(), queues, limit)

    def free_slots(self, now_ms: float) -> int:
        """How many jobs could be claimed now."""
        if self.paused or self.closing or self.limited_until_ms > now_ms:
            return 0
        free = self.slots - self.running - self._requested
        if self._is_separate:
            unsettled = len(self.unsettled) + sum(len(exchange.settlements) for exchange in self._in_flight)
            free = min(free, max(self.slots, _UNSETTLED) - unsettled)
        return max(free, 0)

    def has_room(self, queue: str, now_ms: float) -> bool:
        """Whether a job that ``queue`` offers may begin.

        That needs a free slot. It is also refused when the pump is about to claim by itself.
        """
        if self._wait is None or self._should_claim:
            return False
        return self._shares.room(queue, self.free_slots(now_ms), self._busy) > 0

    def is_settling(self, jobs: Iterable[JobRecord]) -> bool:
        """Whether an earlier attempt of one of ``jobs`` is being settled, because it was retried at once."""
        if not self._in_flight:
            return False
        in_flight = {(end.queue, end.id) for exchange in self._in_flight for end in exchange.settlements}
        return any((job.queue, job.id) in in_flight for job in jobs)

    def took_offer(self) -> bool:
        """An offered job began. Returns whether the queues are drained, as far as the pump knows."""
        self._claimed_any = self._requested > 0
        return not self._claimed_any

    # --- outcomes of steps -------------------------------------------------------------------------------

    def answered(self, exchange: Exchange, claimed: Claimed | None, sent_ms: float) -> bool:
        """The store answered an exchange. Returns whether the queues are now drained, after jobs had come."""
        self._in_flight.remove(exchange)
        self._requested -= exchange.limit
        self._failures = 0
        if claimed is None or not exchange.queues:
            return False
        plan_again = self._shares.charge(exchange.queues, claimed.jobs)
        if plan_again or len(claimed.jobs) >= exchange.limit:
            self._should_claim = True
        elif self._hints == exchange.hints:  # else the answer may be older than the last hint
            self._should_claim = False
        due_ms = claimed.next_due_in_ms
        self._next_due_ms = None if due_ms is None else sent_ms + due_ms
        self._claimed_any = self._claimed_any or bool(claimed.jobs)
        if self._claimed_any and not self._should_claim and not self._requested:
            self._claimed_any = False
            return True
        return False

    def failed(self, exchange: Exchange) -> None:
        """The store did not answer an exchange: its settlements are sent again."""
        self._in_flight.remove(exchange)
        self._requested -= exchange.limit
        self.unsettled = exchange.settlements + self.unsettled

    def reconciled(self) -> None:
        """The store has released all leases that this worker does not hold."""
        self._lost_reply = False
        self.hint()

    def checked(self, *, empty: bool) -> None:
        """The answer to a ``Check``: ``empty`` when no job was left."""
        self._checked, self._finished = True, empty

    # --- planning ----------------------------------------------------------------------------------------

    @property
    def _is_separate(self) -> bool:
        """Whether claims and settlements use separate lanes.

        With caps or reserves, every job that ends may allow a claim, so its settlement should also claim.
        """
        return self.claims_separately and not self._shares.is_bounded

    @property
    def _has_lanes(self) -> bool:
        return self.overlaps and self.slots >= _LANES_FROM and not self._shares.is_bounded

    @property
    def _batch(self) -> int:
        """The maximum number of jobs that one exchange settles, and that it claims."""
        if self._is_separate:
            return max(self.slots, _UNSETTLED)
        return (self.slots + 1) // 2 if self._has_lanes else self.slots

    def _plan(self, now_ms: float) -> tuple[list[ClaimQueue], int]:
        """The queues to claim from and the total limit; empty and 0 when nothing can be claimed."""
        free = self.free_slots(now_ms)
        free = min(free, self._batch) if free else 0
        queues = self._shares.plan(free, self._busy) if free else []
        return queues, free if queues else 0

    def _take_settlements(self) -> list[Settlement]:
        batch = self._batch
        taken, self.unsettled = self.unsettled[:batch], self.unsettled[batch:]
        return taken

    def _send(self, settlements: list[Settlement], queues: list[ClaimQueue], limit: int) -> Exchange:
        exchange = Exchange(settlements, queues, limit, not self.running, self._hints)
        self._in_flight.append(exchange)
        self._requested += limit
        self._checked = False
        return exchange

    def _wake_at(self, now_ms: float) -> float:
        """When the next job is due, the rate limit ends or the next poll is, whichever comes first."""
        wait_ms = self._poll_ms
        if self._next_due_ms is not None:
            wait_ms = min(wait_ms, max(round(self._next_due_ms - now_ms) + 1, 1))
        if self.limited_until_ms > now_ms:
            wait_ms = min(wait_ms, max(round(self.limited_until_ms - now_ms), 1))
        return now_ms + wait_ms
