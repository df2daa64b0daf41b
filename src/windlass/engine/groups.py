"""Limits of queues and groups: set them, and let in the parked jobs that have room afterwards."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from windlass.backend import limit_requests as lrq
from windlass.core import limit_rules as lm
from windlass.core.limit_rules import EVERY_GROUP, GroupLimits
from windlass.engine.reads import STEP, MoreReads, Reads, Verb
from windlass.engine.saving import advance, limits_of, wait_until
from windlass.engine.unit_of_work import GroupView, QueueView, UnitOfWork


def _known(work: UnitOfWork, name: str) -> QueueView:
    queue = work.queues[name]
    queue.row.known = True
    work.put_queue(queue)
    return queue


def set_queue_limits(work: UnitOfWork, request: lrq.SetQueueLimits) -> Verb[None]:
    """Replace the limits of a queue that are in ``request.fields``. Reads: 1."""
    yield Reads(queues=[request.queue])
    queue = _known(work, request.queue)
    changes = {name: getattr(request, name) for name in request.fields}
    queue.row.limits = msgspec.structs.replace(queue.row.limits, **changes)
    rate = queue.row.limits.rate
    queue.starts = [] if rate is None else queue.starts[-rate.max :]
    work.cut_starts(queue.name, None, queue.starts)
    work.wake(queue.name)


def set_group_limits(work: UnitOfWork, request: lrq.SetGroupLimits) -> Verb[None]:
    """Set the limits of one group, or of every group without limits of its own.

    Reads: 1, for every group 2.
    """
    if request.group == EVERY_GROUP:
        yield from _set_every_group(work, request.queue, request.limits or lm.NO_GROUP_LIMITS)
    else:
        key = (request.queue, request.group)
        yield MoreReads(queues=[request.queue], groups=[key], ranked=key)
        group, every = work.groups[key], work.queues[request.queue].row.every_group
        lm.check_switch(request.queue, limits_of(work, group), request.limits or every, work.ranked)
        _known(work, request.queue)
        group.own = request.limits
        work.put_group(group)
        _refit(work, group)
        advance(work, group)
    work.wake(request.queue)


def _set_every_group(work: UnitOfWork, name: str, limits: GroupLimits) -> Verb[None]:
    yield MoreReads(queues=[name], ranked=(name, None))
    row = work.queues[name].row
    lm.check_switch(name, row.every_group, limits, work.ranked)
    row.every_group, row.refit = limits, "" if row.grouped else None
    _known(work, name)
    yield from refit_some(work, [name])
    for group in work.next_groups:
        if work.moves and work.groups[name, group].usage.parked:
            advance(work, work.groups[name, group])


def refit_some(work: UnitOfWork, names: Iterable[str]) -> Iterable[Reads]:
    """Apply new limits of every group to the next groups of one of these queues.

    Groups with parked jobs become due at once. Later claims and promotes continue with the other groups.
    Reads: 1, none if no queue has new limits. Use it with ``yield from``.
    """
    queue = next((work.queues[name] for name in names if work.queues[name].row.refit is not None), None)
    return () if queue is None else _refit_some(work, queue)


def _refit_some(work: UnitOfWork, queue: QueueView) -> Verb[None]:
    assert queue.row.refit is not None, "the caller has checked it"
    yield MoreReads(next_groups=(queue.name, queue.row.refit))
    found = work.next_groups
    for name in found:
        group = work.groups[queue.name, name]
        if group.own is None:
            _refit(work, group)
    queue.row.refit = found[-1] if len(found) == STEP else None
    work.put_queue(queue)


def _refit(work: UnitOfWork, group: GroupView) -> None:
    """Forget usage that the new limits do not count, and check the first parked job again."""
    lm.fit(limits_of(work, group), group.usage)
    work.cut_starts(group.queue, group.name, group.usage.starts)
    work.put_group(group)
    if group.usage.parked:
        wait_until(work, group, work.now_ms)


def pause_group(work: UnitOfWork, request: lrq.PauseGroup) -> Verb[bool]:
    """Pause or resume a group. False if it already was. Reads: 1."""
    yield Reads(queues=[request.queue], groups=[(request.queue, request.group)])
    _known(work, request.queue)
    group = work.groups[request.queue, request.group]
    if group.usage.paused is request.paused:
        return False
    group.usage.paused = request.paused
    work.put_group(group)
    advance(work, group)
    work.wake(request.queue)
    return True


def hold(work: UnitOfWork, request: lrq.Hold) -> Verb[int]:
    """Start no job of a queue or group for a time (0: end the hold). Returns when it ends. Reads: 1."""
    groups = [] if request.group is None else [(request.queue, request.group)]
    yield Reads(queues=[request.queue], groups=groups)
    queue = _known(work, request.queue)
    if request.group is not None:
        return hold_group(work, work.groups[request.queue, request.group], request.ms)
    until_ms = work.now_ms + request.ms
    queue.row.hold_until_ms = max(queue.row.hold_until_ms, until_ms) if request.ms else 0
    work.wake(queue.name)
    return queue.row.hold_until_ms


def revoke_task(work: UnitOfWork, request: lrq.RevokeTask) -> Verb[None]:
    """Revoke a task in a queue: its jobs end as ``cancelled`` instead of starting. Reads: 1."""
    yield Reads(queues=[request.queue])
    until_ms = request.until_ms if request.for_ms is None else work.now_ms + request.for_ms
    _set_revoked(work, request.queue, request.task, lm.Revocation(until_ms, request.once))


def restore_task(work: UnitOfWork, request: lrq.RestoreTask) -> Verb[bool]:
    """End the revocation of a task. False if the task is not revoked. Reads: 1."""
    yield Reads(queues=[request.queue])
    found = work.queues[request.queue].row.limits.revoked.get(request.task)
    if found is None or not found.holds(work.now_ms):
        return False
    _set_revoked(work, request.queue, request.task, None)
    return True


def _set_revoked(work: UnitOfWork, name: str, task: str, revocation: lm.Revocation | None) -> None:
    limits = lm.without_past(work.queues[name].row.limits, work.now_ms)
    limits = lm.with_revoked(limits, task, revocation)  # raises if too many tasks are revoked
    _known(work, name).row.limits = limits


def hold_group(work: UnitOfWork, group: GroupView, ms: int) -> int:
    """Start no job of a group for ``ms`` (0: end the hold). Returns when the hold ends."""
    usage = group.usage
    usage.hold_until_ms = max(usage.hold_until_ms, work.now_ms + ms) if ms else 0
    work.put_group(group)
    advance(work, group)
    work.wake(group.queue)
    return usage.hold_until_ms
