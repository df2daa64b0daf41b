"""Requests about recurring schedules. ``core.schedule_rules`` decides; stores compare and set."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backend.requests import Request
from windlass.core.job import NewJob
from windlass.core.schedule_rules import SCHEDULES_PER_STEP, ScheduleRecord


class PutSchedule(Request[ScheduleRecord], kw_only=True):
    """Create or change a schedule; answers with the record as it is stored now.

    ``schedule.next_ms`` is its first slot. An existing schedule with an equal rule keeps its next slot and
    its counts. A paused schedule stays paused, and the last run is always kept (``core.schedule_rules.put``).
    Creates the queue if it does not exist. Sends the hint ``schedules``.
    """

    needs: ClassVar[str] = "schedules"

    schedule: ScheduleRecord


class SchedulePage(msgspec.Struct):
    """Schedules by queue and name, and the store's time. ``cursor`` continues the list (None: last page)."""

    schedules: list[ScheduleRecord]
    now_ms: int
    cursor: str | None = None


class ListSchedules(Request[SchedulePage], kw_only=True):
    """Schedules that match all given filters, ordered by queue and name.

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
    """Delete a schedule; False if it does not exist. Jobs that it has added stay.

    With ``source``, only if the schedule has that source, so that a deploy does not delete a schedule that an
    operator has changed.
    """

    needs: ClassVar[str] = "schedules"

    queue: str
    name: str
    source: str | None = None


class PauseSchedule(Request[bool], kw_only=True):
    """Pause or resume a schedule; False if it does not exist. Sends the hint ``schedules``.

    Slots that pass during the pause do not count as missed: resuming sets the next slot to ``next_ms``.
    Pausing a paused schedule or resuming a running one changes nothing.
    """

    needs: ClassVar[str] = "schedules"

    queue: str
    name: str
    paused: bool
    #: For resuming: its first slot from now on.
    next_ms: int | None = None


class Due(msgspec.Struct):
    """Schedules whose next slot is due, earliest first.

    ``next_in_ms`` is the time until the next of the other schedules is due; None if none has a next slot.
    """

    schedules: list[ScheduleRecord]
    now_ms: int
    next_in_ms: int | None = None


class DueSchedules(Request[Due], kw_only=True):
    """Up to ``limit`` schedules of all queues that must fire now. Paused schedules are left out."""

    needs: ClassVar[str] = "schedules"

    limit: int = SCHEDULES_PER_STEP


class Fired(msgspec.Struct):
    """``ok``: this request fired the slot. ``added``: how many jobs it added, without those that overlap,
    limit, a unique key or a group kept out."""

    ok: bool
    added: int = 0


class FireSchedule(Request[Fired], kw_only=True):
    """Add the jobs of due slots and advance to the next slot, in one step. Only one of many workers succeeds.

    Nothing happens if the schedule does not exist, is paused, or has another next slot than ``slot_ms``.
    Otherwise ``jobs`` (one for each of ``slots``, in order) are added by the rules of ``Add``, as many as
    limit and overlap allow (``core.schedule_rules``). The next slot becomes ``next_ms``; none past the end or
    at the limit.

    ``slot_ms`` None runs the schedule by hand: all jobs are added and recorded as its last run; slots and
    counts do not change. The request ids of the jobs make it safe to repeat.
    """

    needs: ClassVar[str] = "schedules"

    queue: str
    name: str
    slot_ms: int | None
    jobs: list[NewJob]
    slots: list[int] = msgspec.field(default_factory=list)
    next_ms: int | None = None
