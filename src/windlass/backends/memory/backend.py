"""The memory store as a backend: a lock around the state machine, and hints to listeners."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeVar

from windlass.backend.capabilities import Capabilities
from windlass.backend.hub import Hub, HubListener
from windlass.backend.requests import Request
from windlass.backend.urls import BackendUrl
from windlass.backends.memory.store import MemoryStore
from windlass.core.clock import SteadyClock, moment
from windlass.core.ids import check_queue_name

R = TypeVar("R")


class _SharedStore:
    """One store with its lock, clock and listeners. Several backends may use it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.lock = threading.Lock()
        self.clock = SteadyClock()
        self.stamp_ms = 0
        self.hub = Hub()

    def now_ms(self) -> int:
        """The store's time. The caller holds the lock."""
        now_ms = self.clock.now_ms(self.stamp_ms)
        if now_ms < self.stamp_ms:
            self.store.set_back(self.stamp_ms, now_ms)
        self.stamp_ms = now_ms
        return now_ms


_stores: dict[tuple[str, str], _SharedStore] = {}
_stores_lock = threading.Lock()


def _after_fork() -> None:
    """Start a child with empty stores. Otherwise it would run its parent's jobs a second time."""
    global _stores_lock
    _stores_lock = threading.Lock()
    _stores.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class MemoryBackend:
    """A client of a store in this process."""

    name = "memory"
    capabilities = Capabilities.full(durable=False, shared=False)

    def __init__(
        self, shared: _SharedStore | None = None, *, find: Callable[[], _SharedStore] | None = None
    ) -> None:
        self._given = shared
        self._find = find or _SharedStore

    @cached_property
    def _shared(self) -> _SharedStore:
        """The store. Looked up on first use, so that a process that was forked before then has its own."""
        return self._given or self._find()

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do: the store exists as long as the process."""

    async def execute(self, request: Request[R]) -> R:
        shared = self._shared
        with shared.lock:
            now_ms = moment(request.now_ms, shared.now_ms)
            answer, topics = shared.store.apply(request, now_ms)
        if topics:
            shared.hub.publish(topics)
        return answer

    def listen(self, topics: Iterable[str]) -> HubListener:
        return self._shared.hub.listen(topics)

    def clone(self) -> MemoryBackend:
        return MemoryBackend(find=lambda: self._shared)


def from_url(url: BackendUrl) -> MemoryBackend:
    """Return a client of the store with the name and namespace of the URL."""
    url.check_options(set())
    name = check_queue_name(url.host, "store name") if url.host else ""

    def find() -> _SharedStore:
        with _stores_lock:
            return _stores.setdefault((name, url.namespace), _SharedStore())

    return MemoryBackend(find=find)
