"""Notifying dependents of other slots how their children ended.

The end of a child puts an entry into the outbox of its queue, in the step that ends it. A client that finds
it there notifies the dependents and then removes the entry: doing that twice changes nothing, so a client may
die at any point, and several may carry the same entry. On one server an end reaches its dependents in its own
step, and only what is more than that step may do is left to the outbox.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from windlass.backend import flow_requests as fl
from windlass.backends.valkey.layouts import Fate
from windlass.backends.valkey.session import SlotGroup, ValkeySession, together
from windlass.core.edges import RELAY_STEP
from windlass.core.job import JobRef
from windlass.errors import StorageError

log = logging.getLogger("windlass.valkey")

#: A flow whose adding takes longer than this has lost the client that added it.
LINKING_MS = 60_000
#: What a child that does not exist (any more) tells.
GONE = Fate(0, 0, b"json", b"removed", b"", 0, b"")

_decode = msgspec.msgpack.Decoder().decode


class Dependent(NamedTuple):
    """A job that waits, with the sequence of its record."""

    ref: JobRef
    seq: int

    @classmethod
    def read(cls, link: bytes) -> Dependent:
        seq, queue, job_id = link.decode().split(":", 2)
        return cls(JobRef(queue, job_id), int(seq))


class Notification(NamedTuple):
    """Something that a dependent is to receive."""

    dependent: Dependent
    child: JobRef
    fate: Fate


class OutboxEntry(NamedTuple):
    """An end in the outbox of a queue, with some of those that are to be notified of it."""

    queue: str
    number: int
    child: JobRef
    fate: Fate
    notified: int
    done: int
    dependents: list[Dependent]


async def relay(session: ValkeySession, request: fl.Relay, now: str) -> fl.Relayed:
    """The duty: all outboxes, and flows whose adding was cut off."""
    names: list[str] = []
    for group in await session.all_groups():
        entries, late = await _outbox(session, group, now, 1)
        names += group.names if entries else []
        if late:
            names += await _link_late(session, late, now)
    return await carry(session, names, now, request.limit)


async def after(session: ValkeySession, names: Iterable[str], now: str) -> bool:
    """Tell at once what a request left in these outboxes, one step of it; whether something is left.

    On one server the request itself has made that step. A slot that cannot be reached now is left to the
    duty: what was asked for is done.
    """
    wanted = list(names)
    if not wanted or session.client.settings.kind != "cluster":
        return bool(wanted)
    try:
        return (await carry(session, wanted, now, RELAY_STEP)).more
    except StorageError as exc:
        log.warning("dependents in other slots will be notified later: %s", exc)
        return True


async def carry(session: ValkeySession, names: Iterable[str], now: str, limit: int) -> fl.Relayed:
    """Tell about ``limit`` dependents what these outboxes, and those that follow from it, hold for them."""
    pending = dict.fromkeys(names)
    count, room = 0, limit
    while pending:
        if room <= 0:
            return fl.Relayed(count, more=True)
        entries = await _next_entries(session, list(pending), now, room)
        used = sum(max(len(entry.dependents), 1) for entry in entries)
        if used < room:  # else there was no look at the others
            pending = dict.fromkeys(entry.queue for entry in entries)
        tells = [Notification(one, entry.child, entry.fate) for entry in entries for one in entry.dependents]
        notified, left = await notify(session, tells, now, room)
        await _take_out(session, entries)
        count += notified
        room -= max(notified, used)
        pending.update(dict.fromkeys(left))
    return fl.Relayed(count)


async def _next_entries(session: ValkeySession, names: list[str], now: str, room: int) -> list[OutboxEntry]:
    """What comes next in these outboxes, for ``room`` dependents."""
    entries: list[OutboxEntry] = []
    for group in session.grouped(names):
        found, _ = await _outbox(session, group, now, room)
        entries += found
        room -= sum(max(len(entry.dependents), 1) for entry in found)
        if room <= 0:
            break
    return entries


async def _outbox(
    session: ValkeySession, group: SlotGroup, now: str, room: int
) -> tuple[list[OutboxEntry], list[JobRef]]:
    ends, late = await session.functions.flow_outbox(group.roots, now, max(room, 0), LINKING_MS)
    entries = []
    for index, number, job_id, packed, value, notified, done, links in ends:
        name = group.names[index - 1]
        fate = Fate(*[*_decode(packed), value])
        dependents = [Dependent.read(link) for link in links]
        entries.append(
            OutboxEntry(name, number, JobRef(name, job_id.decode()), fate, int(notified), done, dependents)
        )
    refs = [
        JobRef(group.names[index - 1], job_id.decode())
        for index, job_id in zip(late[::2], late[1::2], strict=True)
    ]
    return entries, refs


async def notify(
    session: ValkeySession, tells: list[Notification], now: str, limit: int = RELAY_STEP
) -> tuple[int, list[str]]:
    """Tell dependents; returns how many edges that settled, and the queues with something to relay."""
    count = 0
    left: list[str] = []
    for first in range(0, len(tells), RELAY_STEP):
        part = tells[first : first + RELAY_STEP]
        for group in session.grouped(one.dependent.ref.queue for one in part):
            notified, names = await _notify_slot(session, group, part, now, limit)
            count += notified
            left += [name.decode() for name in names]
    return count, left


async def _notify_slot(
    session: ValkeySession, group: SlotGroup, tells: list[Notification], now: str, limit: int
) -> tuple[int, list[bytes]]:
    ends: dict[tuple[JobRef, int], int] = {}
    packed: list[Any] = []
    values: list[bytes] = []
    items = []
    for index, at in zip(group.indexes, group.positions, strict=True):
        dependent, child, fate = tells[at]
        end = ends.get((child, id(fate)))
        if end is None:
            end = ends[child, id(fate)] = len(ends) + 1
            packed.append((_name(child), *packed_fate(fate)))
            values.append(fate.value)
        items.append((index, dependent.ref.id, dependent.seq, end))
    return await session.functions.flow_notify(group.roots, now, limit, packed, items, values)


def packed_fate(fate: Fate) -> tuple[Any, ...]:
    """How a child ended, as the server reads it, but for the value."""
    seq, completed, codec, reason, error, has_value, _ = fate
    return seq, completed, _text(codec), _text(reason), _text(error), has_value


def _name(ref: JobRef) -> str:
    return f"{ref.queue}:{ref.id}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


async def _take_out(session: ValkeySession, entries: list[OutboxEntry]) -> None:
    for group in session.grouped(entry.queue for entry in entries):
        items = []
        for index, at in zip(group.indexes, group.positions, strict=True):
            entry = entries[at]
            items.append((index, entry.number, entry.child.id, entry.fate.seq, entry.notified, entry.done))
        await session.functions.flow_notified(group.roots, items)


# --- children that were not linked ----------------------------------------------------------------------


async def link(session: ValkeySession, links: list[tuple[Dependent, JobRef]], now: str) -> list[Notification]:
    """Let children tell dependents of other slots; what those that ended already, or are gone, tell."""
    tells: list[Notification] = []

    async def one(group: SlotGroup, part: list[tuple[Dependent, JobRef]]) -> None:
        items = []
        for index, at in zip(group.indexes, group.positions, strict=True):
            dependent, child = part[at]
            items.append((index, child.id, (dependent.ref.queue, dependent.ref.id, dependent.seq)))
        answers = await session.functions.flow_link(group.roots, now, items)
        for at, answer in zip(group.positions, answers, strict=True):
            if answer != 1:
                tells.append(Notification(*part[at], Fate(*answer) if isinstance(answer, list) else GONE))

    for first in range(0, len(links), RELAY_STEP):
        part = links[first : first + RELAY_STEP]
        await together(*(one(group, part) for group in session.grouped(child.queue for _, child in part)))
    return tells


async def linked(session: ValkeySession, refs: list[JobRef]) -> None:
    """All children of these dependents are linked."""
    for group, items in session.grouped_refs(refs):
        await session.functions.flow_linked(group.roots, items)


async def open_edges(
    session: ValkeySession, refs: list[JobRef], *, missed: bool = False
) -> dict[JobRef, tuple[int, list[JobRef]]]:
    """The sequence of each job, and what it waits for; ``missed``: what did not complete instead."""
    found: dict[JobRef, tuple[int, list[JobRef]]] = {}
    for first in range(0, len(refs), 100):
        part = refs[first : first + 100]
        for group, items in session.grouped_refs(part):
            rows = await session.functions.flow_open(group.roots, items, missed=missed)
            for at, (seq, *children) in zip(group.positions, rows, strict=True):
                found[part[at]] = (seq, [JobRef(*child.decode().split(":", 1)) for child in children])
    return found


async def missed_children(session: ValkeySession, refs: list[JobRef]) -> list[tuple[Dependent, JobRef]]:
    """Children of these jobs that did not complete."""
    return [
        (Dependent(ref, seq), child)
        for ref, (seq, children) in (await open_edges(session, refs, missed=True)).items()
        for child in children
    ]


async def _link_late(session: ValkeySession, refs: list[JobRef], now: str) -> list[str]:
    """Finish what a client that died left: a child that was never added has failed."""
    links = [
        (Dependent(ref, seq), child)
        for ref, (seq, children) in (await open_edges(session, refs)).items()
        for child in children
    ]
    _, left = await notify(session, await link(session, links, now), now)
    await linked(session, refs)
    return left
