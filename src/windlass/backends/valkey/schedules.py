"""Schedules. A schedule is in the slot of its queue, so that firing it and adding its jobs are one step.

One set of the namespace lists the queues with schedules. A queue is entered before its first schedule and is
never removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from windlass.backend import schedule_requests as sq
from windlass.backends.valkey import records, sent_records
from windlass.backends.valkey.layouts import ScheduleState
from windlass.backends.valkey.packed_options import or_none
from windlass.backends.valkey.session import SlotGroup, ValkeySession, together
from windlass.core import bad_records
from windlass.core.order import bad_cursor
from windlass.core.schedule_rules import ScheduleRecord
from windlass.errors import ConfigError

#: The number of queues that one part of a listing reads.
_PART = 100
_TOPIC = "schedules"
_CHANGED = 2

_encode = msgspec.msgpack.Encoder().encode
_encode_rule = msgspec.json.Encoder().encode
_decode = msgspec.msgpack.Decoder(ScheduleRecord).decode
_decode_state = msgspec.msgpack.Decoder(ScheduleState).decode


def _state(new: ScheduleRecord) -> ScheduleState:
    """The state of a new schedule."""
    return ScheduleState(
        paused=int(new.paused),
        next_ms=or_none(new.next_ms),
        last_ms=-1,
        last_job_id="",
        fired=0,
        skipped=0,
        end_ms=or_none(new.end_ms),
        limit=or_none(new.limit),
        alone=int(new.overlap == "skip"),
        source=new.source,
        rule=_encode_rule(new.rule).decode(),
    )


def _joined(record: ScheduleRecord, packed: bytes) -> ScheduleRecord:
    """``record`` as it was put, updated with its state."""
    state = _decode_state(packed)
    record.paused = bool(state.paused)
    record.next_ms = None if state.next_ms < 0 else state.next_ms
    record.last_ms = None if state.last_ms < 0 else state.last_ms
    record.last_job_id = state.last_job_id or None
    record.fired, record.skipped = state.fired, state.skipped
    return record


@records.wrap_unreadable
def _read(stored: bytes) -> ScheduleRecord:
    end = 4 + int.from_bytes(stored[:4], "big")
    return _joined(_decode(stored[end:]), stored[4:end])


def _readable(stored: Iterable[bytes]) -> list[ScheduleRecord]:
    return list(bad_records.readable(stored, _read, lambda text: f"a schedule of {len(text)} bytes"))


async def _notify(session: ValkeySession) -> None:
    channel = session.keys.channel(_TOPIC)
    await session.client.command(channel, "SPUBLISH", channel, "")


async def put(session: ValkeySession, request: sq.PutSchedule, now: str) -> ScheduleRecord:
    new = request.schedule
    keys = session.keys
    packed = _encode(new)
    await session.list_queues([new.queue])
    await session.client.command(keys.scheduled, "SADD", keys.scheduled, new.queue)
    known, first, state = await session.functions.schedule_put(
        keys.queue(new.queue), new.name, _state(new), packed
    )
    if known:
        await session.list_again([new.queue])
    if first:  # the data of the server may have been flushed since
        await session.client.command(keys.scheduled, "SADD", keys.scheduled, new.queue)
    await _notify(session)
    return _joined(_decode(packed), state)


async def remove(session: ValkeySession, request: sq.RemoveSchedule, now: str) -> bool:
    root = session.keys.queue(request.queue)
    return await session.functions.schedule_remove(root, request.name, request.source)


async def pause(session: ValkeySession, request: sq.PauseSchedule, now: str) -> bool:
    root = session.keys.queue(request.queue)
    done = await session.functions.schedule_pause(
        root, request.name, request.paused, or_none(request.next_ms)
    )
    if done == _CHANGED:
        await _notify(session)
    return done > 0


async def fire(session: ValkeySession, request: sq.FireSchedule, now: str) -> sq.Fired:
    if any(job.queue != request.queue for job in request.jobs):
        raise ConfigError(
            "schedule",
            message=f"schedule {request.name!r} of queue {request.queue!r} cannot add jobs to another queue",
            got=request.name,
        )
    what = (
        or_none(request.slot_ms),
        or_none(request.next_ms),
        request.slots,
        [sent_records.new_job(1, job) for job in request.jobs],
    )
    tails = [sent_records.tail(job) for job in request.jobs]
    root = session.keys.queue(request.queue)
    ok, added, known = await session.functions.schedule_fire(root, now, request.name, what, tails)
    if known:
        await session.list_again([request.queue])
    return sq.Fired(bool(ok), added)


# --- over all queues ----------------------------------------------------------------------------------


async def _queues(session: ValkeySession) -> list[str]:
    """The names of all queues that ever had a schedule, sorted."""
    found = await session.client.command(session.keys.scheduled, "SMEMBERS", session.keys.scheduled)
    return sorted(name.decode() for name in found)


async def due(session: ValkeySession, request: sq.DueSchedules, now: str) -> sq.Due:
    groups = session.bounded_groups(await _queues(session))
    answers: list[Any] = await together(
        *(session.functions.schedules_due(group.roots, now, request.limit) for group in groups)
    )
    if not answers:
        return sq.Due([], await session.now_ms(now), None)
    now_ms = max(answer[0] for answer in answers)
    found = _readable(stored for answer in answers for stored in answer[2:])
    found.sort(key=lambda record: (record.next_ms or 0, record.queue, record.name))
    later = [answer[1] for answer in answers if answer[1] >= 0]
    later += [record.next_ms or 0 for record in found[request.limit :]]
    next_in_ms = max(min(later) - now_ms, 0) if later else None
    return sq.Due(found[: request.limit], now_ms, next_in_ms)


async def list_schedules(session: ValkeySession, request: sq.ListSchedules, now: str) -> sq.SchedulePage:
    start = ("", "") if request.cursor is None else _cursor(request.cursor)
    names = await _queues(session) if request.queue is None else [request.queue]
    names = [name for name in names if name >= start[0]]
    page = sq.SchedulePage([], await session.now_ms(now))
    for at in range(0, len(names), _PART):
        part = names[at : at + _PART]
        found, end = await _list_part(session, request, now, part, start)
        page.schedules += found
        if len(page.schedules) > request.limit:
            del page.schedules[request.limit :]
            end = _key(page.schedules[-1])
        if end is not None:
            page.cursor = "\n".join(end)
            break
    return page


async def _list_part(
    session: ValkeySession, request: sq.ListSchedules, now: str, names: list[str], start: tuple[str, str]
) -> tuple[list[ScheduleRecord], tuple[str, str] | None]:
    """Schedules of some queues, and the position up to which they are complete (None: to the end)."""
    most = request.limit + 1  # one extra shows whether there are more
    what = (most, request.name or "", int(request.source is not None), request.source or "")

    async def one(group: SlotGroup) -> list[Any]:
        after = start[1] if group.names[0] == start[0] else ""
        return await session.functions.schedules_list(group.roots, now, what, after)

    groups = session.grouped(names)
    answers: list[Any] = await together(*(one(group) for group in groups))
    ends = [
        (group.names[answer[1] - 1], answer[2].decode())
        for group, answer in zip(groups, answers, strict=True)
        if answer[1]
    ]
    end = min(ends, default=None)
    found = _readable(stored for answer in answers for stored in answer[3:])
    found = [record for record in found if _key(record) > start and (end is None or _key(record) <= end)]
    return sorted(found, key=_key), end


def _key(record: ScheduleRecord) -> tuple[str, str]:
    return record.queue, record.name


def _cursor(cursor: str) -> tuple[str, str]:
    queue, separator, name = cursor.partition("\n")
    if not separator:
        raise bad_cursor(cursor)
    return queue, name
