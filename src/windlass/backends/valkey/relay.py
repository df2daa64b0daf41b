"""Notify dependents in other slots how their children ended.

The step that ends a child adds an entry to the outbox of the child's queue. A client that reads the entry
notifies the dependents and then removes it. Notifying twice changes nothing, so a client may die at any point
and several clients may process the same entry. On one server a child notifies its dependents in the step that
ends it; only those beyond the limit of that step are left to the outbox.
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

#: If adding a flow takes longer than this, its client is presumed dead.
LINKING_MS = 60_000
#: The fate of a child that does not exist, or no longer does.
GONE = Fate(0, 0, b"json", b"removed", b"", 0, b"")

_decode = msgspec.msgpack.Decoder().decode


class Dependent(NamedTuple):
    """A job that waits for another, with its sequence (an id may be used again)."""

    ref: JobRef
    seq: int

    @classmethod
    def read(cls, link: bytes) -> Dependent:
        seq, queue, job_id = link.decode().split(":", 2)
        return cls(JobRef(queue, job_id), int(seq))


class Notification(NamedTuple):
    """The end of a child that a dependent is to be notified of."""

    dependent: Dependent
    child: JobRef
    fate: Fate


class OutboxEntry(NamedTuple):
    """An entry of an outbox: the end of a child, with some of the dependents to notify."""

    queue: str
    number: int
    child: JobRef
    fate: Fate
    notified: int
    done: int
    dependents: list[Dependent]


async def relay(session: ValkeySession, request: fl.Relay, now: str) -> fl.Relayed:
    """The duty ``relay``: process all outboxes, and complete flows whose client died while adding them."""
    names: list[str] = []
    for group in await session.all_groups():
        entries, late = await _outbox(session, group, now, 1)
        names += group.names if entries else []
        if late:
            names += await _link_late(session, late, now)
    return await process_outboxes(session, names, now, request.limit)


async def after(session: ValkeySession, names: Iterable[str], now: str) -> bool:
    """Process up to ``RELAY_STEP`` dependents of these outboxes now; return whether some are left.

    On one server the request itself has done this. If a slot cannot be reached, the duty does it later: the
    request that called this has succeeded.
    """
    wanted = list(names)
    if not wanted or session.client.settings.kind != "cluster":
        return bool(wanted)
    try:
        return (await process_outboxes(session, wanted, now, RELAY_STEP)).more
    except StorageError as exc:
        log.warning("dependents in other slots will be notified later: %s", exc)
        return True


async def process_outboxes(session: ValkeySession, names: Iterable[str], now: str, limit: int) -> fl.Relayed:
    """Notify up to about ``limit`` dependents, also those in outboxes that fill up meanwhile."""
    pending = dict.fromkeys(names)
    count, room = 0, limit
    while pending:
        if room <= 0:
            return fl.Relayed(count, more=True)
        entries = await _next_entries(session, list(pending), now, room)
        used = sum(max(len(entry.dependents), 1) for entry in entries)
        if used < room:  # otherwise some outboxes were not read
            pending = dict.fromkeys(entry.queue for entry in entries)
        notifications = [
            Notification(one, entry.child, entry.fate) for entry in entries for one in entry.dependents
        ]
        notified, left = await notify(session, notifications, now, room)
        await _remove_entries(session, entries)
        count += notified
        room -= max(notified, used)
        pending.update(dict.fromkeys(left))
    return fl.Relayed(count)


async def _next_entries(session: ValkeySession, names: list[str], now: str, room: int) -> list[OutboxEntry]:
    """The next entries of these outboxes, with up to ``room`` dependents."""
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
    session: ValkeySession, notifications: list[Notification], now: str, limit: int = RELAY_STEP
) -> tuple[int, list[str]]:
    """Notify dependents. Returns the number of settled edges, and the queues whose outbox has entries."""
    count = 0
    left: list[str] = []
    for first in range(0, len(notifications), RELAY_STEP):
        part = notifications[first : first + RELAY_STEP]
        for group in session.grouped(one.dependent.ref.queue for one in part):
            notified, names = await _notify_slot(session, group, part, now, limit)
            count += notified
            left += [name.decode() for name in names]
    return count, left


async def _notify_slot(
    session: ValkeySession, group: SlotGroup, notifications: list[Notification], now: str, limit: int
) -> tuple[int, list[bytes]]:
    ends: dict[tuple[JobRef, int], int] = {}
    packed: list[Any] = []
    values: list[bytes] = []
    items = []
    for index, at in zip(group.indexes, group.positions, strict=True):
        dependent, child, fate = notifications[at]
        end = ends.get((child, id(fate)))
        if end is None:
            end = ends[child, id(fate)] = len(ends) + 1
            packed.append((_name(child), *packed_fate(fate)))
            values.append(fate.value)
        items.append((index, dependent.ref.id, dependent.seq, end))
    return await session.functions.flow_notify(group.roots, now, limit, packed, items, values)


def packed_fate(fate: Fate) -> tuple[Any, ...]:
    """A fate as the server reads it, without the value."""
    seq, completed, codec, reason, error, has_value, _ = fate
    return seq, completed, _text(codec), _text(reason), _text(error), has_value


def _name(ref: JobRef) -> str:
    return f"{ref.queue}:{ref.id}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


async def _remove_entries(session: ValkeySession, entries: list[OutboxEntry]) -> None:
    for group in session.grouped(entry.queue for entry in entries):
        items = []
        for index, at in zip(group.indexes, group.positions, strict=True):
            entry = entries[at]
            items.append((index, entry.number, entry.child.id, entry.fate.seq, entry.notified, entry.done))
        await session.functions.flow_notified(group.roots, items)


# --- linking children ----------------------------------------------------------------------------------


async def link(session: ValkeySession, links: list[tuple[Dependent, JobRef]], now: str) -> list[Notification]:
    """Link children to dependents of other slots. Returns notifications of ended and missing children."""
    notifications: list[Notification] = []

    async def one(group: SlotGroup, part: list[tuple[Dependent, JobRef]]) -> None:
        items = []
        for index, at in zip(group.indexes, group.positions, strict=True):
            dependent, child = part[at]
            items.append((index, child.id, (dependent.ref.queue, dependent.ref.id, dependent.seq)))
        answers = await session.functions.flow_link(group.roots, now, items)
        for at, answer in zip(group.positions, answers, strict=True):
            if answer != 1:
                notifications.append(
                    Notification(*part[at], Fate(*answer) if isinstance(answer, list) else GONE)
                )

    for first in range(0, len(links), RELAY_STEP):
        part = links[first : first + RELAY_STEP]
        await together(*(one(group, part) for group in session.grouped(child.queue for _, child in part)))
    return notifications


async def linked(session: ValkeySession, refs: list[JobRef]) -> None:
    """Remove dependents from the lists of unfinished flows: all of their children are linked."""
    for group, items in session.grouped_refs(refs):
        await session.functions.flow_linked(group.roots, items)


async def open_edges(
    session: ValkeySession, refs: list[JobRef], *, missed: bool = False
) -> dict[JobRef, tuple[int, list[JobRef]]]:
    """The sequence of each job and the children it waits for.

    ``missed``: those that did not complete, of finished jobs that may be retried.
    """
    found: dict[JobRef, tuple[int, list[JobRef]]] = {}
    for first in range(0, len(refs), 100):
        part = refs[first : first + 100]
        for group, items in session.grouped_refs(part):
            rows = await session.functions.flow_open(group.roots, items, missed=missed)
            for at, (seq, *children) in zip(group.positions, rows, strict=True):
                found[part[at]] = (seq, [JobRef(*child.decode().split(":", 1)) for child in children])
    return found


async def missed_children(session: ValkeySession, refs: list[JobRef]) -> list[tuple[Dependent, JobRef]]:
    """Pairs of each of these jobs, in order, that may be retried and its children that did not complete."""
    found = await open_edges(session, refs, missed=True)
    return [(Dependent(ref, found[ref][0]), child) for ref in dict.fromkeys(refs) for child in found[ref][1]]


async def _link_late(session: ValkeySession, refs: list[JobRef], now: str) -> list[str]:
    """Link the children of a flow whose client died. A child that was never added counts as failed."""
    links = [
        (Dependent(ref, seq), child)
        for ref, (seq, children) in (await open_edges(session, refs)).items()
        for child in children
    ]
    _, left = await notify(session, await link(session, links, now), now)
    await linked(session, refs)
    return left
