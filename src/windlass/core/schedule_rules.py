"""Recurring schedules: their rules, their slots, and every decision about them, without I/O.

A *slot* is a time at which a schedule is due. Each slot adds at most one job, whose id is derived from the
schedule and the slot. The next slot is computed from the previous slot, never from the clock, so schedules do
not drift. ``FireSchedule`` names the slot that it fires, and the store accepts it only while that is the next
slot. So one of several workers succeeds.

When the wall clock jumps (daylight saving time):

* a rule that names hours (``30 2 * * *``) follows the wall clock. A local time that is skipped fires at the
  jump. A local time that occurs twice fires only the first time;
* a rule that runs in every hour (``*/5 * * * *``) follows real time and is not affected. If clocks change by
  half an hour, its minutes are those of the new local time, but no pause between two slots gets longer.

A slot that no worker fired within a minute is *missed*, and the schedule's ``missed`` rule says what happens
to it. Before that it is only late, and is fired.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec
from cronsim import CronSim, CronSimError

from windlass.core.ids import content_id
from windlass.core.job import NewJob
from windlass.core.option_values import (
    Duration,
    check_flag,
    check_int,
    check_known,
    instant_to_ms,
    seconds_to_ms,
)
from windlass.errors import ConfigError

#: A slot that no worker fired this long after its time counts as missed.
LATE_MS = 60_000
#: The highest ``limit`` of a schedule. Stores keep it in 64 bits.
_MOST_JOBS = 10**12
#: The maximum number of slots of one schedule that one request fires.
SLOTS_PER_STEP = 100
#: The maximum number of schedules that a scheduler checks at once.
SCHEDULES_PER_STEP = 100
_MIN_EVERY_MS = 100
_HOUR = timedelta(hours=1)
_SECOND = timedelta(seconds=1)

Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip"]
#: A custom rule: returns the first slot after a time (given in the schedule's time zone), or None.
ScheduleStrategy = Callable[[datetime], datetime | None]

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rule for the slots of a schedule. Exactly one of ``cron``, ``every_ms`` and ``strategy`` is set."""

    cron: str | None = None
    every_ms: int | None = None
    #: The name of a strategy that the application registered.
    strategy: str | None = None
    timezone: str = "UTC"
    #: No slot is before this time. The intervals of ``every_ms`` are counted from here.
    start_ms: int | None = None
    #: An additional first slot: the time at which the schedule is stored (or ``start_ms``).
    at_start: bool = False


class ScheduleRecord(msgspec.Struct, kw_only=True):
    """A schedule as it is stored. Names are unique within a queue."""

    queue: str
    name: str
    #: The job to add at each slot, without id and request id: ``slot_job`` sets them.
    template: NewJob
    rule: Rule
    #: No slot is after this time, and at most this many jobs are added in total.
    end_ms: int | None = None
    limit: int | None = None
    missed: Missed = "skip"
    overlap: Overlap = "allow"
    #: The code that declares it ("": created by hand). A deploy may remove schedules of its own source.
    source: str = ""
    paused: bool = False
    #: The next slot; None if there are no more.
    next_ms: int | None = None
    #: The last slot that was fired (or the time of the last run by hand), and its job.
    last_ms: int | None = None
    last_job_id: str | None = None
    #: The number of jobs that slots have added, and of slots that added none (overlap, limit, unique key or
    #: a group that refuses them).
    fired: int = 0
    skipped: int = 0


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When jobs are added repeatedly. Set one of ``cron``, ``every`` and ``strategy``."""

    #: Five fields (or six, seconds first), or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``,
    #: ``@yearly``.
    cron: str | None = None
    #: Seconds (or a timedelta) between two slots.
    every: Duration | None = None
    #: The name of a custom rule: ``Windlass(schedule_strategies={name: function})``.
    strategy: str | None = None
    timezone: str = "UTC"
    #: Bounds: aware datetimes or seconds since 1970.
    start: datetime | float | None = None
    end: datetime | float | None = None
    #: The maximum number of jobs in total.
    limit: int | None = None
    #: For slots that no worker fired within a minute: ``skip`` them, run ``once`` for all of them, or run
    #: ``all``.
    missed: Missed = "skip"
    #: ``skip``: add no job while the previous one is unfinished.
    overlap: Overlap = "allow"
    #: Also run at once when the schedule is created or its rule changes.
    at_start: bool = False

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.cron, self.every, self.strategy)) != 1:
            raise ConfigError("schedule", message="a schedule needs exactly one of cron, every and strategy")
        zone(self.timezone)
        if self.cron is not None:
            check_cron(self.cron)
        if self.every is not None:
            seconds_to_ms(self.every, "every", minimum=_MIN_EVERY_MS / 1000)
        if self.limit is not None:
            check_int("limit", self.limit, 1, _MOST_JOBS)
        if self.missed not in ("skip", "once", "all"):
            raise ConfigError("missed", "skip, once or all", self.missed)
        if self.overlap not in ("allow", "skip"):
            raise ConfigError("overlap", "allow or skip", self.overlap)
        check_flag("at_start", self.at_start)
        start_ms, end_ms = self.rule.start_ms, self.end_ms
        if start_ms is not None and end_ms is not None and end_ms < start_ms:
            raise ConfigError("end", message=f"end {self.end} is before start {self.start}", got=self.end)

    @property
    def rule(self) -> Rule:
        """The rule for the slots, in its stored form."""
        return Rule(
            cron=None if self.cron is None else " ".join(ALIASES.get(self.cron, self.cron).split()),
            every_ms=None if self.every is None else seconds_to_ms(self.every, "every"),
            strategy=self.strategy,
            timezone=self.timezone,
            start_ms=None if self.start is None else instant_to_ms(self.start, "start"),
            at_start=self.at_start,
        )

    @property
    def end_ms(self) -> int | None:
        return None if self.end is None else instant_to_ms(self.end, "end")

    def record(self, queue: str, name: str, template: NewJob, source: str = "") -> ScheduleRecord:
        """The record to store."""
        return ScheduleRecord(
            queue=queue,
            name=name,
            template=template,
            rule=self.rule,
            end_ms=self.end_ms,
            limit=self.limit,
            missed=self.missed,
            overlap=self.overlap,
            source=source,
        )


#: Names that other systems use for the fields of a schedule.
_OTHER_NAMES = {
    "pattern": "cron",
    "tz": "timezone",
    "start_date": "start",
    "startDate": "start",
    "end_date": "end",
    "endDate": "end",
    "immediately": "at_start",
}
SCHEDULE_OPTIONS = frozenset(Schedule.__struct_fields__)


def to_schedule(given: Schedule | Mapping[str, Any]) -> Schedule:
    """A ``Schedule`` from any accepted form: a ``Schedule``, or a mapping of its fields."""
    if isinstance(given, Schedule):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError("schedule", 'a Schedule, or {"cron": ...} or {"every": ...}', given)
    named = {_OTHER_NAMES.get(key, key): value for key, value in given.items()}
    check_known(named, SCHEDULE_OPTIONS, "schedule option")
    return Schedule(**named)


# --- slots ----------------------------------------------------------------------------------------


def zone(name: str) -> tzinfo:
    """The time zone with this name, or ``ConfigError``."""
    if name == "UTC":
        return UTC
    if not isinstance(name, str):
        raise ConfigError("timezone", "a name such as Europe/Berlin", name)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        near = difflib.get_close_matches(name, available_timezones(), 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError("timezone", f"a name such as Europe/Berlin{hint}", name) from None


def check_cron(expression: object) -> None:
    """Raise unless ``expression`` is a cron expression with a slot in the next 50 years."""
    if not isinstance(expression, str):
        raise ConfigError("cron", "a text such as '*/5 * * * *'", expression)
    try:
        next(CronSim(ALIASES.get(expression, expression), datetime(2024, 1, 1)))
    except (CronSimError, StopIteration) as exc:
        why = f" ({exc})" if str(exc) else ""
        if "day-of-month" in why:
            why = f" ({exc}: no month that it names has such a day)"
        raise ConfigError("cron", f"five fields such as '*/5 * * * *'{why}", expression) from None


def next_slot(
    rule: Rule,
    after_ms: int,
    *,
    grid_ms: int | None = None,
    strategies: Mapping[str, ScheduleStrategy] | None = None,
) -> int | None:
    """The first slot after ``after_ms``; None if there is none.

    ``grid_ms`` is any slot of the schedule. Intervals are counted from it (else from ``start_ms``, else from
    ``after_ms``). Raises ``ConfigError`` for a strategy that is not in ``strategies``, and for a stored rule
    that is not valid.
    """
    if rule.every_ms is not None:
        if rule.every_ms < 1:
            raise ConfigError("every", "a duration above 0", rule.every_ms / 1000)
        if grid_ms is None or (rule.at_start and rule.start_ms is not None):
            grid_ms = rule.start_ms
        if grid_ms is None:
            return after_ms + rule.every_ms
        return grid_ms + max((after_ms - grid_ms) // rule.every_ms + 1, 0) * rule.every_ms
    if rule.start_ms is not None:
        after_ms = max(after_ms, rule.start_ms - 1)
    after = datetime.fromtimestamp(after_ms / 1000, UTC)
    if rule.cron is not None:
        slot = _after_cron(rule.cron, zone(rule.timezone), after)
    else:
        slot = _after_strategy(rule, after, strategies or {})
    return None if slot is None else round(slot.timestamp() * 1000)


def _after_strategy(
    rule: Rule, after: datetime, strategies: Mapping[str, ScheduleStrategy]
) -> datetime | None:
    strategy = strategies.get(rule.strategy or "")
    if strategy is None:
        raise ConfigError(
            "strategy",
            message=f"unknown schedule strategy {rule.strategy!r} (known: {', '.join(strategies) or 'none'})",
            got=rule.strategy,
        )
    slot = strategy(after.astimezone(zone(rule.timezone)))
    if slot is not None and (slot.tzinfo is None or slot <= after):
        raise ConfigError(
            "strategy",
            message=f"schedule strategy {rule.strategy!r} must return an aware datetime after {after}, got "
            f"{slot!r}",
            got=(rule.strategy, slot),
        )
    return slot


def _after_cron(expression: str, tz: tzinfo, after: datetime) -> datetime | None:
    start = after if tz is UTC else after.astimezone(tz).replace(tzinfo=None)
    try:
        walls = CronSim(expression, start)
    except CronSimError as exc:
        raise ConfigError("cron", f"a cron expression ({exc})", expression) from exc
    if tz is UTC:
        return next(walls, None)
    if len(walls.hours) == 24:
        return _in_every_hour(expression, tz, after)
    slots = (_at_wall(wall, tz) for wall in walls)
    # Skips the second occurrence of an hour, and a jump that has fired already.
    return next((slot for slot in slots if slot > after), None)


def _in_every_hour(expression: str, tz: tzinfo, after: datetime) -> datetime | None:
    """The next slot of a rule that runs in every hour.

    If clocks change by part of an hour, the next slot by the new local time may be later than by the old one.
    Then it also fires by the old one, so that no pause gets longer.
    """
    slot = _by_local_time(expression, tz, after)
    if slot is None:
        return None
    old, new = _offset(tz, slot - _HOUR), _offset(tz, slot)
    if (new - old) % _HOUR == timedelta():
        return slot
    change = _clock_change(tz, slot - _HOUR, slot)
    by_old = _by_offset(expression, old, change - _SECOND)
    by_new = _by_local_time(expression, tz, change - _SECOND)
    return by_old if by_old and by_new and after < by_old < by_new else slot


def _by_local_time(expression: str, tz: tzinfo, after: datetime) -> datetime | None:
    """The first time after ``after`` at which the local time is one that the expression names."""
    since = after
    while True:
        offset = _offset(tz, since)
        slot = _by_offset(expression, offset, max(after, since - _SECOND))
        if slot is None or _offset(tz, slot) == offset:
            return slot
        since = _clock_change(tz, since, slot)


def _by_offset(expression: str, offset: timedelta, after: datetime) -> datetime | None:
    """The first time after ``after`` that the expression names, if clocks never change."""
    wall = next(CronSim(expression, (after + offset).replace(tzinfo=None)), None)
    return None if wall is None else (wall - offset).replace(tzinfo=UTC)


def _clock_change(tz: tzinfo, early: datetime, late: datetime) -> datetime:
    """When the offset of ``early`` ends, which ``late`` no longer has."""
    old = _offset(tz, early)
    return _first(early, late, lambda at: _offset(tz, at) != old)


def _offset(tz: tzinfo, instant: datetime) -> timedelta:
    return instant.astimezone(tz).utcoffset() or timedelta()


def _at_wall(wall: datetime, tz: tzinfo) -> datetime:
    """When clocks first show the local time ``wall``, or when they jump over it."""
    slot = wall.replace(tzinfo=tz, fold=0).astimezone(UTC)
    return slot if slot.astimezone(tz).replace(tzinfo=None) == wall else _jump_over(wall, tz)


def _jump_over(wall: datetime, tz: tzinfo) -> datetime:
    """When clocks jump over ``wall``, a local time that does not exist."""
    early, late = (wall.replace(tzinfo=tz, fold=fold).astimezone(UTC) for fold in (1, 0))
    return _first(early, late, lambda at: at.astimezone(tz).replace(tzinfo=None) >= wall)


def _first(early: datetime, late: datetime, has_come: Callable[[datetime], bool]) -> datetime:
    """The first full second after ``early`` at which ``has_come``, which is true at ``late``."""
    while late - early > _SECOND:
        middle = (early + (late - early) / 2).replace(microsecond=0)
        if has_come(middle):
            late = middle
        else:
            early = middle
    return late


# --- decisions ------------------------------------------------------------------------------------


def first_slot(
    schedule: ScheduleRecord, now_ms: int, strategies: Mapping[str, ScheduleStrategy] | None = None
) -> int | None:
    """The first slot of a schedule that is stored now."""
    start_ms = schedule.rule.start_ms
    if schedule.rule.at_start:
        return _within(schedule, now_ms if start_ms is None else max(now_ms, start_ms))
    after_ms = now_ms - 1 if start_ms is not None and start_ms >= now_ms else now_ms
    return _within(schedule, next_slot(schedule.rule, after_ms, strategies=strategies))


def slot_after(
    schedule: ScheduleRecord, after_ms: int, strategies: Mapping[str, ScheduleStrategy] | None = None
) -> int | None:
    """The first slot of a stored schedule after ``after_ms``."""
    grid_ms = schedule.next_ms if schedule.next_ms is not None else schedule.last_ms
    return _within(schedule, next_slot(schedule.rule, after_ms, grid_ms=grid_ms, strategies=strategies))


def _within(schedule: ScheduleRecord, slot_ms: int | None) -> int | None:
    if slot_ms is None or (schedule.end_ms is not None and slot_ms > schedule.end_ms):
        return None
    return slot_ms


class Firing(msgspec.Struct, frozen=True):
    """The slots of a due schedule for which to add jobs, and its next slot."""

    slots: list[int]
    next_ms: int | None


def plan_firing(
    schedule: ScheduleRecord, now_ms: int, strategies: Mapping[str, ScheduleStrategy] | None = None
) -> Firing:
    """The slots of a due schedule to fire now, at most ``SLOTS_PER_STEP``. ``next_ms`` may be due already."""
    due_ms = schedule.next_ms
    if due_ms is None or due_ms > now_ms:
        raise ConfigError("schedule", message=f"schedule {schedule.name!r} is not due", got=schedule.name)
    is_missed = due_ms <= now_ms - LATE_MS
    if is_missed and schedule.missed == "once":
        return Firing([due_ms], slot_after(schedule, now_ms, strategies))
    slot_ms: int | None = due_ms
    if is_missed and schedule.missed == "skip":
        slot_ms = slot_after(schedule, now_ms - LATE_MS, strategies)
    slots: list[int] = []
    while slot_ms is not None and slot_ms <= now_ms and len(slots) < SLOTS_PER_STEP:
        slots.append(slot_ms)
        slot_ms = slot_after(schedule, slot_ms, strategies)
    return Firing(slots, slot_ms)


def slot_job_id(name: str, slot: int | str) -> str:
    """The id of the job of a slot. Every worker computes the same id."""
    safe = all(char.isascii() and (char.isalnum() or char in "._-") for char in name)
    return f"{name if safe and len(name) <= 200 else content_id(name)}.{slot}"


def slot_job(schedule: ScheduleRecord, slot: int | str) -> NewJob:
    """The job of a slot, or of a run by hand (then ``slot`` is a text). Its options name the schedule."""
    job = copy.copy(schedule.template)
    job.id = job.request_id = slot_job_id(schedule.name, slot)
    slot_ms = slot if isinstance(slot, int) else None
    job.options = msgspec.structs.replace(job.options, schedule=schedule.name, slot_ms=slot_ms)
    return job


def put(old: ScheduleRecord | None, new: ScheduleRecord) -> ScheduleRecord:
    """The record after ``new`` replaced ``old``.

    If the rule is the same, the next slot and the counts are kept. A pause is always kept.
    """
    record = copy.copy(new)
    record.last_ms, record.last_job_id, record.fired, record.skipped = None, None, 0, 0
    if old is not None:
        record.paused = old.paused
        record.last_ms, record.last_job_id = old.last_ms, old.last_job_id
        if old.rule == new.rule:
            record.fired, record.skipped = old.fired, old.skipped
            record.next_ms = old.next_ms if old.next_ms is not None else new.next_ms
    record.next_ms = _bounded(record, record.next_ms)
    return record


def pause(schedule: ScheduleRecord, paused: bool, next_ms: int | None) -> bool:
    """Pause a schedule, or resume it with the slot ``next_ms``. Returns whether it changed."""
    if schedule.paused is paused:
        return False
    schedule.paused = paused
    if not paused:
        schedule.next_ms = _bounded(schedule, next_ms)
    return True


def may_fire(schedule: ScheduleRecord, slot_ms: int) -> bool:
    """Whether the slot that a worker wants to fire is still the schedule's next one."""
    return not schedule.paused and schedule.next_ms == slot_ms


def jobs_to_add(schedule: ScheduleRecord, jobs: list[NewJob], *, last_unfinished: bool) -> list[NewJob]:
    """The jobs of the slots that may be added: within the limit, and without overlap if that is skipped."""
    if schedule.overlap == "skip":
        jobs = [] if last_unfinished else jobs[:1]
    if schedule.limit is not None:
        jobs = jobs[: max(schedule.limit - schedule.fired, 0)]
    return jobs


def advance(
    schedule: ScheduleRecord, slots: list[int], added: list[tuple[int, NewJob]], next_ms: int | None
) -> None:
    """Record that ``slots`` were fired. ``added``: the added jobs, with the numbers of their slots."""
    schedule.fired += len(added)
    schedule.skipped += len(slots) - len(added)
    if added:
        number, last = added[-1]
        schedule.last_ms, schedule.last_job_id = slots[number], last.id
    schedule.next_ms = _bounded(schedule, next_ms)


def _bounded(schedule: ScheduleRecord, next_ms: int | None) -> int | None:
    """``next_ms``, or None if the limit or the end of the schedule is reached."""
    if schedule.limit is not None and schedule.fired >= schedule.limit:
        return None
    return _within(schedule, next_ms)
