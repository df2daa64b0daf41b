"""Limits and groups in the memory store: who is parked, who is let in, who may start; and their verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from windlass.backend import limits as lrq
from windlass.backends.memory.groups import Group
from windlass.backends.memory.journal import Table
from windlass.core import limits as lm
from windlass.core import transitions
from windlass.core.job import JobRecord, NewJob
from windlass.core.limits import EVERY_GROUP, GroupInfo, GroupSettings
from windlass.core.states import JobState
from windlass.core.transitions import NO_TURN, Scribe

if TYPE_CHECKING:
    from windlass.backends.memory.store import MemoryStore, StoredQueue

#: Most parked jobs that one step lets in.
STEP = 1_000


class Gatekeeper:
    """Decides for jobs of groups; the store files them."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._left = STEP
        #: Whoever claims is told when to ask again.
        self.claiming = False
        self.verbs: dict[type[Any], Callable[[Any, Scribe], Any]] = {
            lrq.SetQueueLimits: self._set_queue_limits,
            lrq.SetGroupLimits: self._set_group_limits,
            lrq.PauseGroup: self._pause_group,
            lrq.Hold: self._hold,
            lrq.GetLimits: self._get_limits,
            lrq.ListGroups: self._list_groups,
        }

    def begin(self) -> None:
        """A new step begins: so many parked jobs may be moved in it."""
        self._left, self.claiming = STEP, False

    # --- at every change of a job of a group ------------------------------------------------------

    def check(self, queue: StoredQueue, job: JobRecord, scribe: Scribe) -> None:
        """Park a job that has become ready while its group has no room; end one that can never start.

        A job that keeps its place (released, recovered) keeps its admission.
        """
        group = queue.groups.get(job.options.group or "")
        group.forget(job.id)
        limits = queue.groups.limits(group)
        lm.take_place(limits, job)
        if job.state is not JobState.WAITING or job.turn != NO_TURN:
            return
        if not limits.takes(job.options.cost):
            transitions.refuse_cost(job, scribe)
        elif not self._has_room(queue, group, job, scribe.now_ms):
            transitions.park(job, scribe)

    def _has_room(self, queue: StoredQueue, group: Group, job: JobRecord, now_ms: int) -> bool:
        first = group.head(queue.jobs)
        if first is not None and (-first.priority, first.place) < (-job.priority, job.place):
            return False
        at_ms = group.opens_at(queue.groups.limits(group), job, now_ms)
        return at_ms is not None and at_ms <= now_ms

    def advance(self, queue: StoredQueue, group: Group, scribe: Scribe, budget: int = STEP) -> int:
        """Let in parked jobs from the head of the line, as many as have room; returns how many it moved.

        When the step has moved its share, the rest is due at once: the next claim goes on.
        """
        limits, moved = queue.groups.limits(group), 0
        budget = min(budget, self._left)
        at_ms: int | None = None
        while (job := group.head(queue.jobs)) is not None:
            at_ms = group.opens_at(limits, job, scribe.now_ms)
            if limits.takes(job.options.cost) and (at_ms is None or at_ms > scribe.now_ms):
                break
            if moved >= budget:
                at_ms = scribe.now_ms
                break
            if transitions.is_expired(job, scribe.now_ms):
                transitions.expire(job, scribe)
            elif not limits.takes(job.options.cost):
                transitions.refuse_cost(job, scribe)
            else:
                transitions.let_in(job, scribe)
            self._store.book(queue, job)
            moved += 1
            self._left -= 1
        else:
            at_ms = None
        self._wait_until(queue, group, at_ms)
        return moved

    def _wait_until(self, queue: StoredQueue, group: Group, at_ms: int | None) -> None:
        if at_ms != group.next_ms:
            queue.groups.wait_until(group, at_ms)
            self._changed(queue, group)
            if at_ms is not None and not self.claiming:  # idle workers must know how long to sleep
                self._store.wake(queue)

    def _changed(self, queue: StoredQueue, group: Group) -> None:
        self._store.journal.row(Table.GROUP, queue.name, group.name)

    def advance_timed(self, queue: StoredQueue, budget: int, scribe: Scribe) -> int:
        """Let in what time allows now, in all groups of a queue; returns how many jobs it moved."""
        moved = 0
        while moved < min(budget, self._left + moved):
            group = queue.groups.next_timed()
            if group is None or group.next_ms is None or group.next_ms > scribe.now_ms:
                break
            moved += self.advance(queue, group, scribe, budget - moved)
        return moved

    def may_start(self, queue: StoredQueue, job: JobRecord, scribe: Scribe) -> bool:
        """Whether a waiting job may start now; if not, it is parked (or ended) here."""
        if job.options.group is None:
            return True
        group = queue.groups.get(job.options.group)
        limits = queue.groups.limits(group)
        if not limits.takes(job.options.cost):
            transitions.refuse_cost(job, scribe)
            return False
        at_ms = group.opens_at(limits, job, scribe.now_ms, starting=True)
        if at_ms is None or at_ms > scribe.now_ms:
            transitions.park(job, scribe)
            return False
        return True

    def is_ordered(self, job: JobRecord | NewJob) -> bool:
        """Whether the job's group is ordered."""
        if job.options.group is None:
            return False
        groups = self._store.queue(job.queue).groups
        return groups.limits(groups.get(job.options.group)).ordered

    def refuses_rank(self, one: JobRecord | NewJob, new: NewJob) -> bool:
        """Whether the group of ``one`` is ordered, and refuses what ``new`` would make of a job there."""
        return self.is_ordered(one) and lm.wants_rank(new)

    def started(self, queue: StoredQueue, job: JobRecord, now_ms: int) -> None:
        """Take down a start, where rates and buckets count it."""
        if queue.limits.rate is not None:
            lm.note_start(queue.limits.rate, queue.starts, now_ms)
            self._store.journal.started(queue.name, None)
        if job.options.group is not None:
            group = queue.groups.get(job.options.group)
            limits = queue.groups.limits(group)
            lm.take_start(limits, group.usage, job.options.cost, now_ms)
            if limits.rate is not None:
                self._store.journal.started(queue.name, group.name)
            if limits.bucket is not None:
                self._changed(queue, group)

    def set_back(self, queue: StoredQueue, from_ms: int, now_ms: int) -> None:
        """The store's time goes back: see ``core.limits.set_usage_back``."""
        if queue.hold_until_ms > from_ms:
            queue.hold_until_ms -= from_ms - now_ms
            self._store.journal.row(Table.QUEUE, queue.name)
        if lm.drop_future(queue.starts, now_ms):
            self._store.journal.refitted(queue.name, None)
        for group in queue.groups:
            if lm.set_usage_back(group.usage, from_ms, now_ms):
                self._store.journal.refitted(queue.name, group.name)
            if group.next_ms is not None:
                queue.groups.wait_until(group, min(group.next_ms, now_ms))
            self._changed(queue, group)

    def next_ms(self, queue: StoredQueue, now_ms: int) -> int | None:
        """When time alone lets something of the queue in, or start."""
        times = []
        group = queue.groups.next_timed()
        if group is not None and group.next_ms is not None:
            times.append(group.next_ms)
        room, at_ms = queue.room(now_ms)
        if room == 0 and at_ms is not None and queue.next_ready() is not None:
            times.append(at_ms)
        return min(times, default=None)

    # --- verbs ------------------------------------------------------------------------------------

    def _known(self, name: str) -> StoredQueue:
        self._store.journal.row(Table.QUEUE, name)
        return self._store.known(name)

    def _set_queue_limits(self, request: lrq.SetQueueLimits, scribe: Scribe) -> None:
        queue = self._known(request.queue)
        changes = {name: getattr(request, name) for name in request.fields}
        queue.limits = msgspec.structs.replace(queue.limits, **changes)
        rate = queue.limits.rate
        queue.starts = [] if rate is None else queue.starts[-rate.max :]
        self._store.journal.refitted(queue.name, None)
        self._store.wake(queue)

    def _set_group_limits(self, request: lrq.SetGroupLimits, scribe: Scribe) -> None:
        self._check_switch(self._store.look(request.queue), request)
        queue = self._known(request.queue)
        if request.group == EVERY_GROUP:
            queue.groups.every = request.limits or lm.NO_GROUP_LIMITS
            for group in queue.groups:
                if group.own is None:
                    self._refit(queue, group, scribe.now_ms)
            self.advance_timed(queue, STEP, scribe)
        else:
            group = queue.groups.get(request.group)
            group.own = request.limits
            self._changed(queue, group)
            self._refit(queue, group, scribe.now_ms)
            self.advance(queue, group, scribe)
        self._store.wake(queue)

    def _check_switch(self, queue: StoredQueue, request: lrq.SetGroupLimits) -> None:
        groups = queue.groups
        if request.group == EVERY_GROUP:
            after = request.limits or lm.NO_GROUP_LIMITS
            changed = [group for group in groups if group.own is None]
        else:
            after = request.limits or groups.every
            group = groups.find(request.group)
            changed = [] if group is None else [group]
        for group in changed:
            ranked = group.usage.ranked > 0
            lm.check_switch(queue.name, group.name, groups.limits(group), after, ranked)

    def _refit(self, queue: StoredQueue, group: Group, now_ms: int) -> None:
        lm.fit(queue.groups.limits(group), group.usage)
        self._store.journal.refitted(queue.name, group.name)
        self._changed(queue, group)
        if group.usage.parked:
            self._wait_until(queue, group, now_ms)

    def _pause_group(self, request: lrq.PauseGroup, scribe: Scribe) -> bool:
        queue = self._known(request.queue)
        group = queue.groups.get(request.group)
        if group.usage.paused is request.paused:
            return False
        group.usage.paused = request.paused
        self._changed(queue, group)
        self.advance(queue, group, scribe)
        self._store.wake(queue)
        return True

    def _hold(self, request: lrq.Hold, scribe: Scribe) -> int:
        queue = self._known(request.queue)
        if request.group is not None:
            return self.hold_group(queue, queue.groups.get(request.group), request.ms, scribe)
        until_ms = scribe.now_ms + request.ms
        queue.hold_until_ms = max(queue.hold_until_ms, until_ms) if request.ms else 0
        self._store.wake(queue)
        return queue.hold_until_ms

    def hold_group(self, queue: StoredQueue, group: Group, ms: int, scribe: Scribe) -> int:
        """Start nothing of a group for ``ms`` (0: go on)."""
        usage = group.usage
        usage.hold_until_ms = max(usage.hold_until_ms, scribe.now_ms + ms) if ms else 0
        self._changed(queue, group)
        self.advance(queue, group, scribe)
        self._store.wake(queue)
        return usage.hold_until_ms

    def _get_limits(self, request: lrq.GetLimits, scribe: Scribe) -> lrq.Limits:
        queue = self._store.look(request.queue)
        settings = {}
        for name in request.groups:
            group = queue.groups.find(name) or Group(name)
            usage = group.usage
            settings[name] = GroupSettings(
                limits=group.own,
                paused=usage.paused,
                hold_until_ms=lm.hold_left(usage.hold_until_ms, scribe.now_ms),
            )
        return lrq.Limits(
            queue=queue.limits,
            hold_until_ms=lm.hold_left(queue.hold_until_ms, scribe.now_ms),
            every_group=queue.groups.every,
            groups=settings,
        )

    def _list_groups(self, request: lrq.ListGroups, scribe: Scribe) -> lrq.GroupPage:
        queue = self._store.look(request.queue)
        found: list[GroupInfo] = []
        for group in queue.groups:
            if request.cursor is not None and group.name <= request.cursor:
                continue
            usage = group.usage
            held = usage.hold_until_ms > scribe.now_ms
            if not (usage.size or usage.paused or held or group.own is not None):
                continue
            if len(found) == request.limit:
                return lrq.GroupPage(found, found[-1].name)
            found.append(self._info(queue, group, scribe.now_ms))
        return lrq.GroupPage(found)

    def _info(self, queue: StoredQueue, group: Group, now_ms: int) -> GroupInfo:
        usage, head = group.usage, group.head(queue.jobs)
        next_ms = None
        if head is not None:
            next_ms = group.opens_at(queue.groups.limits(group), head, now_ms)
        return GroupInfo(
            name=group.name,
            size=usage.size,
            waiting=usage.waiting,
            parked=usage.parked,
            active=usage.active,
            next_ms=next_ms,
            paused=usage.paused,
        )
