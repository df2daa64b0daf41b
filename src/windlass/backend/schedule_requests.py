"""Verbs of recurring schedules. What they mean is decided in ``core.schedule_rules``.

Stores compare and set.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backend.requests import Request
from windlass.core.job import NewJob
from windlass.core.schedule_rules import SCHEDULES_PER_STEP, ScheduleRecord


class PutSchedule(Request[ScheduleRecord], kw_only=True):
    """Make or change a schedule; answers with the record as it is now.

    ``schedule.next_ms`` is its first slot. An existing schedule with an equal rule keeps its next slot and
    its counts; a paused one stays paused; the last run is kept in any case (``core.schedule_rules.put``).
    The queue is known from then on. Hint: ``schedules``.
    """

    needs: ClassVar[str] = "schedules"

    schedule: ScheduleRecord


class SchedulePage(msgspec.Struct):
    """Schedules by queue and name, the store's time, and where to go on (None: that was all)."""

    schedules: list[ScheduleRecord]
    now_ms: int
    cursor: str | None = None


class ListSchedules(Request[SchedulePage], kw_only=True):
    """Schedules of one queue or of all, of one name, from one source; by queue and name.

    ``cursor`` is opaque and comes from the page before. A page may hold fewer than ``limit`` records and
    still have a cursor.
    """

    needs: ClassVar[str] = "schedules"

    queue: str | None = None
    name: str | None = None
    source: str | None = None
    cursor: str | None = None
    limit: int = 1_000


class RemoveSchedule(Request[bool], kw_only=True):
    """Forget a schedule; False when there is none. Jobs that it made stay.

    With ``source``, only if the record comes from there: a deploy never removes what an operator took over.
    """

    needs: ClassVar[str] = "schedules"

    queue: str
    name: str
    source: str | None = None


class PauseSchedule(Request[bool], kw_only=True):
    """Pause or resume a schedule; False when there is none. Hint: ``schedules``.

    Slots that pass meanwhile do not count as missed: resuming a paused schedule sets ``next_ms``. Without
    a change of state nothing happens, so repeating it is harmless.
    """

    needs: ClassVar[str] = "schedules"

    queue: str
    name: str
    paused: bool
    #: When resuming: its first slot from now on.
    next_ms: int | None = None


class Due(msgspec.Struct):
    """Schedules whose next slot has come, earliest first.

    ``next_in_ms``: how long until the first of the others is due (None: no other has a next slot).
    """

    schedules: list[ScheduleRecord]
    now_ms: int
    next_in_ms: int | None = None


class DueSchedules(Request[Due], kw_only=True):
    """What is to be fired now, over all queues; paused schedules are left out."""

    needs: ClassVar[str] = "schedules"

    limit: int = SCHEDULES_PER_STEP


class Fired(msgspec.Struct):
    """``ok``: the slot was ours to fire. ``added``: how many jobs were added (see overlap and limit)."""

    ok: bool
    added: int = 0


class FireSchedule(Request[Fired], kw_only=True):
    """Add the jobs of due slots and move on to the next slot, in one step; once, however many workers try.

    Nothing happens unless the schedule is there, not paused, and its next slot is ``slot_ms``. Then as many
    of ``jobs`` (those of ``slots``, in order) are added as limit and overlap allow (``core.schedule_rules``),
    by
    the rules of ``Add``, and the next slot becomes ``next_ms``, or none past the end or at the limit.

    Without ``slot_ms`` it is run by hand: all jobs are added and noted as its last run; slots and counts
    stay as they are. Repeating that is harmless, by the jobs' request ids.
    """

    needs: ClassVar[str] = "schedules"

    queue: str
    name: str
    slot_ms: int | None
    jobs: list[NewJob]
    slots: list[int] = msgspec.field(default_factory=list)
    next_ms: int | None = None
