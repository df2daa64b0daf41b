"""The verbs of limits, groups and unique keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from windlass.backend import limits as lrq
from windlass.backends.sqlite import keys
from windlass.backends.sqlite.gates import LIMITED, STEP, GroupRow, QueueRow, count_of
from windlass.backends.sqlite.rows import record
from windlass.core import limits as lm
from windlass.core.limits import EVERY_GROUP, GroupInfo, GroupSettings
from windlass.core.unique import UniqueHolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from windlass.backends.sqlite.tx import Step
    from windlass.backends.sqlite.verbs_reads import Snapshot


# --- changes --------------------------------------------------------------------------------------


def _known(step: Step, name: str) -> int:
    step.known[name] = True
    step.topics.add(f"ready:{name}")
    return step.queue(name)


def set_queue_limits(step: Step, request: lrq.SetQueueLimits) -> None:
    num = _known(step, request.queue)
    row = step.gates.queue(num)
    changes = {name: getattr(request, name) for name in request.fields}
    row.own = msgspec.structs.replace(row.own, **changes)
    row.starts = [] if row.own.rate is None else row.starts[-row.own.rate.max :]
    row.save(step)
    step.mark(request.queue, LIMITED)


def set_group_limits(step: Step, request: lrq.SetGroupLimits) -> None:
    _check_switch(step, request)
    num = _known(step, request.queue)
    gates = step.gates
    if request.group != EVERY_GROUP:
        group = gates.group(num, request.group)
        group.own = request.limits
        _refit(step, group)
        gates.advance(num, request.group)
        return
    row = gates.queue(num)
    row.every = request.limits or lm.NO_GROUP_LIMITS
    row.save(step)
    step.mark(request.queue, LIMITED)
    own = set()
    for (name,) in step.all("grp_refit", num):
        _refit(step, gates.group(num, name))
        own.add(name)
    for name in _groups_with_jobs(step, num):
        has_parked = name not in own and step.one("group_head", num, name, 0)
        if has_parked and gates.group(num, name).own is None:
            _refit(step, gates.group(num, name))
    gates.advance_timed(num, STEP)


def _check_switch(step: Step, request: lrq.SetGroupLimits) -> None:
    num, gates = step.queues.num(request.queue), step.gates
    if num is None:
        return
    names: Iterable[str] = (request.group,)
    after = request.limits or gates.queue(num).every
    if request.group == EVERY_GROUP:
        after = request.limits or lm.NO_GROUP_LIMITS
        names = (name for name in _groups_with_jobs(step, num) if gates.group(num, name).own is None)
    if not after.ordered:
        return
    for name in names:
        group = gates.group(num, name)
        before = gates.limits(group)
        ranked = not before.ordered and group.is_ranked(step.all)
        lm.check_switch(request.queue, name, before, after, ranked)


def _refit(step: Step, group: GroupRow) -> None:
    lm.fit(step.gates.limits(group), group.usage)
    if step.one("group_head", group.num, group.name, 0):
        group.next_ms = step.now_ms
    group.save(step)


def _groups_with_jobs(step: Step, num: int) -> Iterator[str]:
    name = ""
    while (found := step.all("job_grp_after", num, name)[0][0]) is not None:
        name = found
        yield name


def pause_group(step: Step, request: lrq.PauseGroup) -> bool:
    num = _known(step, request.queue)
    group = step.gates.group(num, request.group)
    if group.usage.paused is request.paused:
        return False
    group.usage.paused = request.paused
    group.save(step)
    step.gates.advance(num, request.group)
    return True


def hold(step: Step, request: lrq.Hold) -> int:
    num = _known(step, request.queue)
    if request.group is not None:
        return step.gates.hold_group(num, request.group, request.ms)
    row = step.gates.queue(num)
    row.hold_until_ms = max(row.hold_until_ms, step.now_ms + request.ms) if request.ms else 0
    row.save(step)
    step.mark(request.queue, LIMITED)
    return row.hold_until_ms


def free_unique_key(step: Step, request: lrq.FreeUniqueKey) -> bool:
    num = step.queues.num(request.queue)
    entry = None if num is None else keys.entry_of(step, num, request.key)
    if num is None or entry is None:
        return False
    step.run("unique_key_free", num, request.key)
    return entry.is_live(step.now_ms)


WRITES: dict[type[Any], Callable[[Step, Any], Any]] = {
    lrq.SetQueueLimits: set_queue_limits,
    lrq.SetGroupLimits: set_group_limits,
    lrq.PauseGroup: pause_group,
    lrq.Hold: hold,
    lrq.FreeUniqueKey: free_unique_key,
}


# --- reads ----------------------------------------------------------------------------------------


def get_limits(snap: Snapshot, request: lrq.GetLimits) -> lrq.Limits:
    num = snap.queues.num(request.queue) or 0
    row = QueueRow(snap.all, num)
    settings = {}
    for name in request.groups:
        group = GroupRow(snap.all, num, name)
        settings[name] = GroupSettings(
            limits=group.own,
            paused=group.usage.paused,
            hold_until_ms=lm.hold_left(group.usage.hold_until_ms, snap.now_ms),
        )
    return lrq.Limits(
        queue=row.own,
        hold_until_ms=lm.hold_left(row.hold_until_ms, snap.now_ms),
        every_group=row.every,
        groups=settings,
    )


def list_groups(snap: Snapshot, request: lrq.ListGroups) -> lrq.GroupPage:
    num = snap.queues.num(request.queue)
    if num is None:
        return lrq.GroupPage([])
    every = QueueRow(snap.all, num).every
    found: list[GroupInfo] = []
    name = request.cursor or ""
    while (following := _next_group(snap, num, name)) is not None:
        if len(found) == request.limit:
            return lrq.GroupPage(found, name)
        name = following
        found.append(_info(snap, num, name, every))
    return lrq.GroupPage(found)


def _next_group(snap: Snapshot, num: int, after: str) -> str | None:
    names = [
        snap.all("job_grp_after", num, after)[0][0],
        snap.all("grp_after", num, after, snap.now_ms)[0][0],
    ]
    return min((name for name in names if name is not None), default=None)


def _info(snap: Snapshot, num: int, name: str, every: lm.GroupLimits) -> GroupInfo:
    group = GroupRow(snap.all, num, name)
    limits = every if group.own is None else group.own
    head = snap.all("group_head", num, name, 0)
    next_ms = None
    if head:
        job = record(head[0], "")
        next_ms = group.opens_at(snap.all, limits, job, snap.now_ms)
    return GroupInfo(
        name=name,
        size=snap.all("group_size", num, name, 1 << 40)[0][0],
        waiting=count_of(snap.all, num, name, "waiting"),
        parked=count_of(snap.all, num, name, "parked"),
        active=count_of(snap.all, num, name, "active"),
        next_ms=next_ms,
        paused=group.usage.paused,
    )


def get_unique_key(snap: Snapshot, request: lrq.GetUniqueKey) -> UniqueHolder | None:
    num = snap.queues.num(request.queue)
    found = [] if num is None else snap.all("unique_key", num, request.key)
    if not found:
        return None
    job_id, until_ms, *_ = found[0]
    live = until_ms is None or until_ms > snap.now_ms
    return UniqueHolder(request.key, job_id, until_ms) if live else None


def list_unique_keys(snap: Snapshot, request: lrq.ListUniqueKeys) -> lrq.KeyPage:
    num = snap.queues.num(request.queue)
    if num is None:
        return lrq.KeyPage([])
    rows = snap.all("unique_key_list", num, request.cursor or "", snap.now_ms, request.limit + 1)
    page = [UniqueHolder(*row) for row in rows[: request.limit]]
    return lrq.KeyPage(page, page[-1].key if len(rows) > request.limit else None)


READS: dict[type[Any], Callable[[Snapshot, Any], Any]] = {
    lrq.GetLimits: get_limits,
    lrq.ListGroups: list_groups,
    lrq.GetUniqueKey: get_unique_key,
    lrq.ListUniqueKeys: list_unique_keys,
}
