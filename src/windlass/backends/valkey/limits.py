"""Read and set limits of queues and groups. ``lua/includes/58_groups.lua`` applies them."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.backend import limit_requests as lrq
from windlass.backends.valkey.layouts import GroupLimit
from windlass.backends.valkey.session import ValkeySession
from windlass.core.limit_rules import (
    EVERY_GROUP,
    NO_GROUP_LIMITS,
    GroupInfo,
    GroupLimits,
    GroupSettings,
    QueueLimits,
    Rate,
    Revocation,
    too_many_revoked,
)
from windlass.errors import OrderedGroupError

#: Instead of a number: do not change the limit.
_UNCHANGED = -1

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(GroupLimits).decode


async def _listed(session: ValkeySession, queue: str, became_known: int) -> None:
    if became_known:
        await session.list_again([queue])


async def set_queue(session: ValkeySession, request: lrq.SetQueueLimits, now: str) -> None:
    await session.list_queues([request.queue])
    most, rate, per_ms = _UNCHANGED, _UNCHANGED, 0
    if "concurrency" in request.fields:
        most = request.concurrency or 0
    if "rate" in request.fields:
        rate, per_ms = (request.rate.max, request.rate.per_ms) if request.rate is not None else (0, 0)
    root = session.keys.queue(request.queue)
    await _listed(
        session, request.queue, await session.functions.limits_queue(root, now, (most, rate, per_ms))
    )


def _for_server(limits: GroupLimits | None) -> GroupLimit | int:
    """Limits as the server reads them; 0 for none."""
    if limits is None:
        return 0
    rate, bucket = limits.rate, limits.bucket
    return GroupLimit(
        _encode(limits).decode(),
        limits.concurrency or 0,
        *((rate.max, rate.per_ms) if rate is not None else (0, 0)),
        *((bucket.capacity, bucket.refill) if bucket is not None else (0, 0)),
        int(limits.ordered),
        limits.max_size or 0,
        int(limits.skip_delayed),
    )


async def set_group(session: ValkeySession, request: lrq.SetGroupLimits, now: str) -> None:
    await session.list_queues([request.queue])
    what = (request.group, int(request.group == EVERY_GROUP), _for_server(request.limits))
    root = session.keys.queue(request.queue)
    known, refused = await session.functions.limits_group(root, now, what)
    if refused:
        raise OrderedGroupError.at_switch(request.queue, refused)
    await _listed(session, request.queue, known)


async def pause_group(session: ValkeySession, request: lrq.PauseGroup, now: str) -> bool:
    await session.list_queues([request.queue])
    root = session.keys.queue(request.queue)
    changed, known = await session.functions.group_pause(root, now, request.group, request.paused)
    await _listed(session, request.queue, known)
    return bool(changed)


async def hold(session: ValkeySession, request: lrq.Hold, now: str) -> int:
    await session.list_queues([request.queue])
    root = session.keys.queue(request.queue)
    until_ms, known = await session.functions.hold(root, now, request.ms, request.group)
    await _listed(session, request.queue, known)
    return until_ms


async def revoke_task(session: ValkeySession, request: lrq.RevokeTask, now: str) -> None:
    await session.list_queues([request.queue])
    until_ms, for_ms = (-1 if ms is None else max(ms, 0) for ms in (request.until_ms, request.for_ms))
    what = (request.task, until_ms, for_ms, int(request.once))
    done, known = await session.functions.task_revoke(session.keys.queue(request.queue), now, what)
    if not done:
        raise too_many_revoked(request.task)
    await _listed(session, request.queue, known)


async def restore_task(session: ValkeySession, request: lrq.RestoreTask, now: str) -> bool:
    return await session.functions.task_restore(session.keys.queue(request.queue), now, request.task)


def _revoked(found: list[Any]) -> dict[str, Revocation]:
    tasks = zip(found[::3], found[1::3], found[2::3], strict=True)
    return {
        task.decode(): Revocation(None if until_ms < 0 else until_ms, bool(once))
        for task, until_ms, once in tasks
    }


async def get(session: ValkeySession, request: lrq.GetLimits, now: str) -> lrq.Limits:
    root = session.keys.queue(request.queue)
    most, rate, per_ms, held, every, opens_in_ms, revoked, *found = await session.functions.limits_get(
        root, now, request.groups
    )
    groups = {}
    for at, name in enumerate(request.groups):
        own, paused, until_ms = found[3 * at : 3 * at + 3]
        limits = _decode(own) if own else None
        groups[name] = GroupSettings(limits=limits, paused=bool(paused), hold_until_ms=until_ms)
    return lrq.Limits(
        queue=QueueLimits(
            concurrency=most or None, rate=Rate(rate, per_ms) if rate else None, revoked=_revoked(revoked)
        ),
        hold_until_ms=held,
        every_group=_decode(every) if every else NO_GROUP_LIMITS,
        groups=groups,
        opens_in_ms=opens_in_ms,
    )


async def list_groups(session: ValkeySession, request: lrq.ListGroups, now: str) -> lrq.GroupPage:
    root = session.keys.queue(request.queue)
    more, last, *found = await session.functions.groups_list(root, now, request.limit, request.cursor or "")
    groups = []
    for at in range(0, len(found), 7):
        name, size, waiting, parked, active, next_ms, paused = found[at : at + 7]
        groups.append(
            GroupInfo(
                name=name.decode(),
                size=size,
                waiting=waiting,
                parked=parked,
                active=active,
                next_ms=None if next_ms < 0 else next_ms,
                paused=bool(paused),
            )
        )
    return lrq.GroupPage(groups, last.decode() if more else None)
