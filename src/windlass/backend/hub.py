"""Hints within one process: a call that changes something wakes the listeners of its topics.

A listener belongs to the event loop that created it; ``publish`` may be called from any thread. Hints may be
lost or repeated, so the owner of a listener always asks the store what changed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from windlass.core.clock import SYSTEM_CLOCK, Clock


def worker_and_queue(topics: Iterable[str]) -> tuple[str, str] | None:
    """The worker and the queue of a listener with one of each; None for any other listener."""
    names: dict[str, list[str]] = {"worker": [], "ready": []}
    for topic in topics:
        kind, _, name = topic.partition(":")
        if kind in names:
            names[kind].append(name)
    if len(names["worker"]) != 1 or len(names["ready"]) != 1:
        return None
    return names["worker"][0], names["ready"][0]


class HubListener:
    """See ``backend.protocol.Listener``."""

    def __init__(self, hub: Hub, topics: Iterable[str]) -> None:
        self._hub = hub
        self.topics: frozenset[str] = frozenset(topics)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._event = asyncio.Event()
        self._lock = threading.Lock()
        self._touched: set[str] = set()
        self._signalled = False
        self._closed = False

    async def wait(self, timeout_ms: float | None = None, clock: Clock = SYSTEM_CLOCK) -> frozenset[str]:
        await clock.wait(self._event, timeout_ms)
        with self._lock:
            touched = frozenset(self._touched)
            self._touched.clear()
            self._signalled = False
            self._event.clear()
        return touched

    def wake(self) -> None:
        if not self._signalled:  # otherwise the owner is already waking up
            self.touch(())

    def touch(self, topics: Iterable[str]) -> None:
        """Record ``topics`` and wake the owner. Callable from any thread."""
        with self._lock:
            self._touched.update(topics)
            if self._signalled or self._closed:
                return
            self._signalled = True
        try:
            if threading.get_ident() == self._thread:
                self._event.set()
            else:
                self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop was closed without closing its listener
            self.close()

    def close(self) -> None:
        self._closed = True
        self._hub.forget(self)


class Hub:
    """The listeners of this process, by topic. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, set[HubListener]] = {}

    def listen(self, topics: Iterable[str]) -> HubListener:
        """Return a listener for ``topics``, owned by the running event loop."""
        listener = HubListener(self, topics)
        with self._lock:
            for topic in listener.topics:
                self._listeners.setdefault(topic, set()).add(listener)
        return listener

    def forget(self, listener: HubListener) -> None:
        """Remove a listener. Idempotent."""
        with self._lock:
            for topic in listener.topics:
                listeners = self._listeners.get(topic)
                if listeners is not None:
                    listeners.discard(listener)
                    if not listeners:
                        del self._listeners[topic]

    def wanted(self, topic: str) -> bool:
        """Whether ``topic`` has listeners."""
        return topic in self._listeners

    def publish(self, topics: Iterable[str]) -> None:
        """Wake the listeners of ``topics``."""
        if not self._listeners:
            return
        woken: dict[HubListener, list[str]] = {}
        with self._lock:
            for topic in topics:
                for listener in self._listeners.get(topic, ()):
                    woken.setdefault(listener, []).append(topic)
        for listener, touched in woken.items():
            listener.touch(touched)

    def wake_all(self) -> None:
        """Wake every listener: something may have changed, and the caller does not know what."""
        with self._lock:
            listeners = {listener for group in self._listeners.values() for listener in group}
        for listener in listeners:
            listener.touch(listener.topics)
