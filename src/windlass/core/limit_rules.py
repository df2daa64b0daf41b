"""Limits of queues and groups: how to write them, how usage is counted, and when the next job may start.

A *group* is a key that jobs of a queue share: a tenant, a customer, the name of a service. Two functions
decide for every store:

* ``opens_at``: when may one more job of a group be let into the line, or start?
* ``queue_room``: how many jobs of a queue may start now?

A waiting or active job of a group is *admitted*. Other ready jobs are ``parked`` in the group's own line, by
priority and place. After every change, jobs from the head of that line are let in as long as ``opens_at``
allows. The claim checks again at each start, with the store's exact start times.

* ``concurrency``: the maximum number of jobs of the group that are admitted at once.
* ``Rate``: an exact sliding window. A start is allowed when the ``max``-th last one is at least ``per`` old.
* ``Bucket``: holds up to ``capacity`` tokens and refills ``refill_per_s``. A start takes the job's ``cost``.
* ``ordered``: one job at a time, in the order in which they were added. A job keeps the place of its add. No
  later job overtakes one that is due later or will run again. Blocked and suspended jobs hold up no others,
  because they may wait for jobs that were added after them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

import msgspec

from windlass.core.job import JobRecord, NewJob
from windlass.core.option_values import check_flag, check_int, check_known, seconds_to_ms
from windlass.core.outcome import AddOutcome
from windlass.core.states import DUE_LATER, FINISHED, PENDING, JobState
from windlass.errors import ConfigError, OrderedGroupError

#: The start times of a window are stored, so their number is bounded.
MAX_RATE = 10_000
MAX_COUNT = 1_000_000
#: Tokens are counted in millionths, as integers, so that all stores compute the same values.
MICRO = 1_000_000
#: No limit: more than any claim requests.
NO_LIMIT = 1 << 30
#: The limits of every group that has none of its own are set under this name.
EVERY_GROUP = "*"
#: The maximum number of revoked tasks per queue.
MAX_REVOKED = 1_000
#: The reason of a job that was cancelled because its task is revoked.
REVOKED_REASON = "task %s is revoked"


class Rate(msgspec.Struct, frozen=True):
    """At most ``max`` starts in any ``per_ms``: see ``per_second``, ``per_minute`` and ``every``."""

    max: int
    per_ms: int

    def __post_init__(self) -> None:
        check_count("rate.max", self.max, MAX_RATE)
        check_count("rate.per_ms", self.per_ms, 366 * 86_400_000)

    @classmethod
    def every(cls, max: int, per: float | timedelta) -> Rate:
        """``max`` starts in any ``per`` (seconds or ``timedelta``)."""
        return cls(max, seconds_to_ms(per, "rate.per", minimum=0.001))

    @classmethod
    def per_second(cls, max: int) -> Rate:
        """``max`` starts in any second."""
        return cls(max, 1_000)

    @classmethod
    def per_minute(cls, max: int) -> Rate:
        """``max`` starts in any minute."""
        return cls(max, 60_000)


class Bucket(msgspec.Struct, frozen=True):
    """Tokens: ``capacity`` at most, ``refill_per_s`` more each second. A start takes the job's ``cost``."""

    capacity: int
    refill_per_s: float

    def __post_init__(self) -> None:
        check_count("bucket.capacity", self.capacity, MAX_COUNT)
        given = self.refill_per_s
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0.001 <= given <= MAX_COUNT:
            raise ConfigError("bucket.refill_per_s", f"a number from 0.001 to {MAX_COUNT}", given)

    @property
    def refill(self) -> int:
        """Millionths of a token per millisecond."""
        return round(self.refill_per_s * 1_000)


class Revocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A revoked task: its jobs end as ``cancelled`` instead of starting."""

    #: Until this time; None: until the task is restored.
    until_ms: int | None = None
    #: Whether it applies only to the next job that would start.
    once: bool = False

    def holds(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a whole queue across all workers. None: no limit."""

    concurrency: int | None = None
    rate: Rate | None = None
    #: Revoked tasks by name.
    revoked: dict[str, Revocation] = {}

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, MAX_COUNT)


class GroupLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one group, or of every group of a queue. None: no limit."""

    concurrency: int | None = None
    rate: Rate | None = None
    bucket: Bucket | None = None
    #: Strict order: one job at a time, in the order in which they were added, also when a job runs again.
    ordered: bool = False
    #: Refuse new jobs while this many jobs of the group are not finished.
    max_size: int | None = None
    #: In an ordered group: a job whose first run is due later does not hold up jobs that were added after it.
    skip_delayed: bool = False

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, MAX_COUNT)
        if self.max_size is not None:
            check_count("max_size", self.max_size, 10**12)
        check_flag("ordered", self.ordered)
        check_flag("skip_delayed", self.skip_delayed)
        if self.skip_delayed and not self.ordered:
            raise ConfigError("skip_delayed", message="skip_delayed needs ordered=True")

    @property
    def slots(self) -> int | None:
        """How many jobs may be admitted at once (None: any number)."""
        return 1 if self.ordered else self.concurrency

    def takes(self, cost: int) -> bool:
        """Whether a job of this cost can ever start."""
        return self.bucket is None or cost <= self.bucket.capacity


NO_GROUP_LIMITS = GroupLimits()


class GroupSettings(msgspec.Struct, kw_only=True):
    """The settings of one group. ``limits`` None: the queue's limits for every group apply."""

    limits: GroupLimits | None = None
    paused: bool = False
    hold_until_ms: int = 0


class GroupInfo(msgspec.Struct, kw_only=True):
    """A summary of a group."""

    name: str
    #: The number of unfinished jobs, in any state.
    size: int = 0
    waiting: int = 0
    parked: int = 0
    active: int = 0
    #: When the next parked job can be let in, if it waits only for time.
    next_ms: int | None = None
    paused: bool = False


class Usage(msgspec.Struct, kw_only=True):
    """The jobs that a group has in the store now, and its recent use of its limits."""

    size: int = 0
    waiting: int = 0
    waiting_cost: int = 0
    active: int = 0
    parked: int = 0
    #: Unfinished jobs that have a priority or are ``lifo``.
    ranked: int = 0
    #: In an ordered group: the place of the first job that later jobs may not overtake. The caller sets it.
    first: int | None = None
    paused: bool = False
    hold_until_ms: int = 0
    #: Start times, oldest first: no more than the rate's ``max``.
    starts: list[int] = []
    #: Millionths of tokens at ``level_ms``; None: full.
    level: int | None = None
    level_ms: int = 0

    def count(self, role: Role, cost: int, ranked: bool, step: int) -> None:
        """Add (``step`` 1) or remove (``step`` -1) one job."""
        self.size += step
        self.ranked += step * ranked
        match role:
            case Role.WAITING:
                self.waiting += step
                self.waiting_cost += step * cost
            case Role.ACTIVE:
                self.active += step
            case Role.PARKED:
                self.parked += step


class Role(StrEnum):
    """How a group counts an unfinished job."""

    WAITING = "waiting"
    ACTIVE = "active"
    PARKED = "parked"
    #: It has run, and is due to run again later.
    KEPT = "kept"
    #: Its first run is due later.
    DELAYED = "delayed"
    OTHER = "other"


def role_of(job: JobRecord) -> Role | None:
    """How a group counts ``job``; None if it is finished."""
    state = job.state
    if state in FINISHED:
        return None
    if state in (JobState.WAITING, JobState.ACTIVE, JobState.PARKED):
        return Role(state.value)
    if state not in DUE_LATER:
        return Role.OTHER
    return Role.KEPT if job.deliveries else Role.DELAYED


def is_ranked(job: JobRecord) -> bool:
    """Whether a job's order differs from the order of adds: it has a priority, or is ``lifo``."""
    return job.priority != 0 or job.place < 0


def wants_rank(new: NewJob | JobRecord) -> bool:
    """Whether a new job asks for an order other than the order of adds. See ``is_ranked``."""
    return new.priority != 0 or new.options.lifo


def refuses(limits: GroupLimits, new: NewJob | JobRecord, size: int) -> AddOutcome | None:
    """Why a group with ``size`` unfinished jobs refuses a new one; None if it accepts it."""
    if limits.ordered and wants_rank(new):
        return AddOutcome.OUT_OF_ORDER
    return AddOutcome.REFUSED if limits.max_size is not None and size >= limits.max_size else None


def check_switch(queue: str, before: GroupLimits, after: GroupLimits, ranked: list[str]) -> None:
    """Raise if groups become ordered of which some are ``ranked``: have jobs with a priority or ``lifo``."""
    if after.ordered and not before.ordered and ranked:
        raise OrderedGroupError.at_switch(queue, ranked[0])


def take_place(limits: GroupLimits, job: JobRecord) -> None:
    """Put a pending job of an ordered group back at the place of its add."""
    if limits.ordered and job.state in PENDING:
        job.place, job.priority = job.seq, 0


def holds_up(limits: GroupLimits) -> tuple[Role, ...]:
    """The roles in which a job of an ordered group holds up the jobs that were added after it."""
    return (Role.PARKED, Role.KEPT) if limits.skip_delayed else (Role.PARKED, Role.KEPT, Role.DELAYED)


def opens_at(
    limits: GroupLimits, usage: Usage, cost: int, now_ms: int, *, place: int = 0, starting: bool = False
) -> int | None:
    """When one more job of ``cost`` may be let in, after all waiting jobs; None: time alone gives no room.

    Times up to ``now_ms`` mean now. ``place``: the job's place, which counts in an ordered group.
    ``starting``: the job is waiting already and asks to start, so other waiting jobs do not count.
    """
    ahead, ahead_cost = (0, 0) if starting else (usage.waiting, usage.waiting_cost)
    if usage.paused:
        return None
    slots = limits.slots
    if slots is not None and usage.active + ahead >= slots:
        return None
    if limits.ordered and usage.first is not None and usage.first < place:
        return None
    at: int | None = max(now_ms, usage.hold_until_ms)
    if limits.rate is not None:
        at = _later(at, _window_opens(limits.rate, usage.starts, ahead, now_ms))
    if limits.bucket is not None:
        at = _later(at, _bucket_covers(limits.bucket, usage, ahead_cost + cost, now_ms))
    return at


def _later(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def in_window(rate: Rate, starts: list[int], now_ms: int) -> int:
    """How many of ``starts`` (oldest first) still count."""
    return len(starts) - bisect_right(starts, now_ms - rate.per_ms)


def _window_opens(rate: Rate, starts: list[int], ahead: int, now_ms: int) -> int | None:
    """When the window has room for one more start after ``ahead`` others."""
    counted = in_window(rate, starts, now_ms)
    over = counted + ahead + 1 - rate.max
    if over <= 0:
        return now_ms
    return starts[over - 1 - counted] + rate.per_ms if over <= counted else None


def tokens(bucket: Bucket, usage: Usage, now_ms: int) -> int:
    """The current level of the bucket, in millionths of tokens."""
    full = bucket.capacity * MICRO
    if usage.level is None:
        return full
    return min(full, usage.level + max(now_ms - usage.level_ms, 0) * bucket.refill)


def _bucket_covers(bucket: Bucket, usage: Usage, cost: int, now_ms: int) -> int | None:
    """When the bucket holds ``cost`` tokens."""
    if cost > bucket.capacity:
        return None  # those that wait must start first
    missing = cost * MICRO - tokens(bucket, usage, now_ms)
    return now_ms if missing <= 0 else now_ms - (-missing // bucket.refill)


def take_start(limits: GroupLimits, usage: Usage, cost: int, now_ms: int) -> None:
    """Record that a job of ``cost`` starts now."""
    if limits.rate is not None:
        note_start(limits.rate, usage.starts, now_ms)
    if limits.bucket is not None:
        usage.level = tokens(limits.bucket, usage, now_ms) - cost * MICRO
        usage.level_ms = now_ms


def note_start(rate: Rate, starts: list[int], now_ms: int) -> None:
    """Add a start to the window, and drop the ones that no decision needs: only the newest ``max`` count."""
    starts.append(now_ms)
    del starts[: -rate.max]


def drop_future(starts: list[int], now_ms: int) -> bool:
    """Drop starts in the future, which a clock that was ahead recorded. Returns whether there were any.

    They would fill the window until that time.
    """
    before = len(starts)
    del starts[bisect_right(starts, now_ms) :]
    return len(starts) < before


def set_usage_back(usage: Usage, from_ms: int, now_ms: int) -> bool:
    """Correct usage after the clock was set back. A hold keeps its remaining time; a bucket refills from now.

    Returns whether starts were dropped.
    """
    if usage.hold_until_ms > from_ms:
        usage.hold_until_ms -= from_ms - now_ms
    usage.level_ms = min(usage.level_ms, now_ms)
    return drop_future(usage.starts, now_ms)


def fit(limits: GroupLimits, usage: Usage) -> None:
    """Drop the usage that new limits no longer count."""
    usage.starts = [] if limits.rate is None else usage.starts[-limits.rate.max :]
    if limits.bucket is None:
        usage.level = None


def hold_left(until_ms: int, now_ms: int) -> int:
    """When a hold ends; 0 if it has already ended."""
    return until_ms if until_ms > now_ms else 0


def is_idle(limits: GroupLimits, usage: Usage, now_ms: int) -> bool:
    """Whether a group without settings can be removed: it has no jobs, and none of its usage still counts."""
    return (
        usage.size == 0
        and not usage.paused
        and usage.hold_until_ms <= now_ms
        and (limits.rate is None or not in_window(limits.rate, usage.starts, now_ms))
        and (limits.bucket is None or tokens(limits.bucket, usage, now_ms) >= limits.bucket.capacity * MICRO)
    )


def without_past(limits: QueueLimits, now_ms: int) -> QueueLimits:
    """``limits`` without expired revocations."""
    held = {task: one for task, one in limits.revoked.items() if one.holds(now_ms)}
    return limits if len(held) == len(limits.revoked) else msgspec.structs.replace(limits, revoked=held)


def with_revoked(limits: QueueLimits, task: str, revocation: Revocation | None) -> QueueLimits:
    """``limits`` with ``revocation`` for a task; None: the task is not revoked."""
    revoked = {name: one for name, one in limits.revoked.items() if name != task}
    if revocation is not None:
        if len(revoked) >= MAX_REVOKED:
            raise too_many_revoked(task)
        revoked[task] = revocation
    return msgspec.structs.replace(limits, revoked=revoked)


def too_many_revoked(task: str) -> ConfigError:
    return ConfigError(
        "task",
        message=f"task {task!r} cannot be revoked: the queue already has {MAX_REVOKED} revoked tasks, the "
        "limit",
        got=task,
    )


def queue_room(
    limits: QueueLimits, starts: list[int], active: int, hold_until_ms: int, now_ms: int
) -> tuple[int, int | None]:
    """How many jobs of a queue may start now; if none, when time alone gives room (None: it does not)."""
    if hold_until_ms > now_ms:
        return 0, hold_until_ms
    room = NO_LIMIT if limits.concurrency is None else limits.concurrency - active
    if limits.rate is None:
        return max(room, 0), None
    free = limits.rate.max - in_window(limits.rate, starts, now_ms)
    if free <= 0:
        return 0, starts[-limits.rate.max] + limits.rate.per_ms
    return max(min(room, free), 0), None


def opens_in(limits: QueueLimits, starts: list[int], hold_until_ms: int, now_ms: int) -> int:
    """For how many milliseconds the rate and the hold of a queue allow no start."""
    _, at_ms = queue_room(QueueLimits(rate=limits.rate), starts, 0, hold_until_ms, now_ms)
    return 0 if at_ms is None else max(at_ms - now_ms, 0)


# --- what users may write ---------------------------------------------------------------------------


def check_count(option: str, value: object, most: int) -> None:
    """Raise unless ``value`` is a whole number from 1 to ``most``."""
    check_int(option, value, 1, most)


def to_rate(value: object, option: str = "rate") -> Rate | None:
    """A ``Rate`` from any accepted form: ``(max, seconds)`` or ``{"max": ..., "duration": seconds}``."""
    if value is None or isinstance(value, Rate):
        return value
    pair = _as_pair(value, "max", "duration", option)
    if pair is None:
        raise ConfigError(option, 'a Rate, (max, seconds) or {"max": ..., "duration": seconds}', value)
    return Rate.every(*pair)


def to_bucket(value: object) -> Bucket | None:
    """A ``Bucket`` from any accepted form: ``(capacity, refill_per_s)`` or a mapping of these."""
    if value is None or isinstance(value, Bucket):
        return value
    pair = _as_pair(value, "capacity", "refill_per_s", "bucket")
    if pair is None:
        raise ConfigError("bucket", "a Bucket or (capacity, refill_per_s)", value)
    return Bucket(*pair)


def _as_pair(value: object, first: str, second: str, option: str) -> tuple[Any, Any] | None:
    """Two settings that are given as a pair or by name; None for anything else."""
    if isinstance(value, Mapping):
        check_known(value, {first, second}, f"{option} setting")
        return value.get(first), value.get(second)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value[0], value[1]
    return None


def to_group_limits(**given: Any) -> GroupLimits:
    """Checked limits from the keyword arguments of a caller."""
    check_known(given, GroupLimits.__struct_fields__, "group limit")
    given["rate"] = to_rate(given.get("rate"))
    given["bucket"] = to_bucket(given.get("bucket"))
    return GroupLimits(**given)
