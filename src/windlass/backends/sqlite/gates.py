"""Who of a group is parked, let in, or may start: what ``core.limits`` decides, on tables.

How much a group has running and in line is counted from the jobs themselves, through indexes and no further
than its limits need. Kept apart, in ``[grp]``, is only what jobs do not tell: settings, start times, tokens,
and when time alone will let the next one in. Whatever changes here is written at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from windlass.backends.sqlite.rows import Row, encode_json, pack, record
from windlass.core import damage, transitions
from windlass.core import limits as lm
from windlass.core.limits import GroupLimits, QueueLimits, Role, Usage
from windlass.core.states import FINISHED, JobState
from windlass.core.transitions import NO_TURN

if TYPE_CHECKING:
    from collections.abc import Callable

    from windlass.backends.sqlite.tx import Step
    from windlass.core.job import JobRecord, NewJob
    from windlass.core.outcome import AddOutcome

    Select = Callable[..., list[Row]]

#: Bits of a queue's ``special``.
GROUPED, LIMITED = 1, 2
#: Most parked jobs that one request moves.
STEP = 1_000
#: More jobs than any limit allows.
_MANY = 1 << 40

_queue_limits = msgspec.json.Decoder(QueueLimits).decode
_group_limits = msgspec.json.Decoder(GroupLimits).decode
_starts = msgspec.msgpack.Decoder(list[int]).decode


class QueueRow:
    """The limits of one queue and of all its groups."""

    def __init__(self, select: Select, num: int) -> None:
        self.num = num
        found = select("limits", num)
        own, every, hold_ms, starts = found[0] if found else ("{}", "{}", 0, None)
        self.hold_until_ms: int = hold_ms
        what = f"the limits of queue number {num}"
        self.own = damage.read_or_none(own, _queue_limits, what) or QueueLimits()
        self.every = damage.read_or_none(every, _group_limits, what) or GroupLimits()
        self.starts: list[int] = damage.read_or_none(starts, _starts, what) or [] if starts else []

    def save(self, step: Step) -> None:
        starts = pack(self.starts) if self.starts else None
        step.run(
            "limits_save",
            self.num,
            encode_json(self.own),
            encode_json(self.every),
            self.hold_until_ms,
            starts,
        )


class GroupRow:
    """One group: its settings, what it used lately, and when time will let its next job in."""

    def __init__(self, select: Select, num: int, name: str) -> None:
        self.num = num
        self.name = name
        found = select("grp", num, name)
        own, paused, hold_ms, starts, level, level_ms, next_ms = (
            found[0] if found else (None, 0, 0, None, None, 0, None)
        )
        what = f"the limits of group {name} of queue number {num}"
        self.next_ms: int | None = next_ms
        self.own: GroupLimits | None = None if own is None else damage.read_or_none(own, _group_limits, what)
        self.usage = Usage(
            paused=bool(paused),
            hold_until_ms=hold_ms,
            starts=damage.read_or_none(starts, _starts, what) or [] if starts else [],
            level=level,
            level_ms=level_ms,
        )

    def save(self, step: Step) -> None:
        usage = self.usage
        step.run(
            "grp_save",
            self.num,
            self.name,
            None if self.own is None else encode_json(self.own),
            usage.paused,
            usage.hold_until_ms,
            pack(usage.starts) if usage.starts else None,
            usage.level,
            usage.level_ms,
            self.next_ms,
        )

    def opens_at(
        self,
        select: Select,
        limits: GroupLimits,
        job: JobRecord,
        now_ms: int,
        *,
        starting: bool = False,
    ) -> int | None:
        """``core.limits.opens_at`` for ``job``: all others of the group count."""
        usage, key, but = self.usage, (self.num, self.name), job.seq
        most = max(limits.slots or 0, limits.rate.max if limits.rate else 0, 1)
        counted = limits.slots is not None or limits.rate is not None
        usage.waiting = usage.active = usage.waiting_cost = 0
        if counted and not starting:
            usage.waiting = select("group_count", *key, "waiting", but, most)[0][0]
        if limits.slots is not None:
            usage.active = select("group_count", *key, "active", but, most)[0][0]
        if limits.ordered:
            usage.first = self._first(select, limits, but)
        if limits.bucket is not None and not starting:
            usage.waiting_cost = select("group_cost", *key, but)[0][0]
        cost, place = job.options.cost, job.place
        return lm.opens_at(limits, usage, cost, now_ms, place=place, starting=starting)

    def _first(self, select: Select, limits: GroupLimits, but: int) -> int | None:
        """The place of the first job that holds up those behind it: see ``core.limits.holds_up``."""
        key = (self.num, self.name)
        rows = [*select("group_first", *key, "parked", but), *select("group_first", *key, "retrying", but)]
        if Role.DELAYED in lm.holds_up(limits):
            rows += select("group_first", *key, "scheduled", but)
        else:
            rows += select("group_first_again", *key, but)
        return min((place for (place,) in rows), default=None)

    def is_ranked(self, select: Select) -> bool:
        """Whether an unfinished job of the group has a priority or is ``lifo``."""
        states = [state.value for state in JobState if state not in FINISHED]
        return any(select("group_ranked", self.num, self.name, state) for state in states)


class Gates:
    """The groups that one request deals with."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._queues: dict[int, QueueRow] = {}
        self._groups: dict[tuple[int, str], GroupRow] = {}
        #: Whoever claims is told when to ask again.
        self.claiming = False
        self._left = STEP

    def queue(self, num: int) -> QueueRow:
        found = self._queues.get(num)
        if found is None:
            found = self._queues[num] = QueueRow(self._step.all, num)
        return found

    def group(self, num: int, name: str) -> GroupRow:
        found = self._groups.get((num, name))
        if found is None:
            found = self._groups[num, name] = GroupRow(self._step.all, num, name)
        return found

    def forget(self, num: int) -> None:
        """The queue's settings are gone."""
        self._queues.pop(num, None)
        for key in [key for key in self._groups if key[0] == num]:
            del self._groups[key]

    def limits(self, group: GroupRow) -> GroupLimits:
        return group.own if group.own is not None else self.queue(group.num).every

    def refuses(self, num: int, new: NewJob, coming: int = 0) -> AddOutcome | None:
        """Why the group of a new job does not take it, after ``coming`` others; None when it does."""
        name = new.options.group or ""
        limits, size = self.limits(self.group(num, name)), 0
        if limits.max_size is not None:
            size = self._step.all("group_size", num, name, limits.max_size)[0][0]
        return lm.refuses(limits, new, size + coming)

    def is_ordered(self, num: int, job: JobRecord | NewJob) -> bool:
        """Whether the job's group is ordered."""
        group = job.options.group
        return group is not None and self.limits(self.group(num, group)).ordered

    # --- at every change of a job of a group --------------------------------------------------------

    def check(self, num: int, job: JobRecord) -> None:
        """Park a job that has become ready while its group has no room; end one that can never start.

        As ``Gatekeeper.check`` of the memory store. The job is not saved yet: its row still tells of before.
        """
        if job.options.group is None:
            return
        step, group = self._step, self.group(num, job.options.group)
        limits = self.limits(group)
        lm.take_place(limits, job)
        if job.state is not JobState.WAITING or job.turn != NO_TURN:
            return
        if not limits.takes(job.options.cost):
            transitions.refuse_cost(job, step)
        elif not self._has_room(group, limits, job):
            transitions.park(job, step)

    def _has_room(self, group: GroupRow, limits: GroupLimits, job: JobRecord) -> bool:
        step = self._step
        heads = step.all("group_head", group.num, group.name, job.seq)
        if heads:
            head = record(heads[0], job.queue)
            if (-head.priority, head.place) < (-job.priority, job.place):
                return False
        at_ms = group.opens_at(step.all, limits, job, step.now_ms)
        return at_ms is not None and at_ms <= step.now_ms

    def fresh_turn(self, num: int, job: JobRecord) -> int:
        """The turn of a job that joins the line: see the memory store's ``Line``."""
        step, group = self._step, job.options.group or ""
        last = step.one("turn_last", num, group, job.priority, job.seq)
        if last is None and not group and step.one("turn_plain", num, job.priority, job.seq):
            last = (0,)
        now = step.one("turn_now", num, job.priority, job.seq)
        return max(last[0] + 1 if last else 0, now[0] if now else 0)

    def advance(self, num: int, name: str, budget: int = STEP) -> int:
        """Let in parked jobs from the head of a group's line, as many as have room; returns how many."""
        step, group = self._step, self.group(num, name)
        limits, moved = self.limits(group), 0
        budget = min(budget, self._left)
        at_ms: int | None = None
        while heads := step.all("group_head", num, name, 0):
            job = record(heads[0], step.queues.name(num))
            if damage.is_lost(job):
                step.set_aside(job)
                continue
            takes = limits.takes(job.options.cost)
            at_ms = group.opens_at(step.all, limits, job, step.now_ms)
            if takes and (at_ms is None or at_ms > step.now_ms):
                break
            if moved >= budget:
                at_ms = step.now_ms
                break
            if transitions.is_expired(job, step.now_ms):
                transitions.expire(job, step)
            elif not takes:
                transitions.refuse_cost(job, step)
            else:
                transitions.let_in(job, step)
            step.book(num, job, JobState.PARKED)
            moved += 1
            self._left -= 1
        else:
            at_ms = None
        self._wait_until(group, at_ms)
        return moved

    def _wait_until(self, group: GroupRow, at_ms: int | None) -> None:
        if at_ms != group.next_ms:
            group.next_ms = at_ms
            group.save(self._step)
            if at_ms is not None and not self.claiming:  # idle workers must know how long to sleep
                self._step.topics.add(f"ready:{self._step.queues.name(group.num)}")

    def advance_timed(self, num: int, budget: int) -> int:
        """Let in what time allows now, in all groups of a queue; returns how many jobs it moved."""
        moved = 0
        while moved < min(budget, self._left + moved):
            first = self._step.one("grp_next", num)
            if first is None or first[1] > self._step.now_ms:
                break
            moved += self.advance(num, first[0], budget - moved)
        return moved

    def may_start(self, num: int, job: JobRecord) -> bool:
        """Whether a waiting job may start now; if not, it is parked (or ended) here."""
        if job.options.group is None:
            return True
        step, group = self._step, self.group(num, job.options.group)
        limits = self.limits(group)
        if not limits.takes(job.options.cost):
            transitions.refuse_cost(job, step)
            return False
        at_ms = group.opens_at(step.all, limits, job, step.now_ms, starting=True)
        if at_ms is None or at_ms > step.now_ms:
            transitions.park(job, step)
            return False
        return True

    def started(self, num: int, job: JobRecord) -> None:
        """Take down a start where the group's rate and bucket count it."""
        if job.options.group is None:
            return
        group = self.group(num, job.options.group)
        limits = self.limits(group)
        if limits.rate is not None or limits.bucket is not None:
            lm.take_start(limits, group.usage, job.options.cost, self._step.now_ms)
            group.save(self._step)

    # --- whole queues -------------------------------------------------------------------------------

    def room(self, num: int, name: str) -> tuple[int, int | None]:
        """How many jobs may start now by the queue's own limits; see ``queue_room``."""
        row = self.queue(num)
        active = 0 if row.own.concurrency is None else self._step.totals(name)[JobState.ACTIVE]
        return lm.queue_room(row.own, row.starts, active, row.hold_until_ms, self._step.now_ms)

    def queue_started(self, num: int, count: int) -> None:
        """Take down starts where the queue's rate counts them."""
        row = self.queue(num)
        if row.own.rate is not None and count:
            for _ in range(count):
                lm.note_start(row.own.rate, row.starts, self._step.now_ms)
            row.save(self._step)

    def next_ms(self, num: int, name: str, special: int) -> int | None:
        """When time alone lets something of the queue in, or start."""
        step, times = self._step, []
        first = step.one("grp_next", num) if special & GROUPED else None
        if first is not None:
            times.append(first[1])
        if special & LIMITED:
            room, at_ms = self.room(num, name)
            if room == 0 and at_ms is not None and step.one("job_any_ready", num):
                times.append(at_ms)
        return min(times, default=None)

    def hold_group(self, num: int, name: str, ms: int) -> int:
        """Start nothing of a group for ``ms`` (0: go on)."""
        step, group = self._step, self.group(num, name)
        usage = group.usage
        usage.hold_until_ms = max(usage.hold_until_ms, step.now_ms + ms) if ms else 0
        group.save(step)
        self.advance(num, name)
        step.topics.add(f"ready:{step.queues.name(num)}")
        return usage.hold_until_ms

    def set_back(self, from_ms: int) -> None:
        """The store's time goes back to now: see ``core.limits.set_usage_back``."""
        step, now_ms = self._step, self._step.now_ms
        for (num,) in step.all("limits_queues"):
            row = self.queue(num)
            if row.hold_until_ms > from_ms:
                row.hold_until_ms -= from_ms - now_ms
            lm.drop_future(row.starts, now_ms)
            row.save(step)
        for num, name in step.all("grp_all"):
            group = self.group(num, name)
            lm.set_usage_back(group.usage, from_ms, now_ms)
            group.next_ms = None if group.next_ms is None else min(group.next_ms, now_ms)
            group.save(step)

    def prune(self, num: int) -> None:
        """Forget groups that are empty and used nothing that still counts."""
        step = self._step
        for (name,) in step.all("grp_idle", num, STEP):
            group = self.group(num, name)
            group.usage.size = step.all("group_size", num, name, 1)[0][0]
            if lm.is_idle(self.limits(group), group.usage, step.now_ms):
                step.run("grp_delete", num, name)
                del self._groups[num, name]


def count_of(select: Select, num: int, name: str, state: str) -> int:
    """How many jobs of a group are in a state."""
    found: Any = select("group_count", num, name, state, 0, _MANY)[0][0]
    return int(found)
