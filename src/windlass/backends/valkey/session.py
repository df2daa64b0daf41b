"""A client of one namespace on one event loop: connections, server functions, grouping of queues by slot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from windlass.backend.calls import UNKNOWN
from windlass.backends.valkey.client import ValkeyClient
from windlass.backends.valkey.functions import Functions
from windlass.backends.valkey.handoff import Handoffs
from windlass.backends.valkey.keys import Keys
from windlass.backends.valkey.settings import ValkeySettings
from windlass.core.job import JobRef
from windlass.errors import StorageError

#: The most queues in one call that reads all of them.
_PART = 100


class SlotGroup(NamedTuple):
    """Items whose queues share a hash slot, so that one call can serve them."""

    #: The root keys of the queues.
    roots: list[str]
    #: Position of each item in the request, to put the answers in the order of the request.
    positions: list[int]
    #: Position of each item's queue in ``roots``, from 1 as in Lua.
    indexes: list[int]
    #: The names of the queues, in the order of ``roots``.
    names: list[str]


class ValkeySession:
    """What every verb is called with: client, functions, keys, and the queues that are known to be listed."""

    def __init__(self, settings: ValkeySettings, keys: Keys) -> None:
        self.keys = keys
        self.client = ValkeyClient(settings)
        self.functions = Functions(self.client)
        #: Queues that this client has entered in the list of queues.
        self.listed: set[str] = set()
        self.handoffs = Handoffs(self.functions, keys)

    def grouped(self, queues: Iterable[str]) -> list[SlotGroup]:
        """Group items, given by their queues, by slot. On one server that is one group."""
        queues = list(queues)
        if queues and queues.count(queues[0]) == len(queues):  # the usual case
            amount = len(queues)
            return [SlotGroup([self.keys.queue(queues[0])], list(range(amount)), [1] * amount, queues[:1])]
        groups: dict[int, SlotGroup] = {}
        indexes: dict[str, tuple[SlotGroup, int]] = {}
        for position, name in enumerate(queues):
            known = indexes.get(name)
            if known is None:
                root = self.keys.queue(name)
                slot = self.client.topology.slot(root)
                group = groups.get(slot)
                if group is None:
                    group = groups[slot] = SlotGroup([], [], [], [])
                group.roots.append(root)
                group.names.append(name)
                known = indexes[name] = (group, len(group.roots))
            known[0].positions.append(position)
            known[0].indexes.append(known[1])
        return list(groups.values())

    def grouped_refs(self, refs: list[JobRef]) -> list[tuple[SlotGroup, list[tuple[int, str]]]]:
        """Group jobs by slot, with the pair (index of the queue, job id) that server functions take."""
        return [
            (group, [(index, refs[at].id) for index, at in zip(group.indexes, group.positions, strict=True)])
            for group in self.grouped(ref.queue for ref in refs)
        ]

    async def list_queues(self, names: Iterable[str]) -> None:
        """Enter queues in the list of queues: before their first job, or duties would miss them."""
        new = [name for name in dict.fromkeys(names) if name not in self.listed]
        if new:
            await self.client.command(self.keys.queues, "SADD", self.keys.queues, *new)
            self.listed.update(new)

    async def list_again(self, names: list[str]) -> None:
        """Enter queues again that were new to the server: its data may have been flushed since."""
        self.listed.difference_update(names)
        await self.list_queues(names)

    async def queue_names(self) -> list[str]:
        """The names of all queues that ever held a job, sorted."""
        found = await self.client.command(self.keys.queues, "SMEMBERS", self.keys.queues)
        return sorted(name.decode() for name in found)

    async def all_groups(self) -> list[SlotGroup]:
        """All queues, by slot, in groups of bounded size."""
        return self.bounded_groups(await self.queue_names())

    def bounded_groups(self, names: list[str]) -> list[SlotGroup]:
        """Queues by slot, in groups of bounded size."""
        groups = self.grouped(names)
        return [
            SlotGroup(group.roots[at : at + _PART], [], [], group.names[at : at + _PART])
            for group in groups
            for at in range(0, len(group.roots), _PART)
        ]

    async def now_ms(self, now: str) -> int:
        """The store's time, for an answer that did not come from a server function."""
        if now:
            return int(now)
        seconds, micros = await self.client.command(self.keys.root, "TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def close(self) -> None:
        await self.client.close()


async def together(*calls: object) -> list[object]:
    """Await calls to several slots. All of them end before the first error is raised.

    If other code cancels only the task of one call, its caller gets a ``StorageError``: it was not cancelled
    itself.
    """
    answers = await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[call-overload]
    for answer in answers:
        if isinstance(answer, asyncio.CancelledError):
            raise StorageError(f"the task of a call was cancelled: {UNKNOWN}") from answer
        if isinstance(answer, BaseException):
            raise answer
    return list(answers)
