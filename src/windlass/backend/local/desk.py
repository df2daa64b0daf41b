"""Short writes for a caller that has its event loop to itself.

Handing a call to the writer's thread and back costs two switches of threads, on a fast disk as much as the
fsync they hide. They hide it from the other tasks of the loop: where there are none (a script that adds one
job after the other, the loop behind the synchronous API, a worker whose jobs have all ended), the loop would
only sleep. There the transaction runs on the spot, unless that could take long: when anybody else is writing,
when other tasks are there, or when the disk was slow lately, the thread does it as always.

Calls for the thread are handed over once in each turn of the loop: those of many tasks wake it once, and
share a transaction.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from windlass.backend import requests as rq
from windlass.backend.local.calls import Patience
from windlass.core import probe

if TYPE_CHECKING:
    from windlass.backend.local.calls import Answer, Call
    from windlass.backend.local.wake import Wake

#: Jobs to add, attempts to end, jobs to claim, and bytes, that are little enough.
SHORT_JOBS = 4
SHORT_ENDS = 64
SHORT_CLAIM = 64
SHORT_BYTES = 16_384
#: The caller, and one that waits for it.
_TASKS = 2
#: Tasks of ours, which nearly always sleep, are named so.
_OURS = "windlass-"
#: When commits take longer than this, calls go to the thread for a while; so they do in company, and after a
#: single call that took this long.
_SLOW_S = 0.005
_HELD_UP_S = 0.05
_PAUSE_S = 1.0
#: How often to count the tasks of the loop, and for how long one caller may keep the loop to itself.
_LOOK_S = 0.02
_TURN_S = 0.003


def is_short(request: rq.AnyRequest) -> bool:
    """Whether a request is worth a look."""
    if type(request) is rq.Settle:
        claim = request.claim
        if len(request.items) > SHORT_ENDS or (claim is not None and claim.limit > SHORT_CLAIM):
            return False
        return sum([len(end.result) for end in request.items if end.result]) <= SHORT_BYTES
    if type(request) is rq.Add:
        jobs = request.jobs
        if len(jobs) == 1:
            return len(jobs[0].payload) <= SHORT_BYTES
        return len(jobs) <= SHORT_JOBS and sum([len(job.payload) for job in jobs]) <= SHORT_BYTES
    return type(request) is rq.Claim and request.limit <= SHORT_CLAIM


class Session(Protocol):
    """What the desk needs of the store."""

    @property
    def commit_s(self) -> float:
        """How long commits took lately."""

    @property
    def upkeep_due(self) -> bool:
        """Whether the thread has something to do behind the calls."""

    def run_now(self, call: Call[Any]) -> tuple[list[Answer], set[str]] | None:
        """Carry out ``call``, if that needs no waiting; else None, and nothing was done."""


class Writer(Protocol):
    """What the desk needs of the thread that writes."""

    @property
    def idle(self) -> bool: ...

    def put(self, calls: list[Call[Any]], /) -> None: ...

    def nudge(self) -> None: ...


class Desk:
    """The short writes of one event loop, used on that loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, session: Session, writer: Writer, wake: Wake) -> None:
        self.loop = loop
        self._session = session
        self._writer = writer
        self._wake = wake
        self._not_before = 0.0
        self._look_again = 0.0
        self._turn_due = 0.0
        self._written = 0.0
        self._lined_up: list[Call[Any]] = []

    def line_up(self, call: Call[Any]) -> None:
        """Leave ``call`` to the thread, at the end of this turn of the loop."""
        if not self._lined_up:
            self.loop.call_soon(self.hand_over)
        self._lined_up.append(call)

    def hand_over(self) -> None:
        """Give the thread what was lined up."""
        if self._lined_up:
            calls, self._lined_up = self._lined_up, []
            Patience(calls)
            self._writer.put(calls)

    def write(self, call: Call[Any]) -> bool:
        """Carry out ``call`` now; False, and nothing was done, when that could take long."""
        now = time.monotonic()
        if not self._may_write(now):
            return False
        done = self._session.run_now(call)
        if done is None:
            return False
        self._written = time.monotonic()
        if self._written - now > _HELD_UP_S:
            self._not_before = now + _PAUSE_S
        answers, topics = done
        if topics:
            self._wake.announce(topics)
        for answered, value, error in answers:
            answered.answer(value, error)
        if self._session.upkeep_due:
            self._writer.nudge()
        return True

    def owes_a_turn(self) -> bool:
        """Whether whoever adds without end must let timers and signals have their turn after this write."""
        if self._written < self._turn_due:
            return False
        self._turn_due = self._written + _TURN_S
        return True

    def _may_write(self, now: float) -> bool:
        if now < self._not_before or self._lined_up or probe._installed is not None:
            return False
        if now > self._look_again:
            self._look_again = now + _LOOK_S
            if self._company() > _TASKS:
                self._not_before = now + _PAUSE_S
                return False
        if self._session.commit_s > _SLOW_S:
            self._not_before = now + _PAUSE_S
            return False
        return self._writer.idle

    def _company(self) -> int:
        """How many tasks the loop has, beside those of ours that sleep."""
        return sum(not task.get_name().startswith(_OURS) for task in asyncio.all_tasks(self.loop))
