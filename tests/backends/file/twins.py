"""A store that is followed step by step by a twin, which must always be equal; how stores are compared."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from windlass.backend.hub import Hub, HubListener
from windlass.backends.file import effects
from windlass.backends.file.backend import FileBackend
from windlass.backends.file.snapshot import pieces
from windlass.backends.file.store import FileStore
from windlass.core.clock import SteadyClock
from windlass.core.states import JobState
from windlass.engine.effects import GroupRow, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windlass.backend.requests import Request

R = TypeVar("R")

_encoder = msgspec.msgpack.Encoder()
_NOTHING = GroupRow()


def dump(store: FileStore) -> list[Any]:
    """The whole state of a store as effects."""
    return [effect for piece in pieces(store) for effect in piece]


def state(store: FileStore) -> tuple[list[Any], list[Any]]:
    """Everything in a store: what has an order in that order, entries of tables sorted."""
    ordered: list[Any] = []
    rows: list[Any] = []
    for effect in dump(store):
        if effect[0] == 4 and effect[1] is Table.GROUP and effect[3] == _NOTHING:
            continue  # a group of which nothing was ever said
        table = effect[0] in (4, 11) and effect[1] is not Table.QUEUE
        (rows if table else ordered).append(msgspec.msgpack.decode(_encoder.encode(effect)))
    indexes = [
        (
            name,
            queue.counts[JobState.ACTIVE],
            sorted(queue.line._waiting.items()),
            next((job_id for _, job_id, _ in queue.line.front()), None),
            next_due.id if (next_due := queue.next_due()) else None,
            sorted(queue.jobs[job].id for job in queue.jobs),
            [
                (group.name, msgspec.to_builtins(group.usage), parked.id if parked else None)
                for group in queue.groups
                if group.usage.size
                for parked in [group.parked.head()]
            ],
        )
        for name, queue in store.queues.items()
    ]
    return [*ordered, *indexes, sorted(store.active), store.last_place], sorted(rows, key=repr)


def reloaded(store: FileStore) -> FileStore:
    """A new store, made from a snapshot of another."""
    fresh = FileStore()
    step = effects.LogStep(store.now_ms, store.last_place, dump(store))
    fresh.follow(effects.decode(effects.encode(step)))
    return fresh


class _Shared:
    def __init__(self) -> None:
        self.store = FileStore()
        self.twin = FileStore()
        self.lock = threading.Lock()
        self.clock = SteadyClock()
        self.hub = Hub()
        self.steps = 0


class TwinBackend:
    """The state machine of the file store in memory, with a twin that only ever applies its effects."""

    name = "twins"
    capabilities = FileBackend.capabilities

    def __init__(self, shared: _Shared | None = None) -> None:
        self.shared = shared or _Shared()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def execute(self, request: Request[R]) -> R:
        shared = self.shared
        with shared.lock:
            now_ms = request.now_ms if request.now_ms is not None else shared.clock.now_ms()
            try:
                answer, topics = shared.store.apply(request, now_ms)
            finally:
                self._follow()
        shared.hub.publish(topics)
        return answer

    def _follow(self) -> None:
        shared = self.shared
        written = shared.store.take_step()
        shared.twin.follow(effects.decode(effects.encode(written)))
        shared.steps += 1
        if shared.steps <= 100 or shared.steps % 50 == 0:
            expected = state(shared.store)
            assert state(shared.twin) == expected, "the twin went another way"
            if shared.steps % 10 == 0:
                assert state(reloaded(shared.store)) == expected, "the snapshot is not the store"

    def listen(self, topics: Iterable[str]) -> HubListener:
        return self.shared.hub.listen(topics)

    def clone(self) -> TwinBackend:
        return TwinBackend(self.shared)
