"""Hints from the server: connections that do nothing but listen, one per server that is listened to.

Functions publish on a (sharded) channel per queue and kind, which lives where the queue lives. A client that
listens first subscribes and only then looks at the store: a request waits for subscriptions that are still on
their way, so nothing that happens after ``listen`` is missed. After a lost connection all listeners are
woken, because something may have been missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from redis.exceptions import RedisError

from windlass.backend.hub import Hub, worker_and_queue
from windlass.backends.valkey.errors import NotSentError, TlsError
from windlass.backends.valkey.handoff import Begin
from windlass.backends.valkey.node import ServerNode
from windlass.backends.valkey.records import completed
from windlass.backends.valkey.session import ValkeySession
from windlass.backends.valkey.subscribe_barrier import SubscribeBarrier
from windlass.core.clock import SYSTEM_CLOCK, Clock
from windlass.core.job import Completed
from windlass.speedups.valkey import ServerConnection, pack_command

log = logging.getLogger("windlass.valkey")

Receive = Callable[[list[Completed]], None]

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 5.0


class SubscriptionListener:
    """See ``backend.protocol.Listener``: its topics are subscribed to as long as it is open."""

    def __init__(self, waker: Subscriber, topics: Iterable[str], receive: Receive | None = None) -> None:
        self._inner = waker.hub.listen(topics)
        self._waker: Subscriber | None = waker
        self.topics = self._inner.topics
        self._receive = receive
        #: The worker that listens and the only queue that it serves, if this is such a listener.
        self.place = worker_and_queue(self.topics)

    def receive(self, topic: str, news: bytes) -> None:
        """Pass on what the hint says, or only that there was one."""
        found = completed(news) if news and self._receive is not None else []
        if found and self._receive is not None:
            self._receive(found)
        else:
            self._inner.touch((topic,))

    async def wait(self, timeout_ms: float | None = None, clock: Clock = SYSTEM_CLOCK) -> frozenset[str]:
        return await self._inner.wait(timeout_ms, clock)

    def wake(self) -> None:
        self._inner.wake()

    def decline(self) -> None:
        """See ``backend.protocol.OfferedListener``."""
        if self._waker is not None and self.place is not None:
            self._waker.decline(self.place[0])

    def on_offer(self, begin: Begin) -> None:
        """See ``backend.protocol.OfferedListener``."""
        if self._waker is not None and self.place is not None:
            self._waker.on_offer(self.place[0], begin)

    def close(self) -> None:
        self._inner.close()
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.drop(self)

    @property
    def subscriptions(self) -> list[str]:
        """Its topics, and what its queue has for its worker."""
        if self.place is None:
            return list(self.topics)
        worker, queue = self.place
        return [*self.topics, f"to:{queue}:{worker}"]


class _SubscriberConnection:
    """One connection, and what is subscribed to on it."""

    def __init__(self, connection: ServerConnection, waker: Subscriber) -> None:
        self.connection = connection
        self.channels: set[str] = set()
        self.pongs: list[asyncio.Future[None]] = []
        #: Answers that are still to come, by channel: a channel may be left and joined again in between.
        self._joining: Counter[str] = Counter()
        self._leaving: Counter[str] = Counter()
        self._waker = waker
        self.reader = asyncio.create_task(connection.listen(self._hear), name="windlass-valkey-read")

    async def send(self, *parts: str) -> None:
        await self.connection.send(pack_command(*parts))

    async def join(self, channels: set[str]) -> None:
        """Subscribe to channels of one slot."""
        self.channels |= channels
        self._joining.update(channels)
        await self.send("SSUBSCRIBE", *sorted(channels))

    async def leave(self, channel: str) -> None:
        self.channels.discard(channel)
        self._leaving[channel] += 1
        await self.send("SUNSUBSCRIBE", channel)

    def is_joined(self, channel: str) -> bool:
        """Whether whatever is published on ``channel`` from now on is received here."""
        return channel in self.channels and not self._joining[channel]

    async def ping(self) -> None:
        """Return when everything that was published before has been read."""
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pongs.append(pong)
        await self.send("PING")
        timeout_s = self._waker.timeout_s
        await asyncio.wait([pong, self.reader], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not pong.done():
            raise TimeoutError("the connection for hints went silent")

    async def close(self) -> None:
        self.reader.cancel()
        with contextlib.suppress(asyncio.CancelledError, RedisError, OSError):
            await self.reader
        await self.connection.close()

    def _hear(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise answer
        if answer[0] == b"smessage":
            self._waker.received(answer[1].decode(), answer[2])
        elif answer[0] == b"ssubscribe":
            self._joined(answer[1].decode())
        elif answer == b"PONG" or answer[0] == b"pong":  # the first when nothing is subscribed to
            pong = self.pongs.pop(0)
            if not pong.done():
                pong.set_result(None)
        elif answer[0] == b"sunsubscribe":
            self._left(answer[1].decode())

    def _joined(self, channel: str) -> None:
        self._joining[channel] -= 1
        if self.is_joined(channel):
            self._waker.confirmed(channel)

    def _left(self, channel: str) -> None:
        if not self._leaving[channel]:
            raise OSError("a slot moved away")  # we did not ask for it
        self._leaving[channel] -= 1


class Subscriber:
    """Subscriptions of one event loop."""

    def __init__(self, session: ValkeySession, gate: SubscribeBarrier) -> None:
        self.hub = Hub()
        self.timeout_s = session.client.settings.timeout_s
        self._topology = session.client.topology
        self._keys = session.keys
        self._seats = session.seats
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._wanted: Counter[str] = Counter()
        self._listeners: dict[str, list[SubscriptionListener]] = {}
        self._topics: dict[str, str] = {}
        self._pending: set[str] = set()
        self._lines: dict[ServerNode, _SubscriberConnection] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        #: How often in a row the subscriptions could not be kept.
        self._failures = 0

    def listen(self, topics: Iterable[str], receive: Receive | None = None) -> SubscriptionListener:
        """Hints about ``topics`` from now on; their content goes to ``receive``."""
        listener = SubscriptionListener(self, topics, receive)
        if listener.place is not None:
            self._seats.open(*listener.place)
        for topic in listener.subscriptions:
            channel = self._keys.channel(topic)
            self._listeners.setdefault(channel, []).append(listener)
            self._topics[channel] = topic
            self._wanted[channel] += 1
            if self._wanted[channel] == 1:
                self._pending.add(channel)
        if self._pending:
            self._gate.shut(self)
        self._changed.set()
        if self._task is None and not self._closed:
            self._task = self._loop.create_task(self._run(), name="windlass-valkey-wake")
        return listener

    def drop(self, listener: SubscriptionListener) -> None:
        """``listener`` is closed. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is gone, and the connection with it
            self._loop.call_soon_threadsafe(self._forget, listener)

    def decline(self, worker: str) -> None:
        """``worker`` wants no job until it claims again. From any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._seats.decline, worker)

    def on_offer(self, worker: str, begin: Begin) -> None:
        self._seats.on_offer(worker, begin)

    def _forget(self, listener: SubscriptionListener) -> None:
        if listener.place is not None:
            self._seats.shut(listener.place[0])
        for topic in listener.subscriptions:
            channel = self._keys.channel(topic)
            self._listeners[channel].remove(listener)
            if not self._listeners[channel]:
                del self._listeners[channel]
            self._wanted[channel] -= 1
            if self._wanted[channel] <= 0:
                del self._wanted[channel]
                self.confirmed(channel)
        self._changed.set()

    async def sync(self) -> None:
        """Return when every hint that was published before has been given out. For tests that drive time."""
        for line in list(self._lines.values()):
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await line.ping()

    async def close(self) -> None:
        """Stop listening."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._let_pass()

    def received(self, channel: str, news: bytes = b"") -> None:
        topic = self._topics.get(channel)
        if topic is None:
            return
        if topic.startswith("to:"):
            _, queue, worker = topic.split(":", 2)
            if not self._seats.received(worker, news):
                return
            topic, news = f"ready:{queue}", b""
        for listener in self._listeners.get(channel, ()):
            listener.receive(topic, news)

    def confirmed(self, channel: str) -> None:
        self._pending.discard(channel)
        if not self._pending:
            self._gate.open(self)

    def _let_pass(self) -> None:
        self._pending.clear()
        self._gate.open(self)

    # --- the connections --------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._serve()
            except (RedisError, OSError, NotSentError, TlsError, TimeoutError) as exc:
                log.info("hints from the server are interrupted: %s", exc)
                await self._topology.learn(exc)
            finally:
                lines, self._lines = self._lines, {}
                for line in lines.values():
                    await line.close()
            self._let_pass()  # no request waits for a server that is not there
            self._failures += 1
            pause_s = min(_FIRST_PAUSE_S * 2 ** min(self._failures - 1, 16), _LAST_PAUSE_S)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # not all clients at the same instant

    async def _serve(self) -> None:
        """Keep the subscriptions as wanted until a connection breaks or goes silent."""
        asked = self._loop.time()
        while True:
            self._changed.clear()
            await self._subscribe()
            if self._failures:
                self._failures = 0
                self.hub.wake_all()
            readers = {line.reader for line in self._lines.values()}
            waiter = self._loop.create_task(self._changed.wait(), name="windlass-valkey-wait")
            left_s = asked + 2 * self.timeout_s - self._loop.time()
            try:
                await asyncio.wait({waiter, *readers}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiter.cancel()
            for reader in readers:
                if reader.done():
                    reader.result()
            if self._loop.time() >= asked + 2 * self.timeout_s:
                for line in list(self._lines.values()):
                    await line.ping()  # a dead connection must not go unnoticed
                asked = self._loop.time()

    async def _subscribe(self) -> None:
        wanted: dict[ServerNode, dict[int, set[str]]] = {}
        for channel in list(self._wanted):
            slot = self._topology.slot(channel)
            node = await self._topology.node(slot)
            wanted.setdefault(node, {}).setdefault(slot, set()).add(channel)
        for node, slots in wanted.items():
            line = self._lines.get(node)
            if line is None:
                line = self._lines[node] = _SubscriberConnection(await node.connect(), self)
            for channels in slots.values():
                if new := channels - line.channels:
                    await line.join(new)
                for channel in filter(line.is_joined, channels):
                    self.confirmed(channel)  # left and wanted again before it took effect
        for line in self._lines.values():
            for channel in line.channels - self._wanted.keys():
                await line.leave(channel)
