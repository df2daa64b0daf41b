"""Changes on request: cancel, remove, retry, change, report, pause, purge, signal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backends.valkey import relay
from windlass.backends.valkey.codes import CANCELLED, CHANGED, STATE_NUMBERS, STATES
from windlass.backends.valkey.layouts import Fate
from windlass.backends.valkey.sent_records import text
from windlass.backends.valkey.session import SlotGroup, ValkeySession, together
from windlass.core import bad_records
from windlass.core.change_rules import too_many_signals
from windlass.core.flow_rules import RetriedTogether
from windlass.core.job import LOGS_KEPT, SIGNALS_KEPT, JobRef
from windlass.core.outcome import CancelResult, Changed

Items = list[tuple[int, str]]
#: A job and one of its children.
_Pair = tuple[relay.Dependent, JobRef]
#: Sent for an empty token: no lease ever has this one.
_NO_TOKEN = "-"
_BAD_RECORD = bad_records.BAD_RECORD.encode()


def _token(token: str | None) -> str:
    """A token as server functions take it: "" if the request has none."""
    return "" if token is None else token or _NO_TOKEN


async def cancel(session: ValkeySession, request: rq.CancelJobs, now: str) -> list[CancelResult]:
    answers = [CancelResult.NOT_FOUND] * len(request.refs)
    left: set[str] = set()

    async def one(group: SlotGroup, items: Items) -> None:
        statuses, names, *workers = await session.functions.cancel(
            group.roots, now, text(request.reason), items, dead=request.dead
        )
        left.update(name.decode() for name in names)
        for worker in workers:
            channel = session.keys.channel(f"worker:{worker.decode()}")
            await session.client.command(channel, "SPUBLISH", channel, "")
        for at, status in zip(group.positions, statuses, strict=True):
            answers[at] = CANCELLED[status]

    await together(*(one(group, items) for group, items in session.grouped_refs(request.refs)))
    await relay.after(session, left, now)
    return answers


async def remove(session: ValkeySession, request: rq.RemoveJobs, now: str) -> list[rq.ChangeResult]:
    left: set[str] = set()

    async def one(group: SlotGroup, items: Items) -> list[int]:
        names, *found = await session.functions.remove(group.roots, now, request.force, items)
        left.update(name.decode() for name in names)
        return found

    answers = await _change_many(session, request.refs, one)
    await relay.after(session, left, now)
    return answers


async def retry(session: ValkeySession, request: rq.RetryJobs, now: str) -> list[rq.ChangeResult]:
    """Retry jobs.

    In a cluster their children may be in other slots, whose fates are read first. Children that had not ended
    are linked once more afterwards, because they may have ended in between or run again now.
    """
    missed: list[_Pair] = []
    if session.client.settings.kind == "cluster":
        missed = await relay.missed_children(session, request.refs)
    far = [(dependent, child) for dependent, child in missed if child.queue != dependent.ref.queue]
    retried = RetriedTogether(request.refs)
    ended = {
        (dependent, child): fate
        for dependent, child, fate in await relay.link(session, far, now)
        if child not in retried.refs or fate is relay.GONE or fate.reason == _BAD_RECORD
    }
    circles = [pair for pair in missed if not retried.may_wait(pair[0].ref, pair[1])]
    ended.update(dict.fromkeys(circles, relay.GONE))
    known = [*dict.fromkeys([*far, *circles])]

    async def one(group: SlotGroup, items: Items) -> list[int]:
        values: list[bytes] = []
        fates = _known_of(known, ended, values)
        packed = [
            (*item, fates.get(request.refs[at], {})) for item, at in zip(items, group.positions, strict=True)
        ]
        return await session.functions.retry(group.roots, now, packed, values)

    answers = await _change_many(session, request.refs, one)
    again = [pair for pair in far if pair not in ended]
    if again:
        await relay.notify(session, await relay.link(session, again, now), now)
        await relay.linked(session, [dependent.ref for dependent, _ in again])
    return answers


def _known_of(
    pairs: list[_Pair],
    ended: dict[_Pair, Fate],
    values: list[bytes],
) -> dict[JobRef, dict[str, Any]]:
    """The children of ``pairs`` by dependent, as ``retry.lua`` reads them.

    The values of children that have ended are appended to ``values``.
    """
    known: dict[JobRef, dict[str, Any]] = {}
    for dependent, child in pairs:
        fate = ended.get((dependent, child))
        if fate is not None:
            values.append(fate.value)
        known.setdefault(dependent.ref, {})[f"{child.queue}:{child.id}"] = (
            1 if fate is None else (*relay.packed_fate(fate), len(values))
        )
    return known


async def _change_many(
    session: ValkeySession, refs: list[JobRef], call: Callable[[SlotGroup, Items], Awaitable[list[int]]]
) -> list[rq.ChangeResult]:
    answers = [rq.ChangeResult(Changed.NOT_FOUND)] * len(refs)

    async def one(group: SlotGroup, items: Items) -> None:
        found = await call(group, items)
        for number, at in enumerate(group.positions):
            answers[at] = _changed(found[2 * number : 2 * number + 2])

    await together(*(one(group, items) for group, items in session.grouped_refs(refs)))
    return answers


def _changed(answer: list[int]) -> rq.ChangeResult:
    return rq.ChangeResult(CHANGED[answer[0]], STATES.get(answer[1]))


async def change(session: ValkeySession, request: rq.ChangeJob, now: str) -> rq.ChangeResult:
    what = (
        request.ref.id,
        _token(request.token),
        int(request.priority is not None),
        request.priority or 0,
        -1 if request.delay_ms is None else max(request.delay_ms, 0),
        int(request.payload is not None),
    )
    root = session.keys.queue(request.ref.queue)
    return _changed(await session.functions.change(root, now, what, request.payload or b""))


async def report(session: ValkeySession, request: rq.Report, now: str) -> rq.ChangeResult:
    has_progress = int(request.progress is not None)
    what = (request.ref.id, _token(request.token), has_progress, LOGS_KEPT, request.level)
    root = session.keys.queue(request.ref.queue)
    logs = [text(line) for line in request.logs]
    return _changed(await session.functions.report(root, now, what, request.progress or b"", logs))


async def publish(session: ValkeySession, request: rq.PublishEvent, now: str) -> None:
    await session.list_queues([request.queue])
    what = (request.job_id, request.name, request.data)
    if await session.functions.publish(session.keys.queue(request.queue), now, what):
        await session.list_again([request.queue])


async def trim_events(session: ValkeySession, request: rq.TrimEvents, now: str) -> int:
    """Remove old events; returns their number."""
    return await session.functions.trim_events(session.keys.queue(request.queue), request.keep)


async def pause(session: ValkeySession, request: rq.PauseQueue, now: str) -> bool:
    await session.list_queues([request.queue])
    changed, known = await session.functions.pause(session.keys.queue(request.queue), now, request.paused)
    if known:
        await session.list_again([request.queue])
    return bool(changed)


async def purge(session: ValkeySession, request: rq.Purge, now: str) -> rq.Purged:
    states = sorted({STATE_NUMBERS[state] for state in request.states})
    what = (states, request.grace_ms, request.limit, int(request.force), int(request.forget))
    more, names, *found = await session.functions.purge(session.keys.queue(request.queue), now, what)
    await relay.after(session, [name.decode() for name in names], now)
    return rq.Purged(len(found), [job_id.decode() for job_id in found], bool(more))


async def set_result_ttl(session: ValkeySession, request: rq.SetResultTtl, now: str) -> rq.ChangeResult:
    root = session.keys.queue(request.ref.queue)
    return _changed(await session.functions.result_ttl(root, now, request.ref.id, request.ttl_ms))


async def signal(session: ValkeySession, request: fl.Signal, now: str) -> rq.ChangeResult:
    root = session.keys.queue(request.ref.queue)
    what = (request.ref.id, request.name, SIGNALS_KEPT, request.codec)
    answer = await session.functions.signal(root, now, what, request.data)
    if answer[0] < 0:
        raise too_many_signals(request.name)
    return _changed(answer)
