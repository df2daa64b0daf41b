"""The pump: decides what a worker asks of its store next. It does no I/O and has no clock.

Its input is what happens: attempts that begin and end, hints, answers and failures of requests, the time as
a number, pauses, rate limits, the close. ``next`` answers what to do: settle and claim in one exchange, give
back what was never answered, look whether all is done, wait until a time, or end.

Under load one exchange carries many jobs; when idle nothing waits for a batch to fill. A claim never asks for
more than the free slots, and an end is in exactly one exchange until it is answered: one that fails gives its
ends back, and they are settled again.

A store that works while its client does is asked by two lanes, each for half of the slots: while it settles
the jobs of one, those of the other run. ``next`` is the first lane; ``beside`` is the second, which exists as
long as there is enough to do for both.

Where the server pushes jobs, the first lane claims and the second settles (``claims_apart``): the next job
begins while the end of the last one is on its way, also with one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from windlass.backend.requests import Claimed, ClaimQueue
from windlass.core.job import JobRecord
from windlass.core.outcome import Settlement
from windlass.worker.shares import SharePlanner

#: How long to rest after a failure: the first time, and the maximum.
FIRST_REST_MS, LAST_REST_MS = 100, 5_000
#: A wait may end this much early, because the clocks of event loops are coarse.
_EARLY_MS = 5
#: With fewer slots than this, a second lane has too little to do.
_LANES_FROM = 16
#: Most ends that may be unsettled while more is claimed apart from them, where there are fewer slots.
_UNSETTLED = 50


@dataclass(slots=True, eq=False)
class Exchange:
    """Settle ``ends`` and claim from ``queues``, in one request; one of the two may be empty."""

    ends: list[Settlement]
    queues: list[ClaimQueue]
    #: Most jobs to claim.
    limit: int
    #: Nothing runs here: the store may hand out a job before it is asked again.
    idle: bool
    #: How many hints had come when it was planned.
    hints: int


@dataclass(slots=True, frozen=True)
class ReconcileStep:
    """Give back leases that are not held here: ``ends`` wait to be settled, their tokens are held."""

    ends: list[str]


@dataclass(slots=True, frozen=True)
class Wait:
    """Nothing to do until then, or until something happens."""

    until_ms: float
    #: Rest after a failure: what happens does not end it.
    ignore_hints: bool = False


@dataclass(slots=True, frozen=True)
class Check:
    """Ask whether the store has jobs left."""


@dataclass(slots=True, frozen=True)
class AllDone:
    """All is done."""


CHECK: Final = Check()
DONE: Final = AllDone()
Step = Exchange | ReconcileStep | Wait | Check | AllDone


class Pump:
    """The state of one worker's exchange with its store."""

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
        #: Jobs that may run at once.
        self.slots: int = slots
        #: Whether the store works while its client does.
        self.overlaps: bool = False
        #: Whether it answers claims at once, so that they need not wait for settlements.
        self.claims_apart: bool = False
        #: Whether to end when no job is left.
        self.until_empty: bool = until_empty
        self.paused: bool = False
        self.closing: bool = False
        #: Claim nothing until then.
        self.limited_until_ms: float = 0
        #: Settlements that are in no exchange yet.
        self.ends: list[Settlement] = []
        self.running: int = 0
        self._busy: dict[str, int] = {}
        self._under_way: list[Exchange] = []
        self._asked = 0  # slots that exchanges under way may fill
        self._look = True  # whether there may be jobs
        self._hints = 0
        self._next_due_ms: float | None = None
        self._claimed_any = False  # whether jobs came since the last time that none were left
        self._wait: Wait | None = None
        self._checked = self._finished = self._hurried = self._lost_reply = False
        self._failures = 0
        self._rest_until_ms = 0.0

    # --- what happens --------------------------------------------------------------------------------

    def began(self, queue: str) -> None:
        """A job took a slot."""
        self.running += 1
        self._busy[queue] = self._busy.get(queue, 0) + 1

    def freed(self, queue: str) -> None:
        """A slot is free again."""
        self.running -= 1
        self._busy[queue] -= 1

    def ended(self, end: Settlement) -> bool:
        """Queue a settlement. True when the driver must be woken: with others in the queue it is awake.

        Unless it claims apart: then it waits while others are settled, and may fill the slot.
        """
        self.ends.append(end)
        return self._apart or len(self.ends) == 1

    def hint(self) -> None:
        """There may be jobs, whatever an exchange that is under way is going to answer."""
        self._look = True
        self._hints += 1

    def woke(self, now_ms: float, topics: frozenset[str]) -> None:
        """A wait ended, because of ``topics``, of something else that happened here, or of its time."""
        wait, self._wait = self._wait, None
        time_passed = wait is not None and now_ms >= wait.until_ms - _EARLY_MS
        # When time passed, a job may be due, or a hint was lost. (An end, settled meanwhile, also wakes.)
        if (time_passed and not topics and (self._apart or not self.ends)) or any(
            topic.startswith("ready:") for topic in topics
        ):
            self.hint()
            self._shares.refill()

    def close(self) -> None:
        """Claim nothing more, end when nothing runs and all is settled."""
        self.closing = True

    def hurry(self) -> None:
        """Stop resting after failures: the next failure ends the pump."""
        self._hurried, self._rest_until_ms = True, 0

    def interrupted(self) -> None:
        """A request may have been cut off: reconcile before anything else."""
        self._lost_reply, self._wait = True, None

    def stumbled(self, now_ms: float) -> None:
        """A step failed: wait, then reconcile."""
        self.interrupted()
        if self._hurried:
            self._finished = True
            return
        rest_ms = min(FIRST_REST_MS * 2**self._failures, LAST_REST_MS)
        self._failures = min(self._failures + 1, 10)
        self._rest_until_ms = now_ms + rest_ms * self._jitter()

    def abandon(self) -> int:
        """Leave what is not settled; returns how many ends that are."""
        left, self.ends = len(self.ends), []
        return left

    # --- what to do --------------------------------------------------------------------------------------

    def next(self, now_ms: float) -> Step:
        """The next step of the first lane."""
        if self._finished:
            return DONE
        if now_ms < self._rest_until_ms:
            return Wait(self._rest_until_ms, ignore_hints=True)
        if self._lost_reply:
            return ReconcileStep([end.token for end in self.ends])
        queues, limit = self._plan(now_ms)
        if queues and self._look and self._apart:
            return self._send([], queues, limit)
        if not self._apart and (self.ends or (queues and self._look)):
            return self._send(self._take_ends(), queues, limit)
        if not self.running and not self._under_way and not self.ends:
            if self.closing:
                return DONE
            if self.until_empty and not self._checked:
                return CHECK
        self._checked = False
        self._wait = Wait(self._wake_at(now_ms))
        return self._wait

    def wants_lane(self, now_ms: float) -> bool:
        """Whether half a batch is left to settle or claim, besides what is under way."""
        if self._apart:
            rests = self._finished or self._lost_reply or now_ms < self._rest_until_ms
            return bool(self.ends) and not rests
        if not self._has_lanes:
            return False
        enough = self._batch // 2
        return len(self.ends) >= enough or (self._look and self.free_slots(now_ms) >= enough)

    def beside(self, now_ms: float) -> Exchange | None:
        """An exchange for the second lane; None when too little is left for one."""
        if not self.wants_lane(now_ms):
            return None
        queues, limit = ([], 0) if self._apart else self._plan(now_ms)
        return self._send(self._take_ends(), queues, limit)

    def free_slots(self, now_ms: float) -> int:
        """How many jobs could be claimed now."""
        if self.paused or self.closing or self.limited_until_ms > now_ms:
            return 0
        free = self.slots - self.running - self._asked
        if self._apart:
            unsettled = len(self.ends) + sum(len(exchange.ends) for exchange in self._under_way)
            free = min(free, max(self.slots, _UNSETTLED) - unsettled)
        return max(free, 0)

    def has_room(self, queue: str, now_ms: float) -> bool:
        """Whether a job that ``queue`` hands out by itself may begin: not if the pump is about to ask."""
        if self._wait is None or self._look:
            return False
        return self._shares.room(queue, self.free_slots(now_ms), self._busy) > 0

    def is_settling(self, jobs: Iterable[JobRecord]) -> bool:
        """Whether an earlier attempt of one of ``jobs`` is being settled: it was retried at once."""
        under_way = {(end.queue, end.id) for exchange in self._under_way for end in exchange.ends}
        return bool(under_way) and any((job.queue, job.id) in under_way for job in jobs)

    def took_offer(self) -> bool:
        """A job that was handed out began; whether no more are left, as far as is known."""
        self._claimed_any = self._asked > 0
        return not self._claimed_any

    # --- what came of it ---------------------------------------------------------------------------------

    def answered(self, exchange: Exchange, claimed: Claimed | None, sent_ms: float) -> bool:
        """The store answered, ``claimed`` to the claim. Whether none are left, after some had come."""
        self._under_way.remove(exchange)
        self._asked -= exchange.limit
        self._failures = 0
        if claimed is None or not exchange.queues:
            return False
        plan_again = self._shares.charge(exchange.queues, claimed.jobs)
        if plan_again or len(claimed.jobs) >= exchange.limit:
            self._look = True
        elif self._hints == exchange.hints:  # else it may be older than the last hint
            self._look = False
        due_ms = claimed.next_due_in_ms
        self._next_due_ms = None if due_ms is None else sent_ms + due_ms
        self._claimed_any = self._claimed_any or bool(claimed.jobs)
        if self._claimed_any and not self._look and not self._asked:
            self._claimed_any = False
            return True
        return False

    def failed(self, exchange: Exchange) -> None:
        """The store did not answer: the ends are still unsettled, and are sent again."""
        self._under_way.remove(exchange)
        self._asked -= exchange.limit
        self.ends = exchange.ends + self.ends

    def reconciled(self) -> None:
        """The store knows what is held here."""
        self._lost_reply = False
        self.hint()

    def checked(self, *, empty: bool) -> None:
        """Whether no job was left when ``Check`` was asked for."""
        self._checked, self._finished = True, empty

    # --- how ---------------------------------------------------------------------------------------------

    @property
    def _apart(self) -> bool:
        """With a bound of a queue, each end is a reason to look again: then its settlement claims as well."""
        return self.claims_apart and not self._shares.is_bounded

    @property
    def _has_lanes(self) -> bool:
        return self.overlaps and self.slots >= _LANES_FROM and not self._shares.is_bounded

    @property
    def _batch(self) -> int:
        """Most jobs that one exchange settles, and claims."""
        if self._apart:
            return max(self.slots, _UNSETTLED)
        return (self.slots + 1) // 2 if self._has_lanes else self.slots

    def _plan(self, now_ms: float) -> tuple[list[ClaimQueue], int]:
        """Which queues may fill how many slots."""
        free = min(self.free_slots(now_ms), self._batch)
        queues = self._shares.plan(free, self._busy) if free else []
        return queues, free if queues else 0

    def _take_ends(self) -> list[Settlement]:
        ends, self.ends = self.ends[: self._batch], self.ends[self._batch :]
        return ends

    def _send(self, ends: list[Settlement], queues: list[ClaimQueue], limit: int) -> Exchange:
        exchange = Exchange(ends, queues, limit, not self.running, self._hints)
        self._under_way.append(exchange)
        self._asked += limit
        self._checked = False
        return exchange

    def _wake_at(self, now_ms: float) -> float:
        """When a job is due or may be claimed again, and at the latest when the next look is."""
        wait_ms = self._poll_ms
        if self._next_due_ms is not None:
            wait_ms = min(wait_ms, max(round(self._next_due_ms - now_ms) + 1, 1))
        if self.limited_until_ms > now_ms:
            wait_ms = min(wait_ms, max(round(self.limited_until_ms - now_ms), 1))
        return now_ms + wait_ms
