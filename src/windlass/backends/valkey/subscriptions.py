"""Hints from the server: one connection per server that does nothing but listen.

Server functions publish on a sharded channel for each queue and kind of hint, in the slot of the queue. A
listener misses nothing that happens after ``listen``: requests wait until its subscriptions are confirmed
(``subscribe_barrier.py``). After a lost connection, and after a subscription for which a request could not
wait, all listeners are woken, because hints may have been lost.
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
from windlass.core.lasting_task import LastingTask
from windlass.speedups.valkey import ServerConnection, pack_command

log = logging.getLogger("windlass.valkey")

Receive = Callable[[list[Completed]], None]

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 5.0


class SubscriptionListener:
    """See ``backend.protocol.Listener``. Its topics are subscribed to as long as it is open."""

    def __init__(self, subscriber: Subscriber, topics: Iterable[str], receive: Receive | None = None) -> None:
        self._inner = subscriber.hub.listen(topics)
        self._subscriber: Subscriber | None = subscriber
        self.topics = self._inner.topics
        self._receive = receive
        #: Worker and queue, if the listener is that of a worker with one queue: it may be offered jobs.
        self.handoff_target = worker_and_queue(self.topics)

    def receive(self, topic: str, news: bytes) -> None:
        """Pass completed jobs that the hint contains to the callback, or else wake the listener."""
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
        if self._subscriber is not None and self.handoff_target is not None:
            self._subscriber.decline(self.handoff_target[0])

    def on_offer(self, begin: Begin) -> None:
        """See ``backend.protocol.OfferedListener``."""
        if self._subscriber is not None and self.handoff_target is not None:
            self._subscriber.on_offer(self.handoff_target[0], begin)

    def close(self) -> None:
        self._inner.close()
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            subscriber.drop(self)

    @property
    def subscriptions(self) -> list[str]:
        """Its topics, and the topic of jobs that are handed to its worker."""
        if self.handoff_target is None:
            return list(self.topics)
        worker, queue = self.handoff_target
        return [*self.topics, f"to:{queue}:{worker}"]


class _SubscriberConnection:
    """One connection, and the channels that are subscribed to on it."""

    def __init__(self, connection: ServerConnection, subscriber: Subscriber) -> None:
        self.connection = connection
        self.channels: set[str] = set()
        self.pongs: list[asyncio.Future[None]] = []
        #: Confirmations that are still to come, by channel. A channel may be left and joined again meanwhile.
        self._joining: Counter[str] = Counter()
        self._leaving: Counter[str] = Counter()
        self._subscriber = subscriber
        self.reader = asyncio.create_task(connection.listen(self._on_message), name="windlass-valkey-read")

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
        """Whether messages on ``channel`` are received from now on."""
        return channel in self.channels and not self._joining[channel]

    async def ping(self) -> None:
        """Return when every message that was published before has been read.

        Raises ``TimeoutError``, or the reason if the connection is lost.
        """
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pongs.append(pong)
        await self.send("PING")
        timeout_s = self._subscriber.timeout_s
        await asyncio.wait([pong, self.reader], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not pong.done():
            lost = self.reader.done() and not self.reader.cancelled() and self.reader.exception()
            raise lost or TimeoutError("the connection for hints went silent")

    async def close(self) -> None:
        self.reader.cancel()
        with contextlib.suppress(asyncio.CancelledError, RedisError, OSError):
            await self.reader
        await self.connection.close()

    def _on_message(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise answer
        if answer[0] == b"smessage":
            self._subscriber.received(answer[1].decode(), answer[2])
        elif answer[0] == b"ssubscribe":
            self._joined(answer[1].decode())
        elif answer == b"PONG" or answer[0] == b"pong":  # the first form when there is no subscription
            pong = self.pongs.pop(0)
            if not pong.done():
                pong.set_result(None)
        elif answer[0] == b"sunsubscribe":
            self._left(answer[1].decode())

    def _joined(self, channel: str) -> None:
        _take_one(self._joining, channel)
        if self.is_joined(channel):
            self._subscriber.confirmed(channel)

    def _left(self, channel: str) -> None:
        if not self._leaving[channel]:
            raise OSError("a slot moved away")  # the server ended the subscription
        _take_one(self._leaving, channel)


def _take_one(counts: Counter[str], channel: str) -> None:
    """Count one less, and forget a channel that is counted no more."""
    counts[channel] -= 1
    if not counts[channel]:
        del counts[channel]


class Subscriber:
    """The subscriptions of one event loop, kept up by a task that outlives a cancel by other code."""

    def __init__(self, session: ValkeySession, barrier: SubscribeBarrier) -> None:
        self.hub = Hub()
        self.timeout_s = session.client.settings.timeout_s
        self._topology = session.client.topology
        self._keys = session.keys
        self._handoffs = session.handoffs
        self._barrier = barrier
        self._loop = asyncio.get_running_loop()
        self._wanted: Counter[str] = Counter()
        self._listeners: dict[str, list[SubscriptionListener]] = {}
        self._topics: dict[str, str] = {}
        self._pending: set[str] = set()
        self._connections: dict[ServerNode, _SubscriberConnection] = {}
        self._changed = asyncio.Event()
        self._task: LastingTask | None = None
        self._closed = False
        #: How often in a row a connection could not be opened or was lost. Requests wait for no subscription
        #: then: all listeners are woken as soon as the servers have the subscriptions.
        self._failures = 0

    def listen(self, topics: Iterable[str], receive: Receive | None = None) -> SubscriptionListener:
        """Listen for hints about ``topics`` from now on; completed jobs in them go to ``receive``."""
        listener = SubscriptionListener(self, topics, receive)
        if listener.handoff_target is not None:
            self._handoffs.add_listener(*listener.handoff_target)
        for topic in listener.subscriptions:
            channel = self._keys.channel(topic)
            self._listeners.setdefault(channel, []).append(listener)
            self._topics[channel] = topic
            self._wanted[channel] += 1
            if self._wanted[channel] == 1:
                self._pending.add(channel)
        if self._pending and not self._failures:
            self._barrier.close(self)
        self._changed.set()
        if self._task is None and not self._closed:
            self._task = LastingTask("valkey-wake", self._run, SYSTEM_CLOCK)
        return listener

    def drop(self, listener: SubscriptionListener) -> None:
        """Unsubscribe a closed listener. Callable from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its connections with it
            self._loop.call_soon_threadsafe(self._forget, listener)

    def decline(self, worker: str) -> None:
        """Offer ``worker`` no job until it claims again. Callable from any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._handoffs.decline, worker)

    def on_offer(self, worker: str, begin: Begin) -> None:
        self._handoffs.on_offer(worker, begin)

    def _forget(self, listener: SubscriptionListener) -> None:
        if listener.handoff_target is not None:
            self._handoffs.remove_listener(listener.handoff_target[0])
        for topic in listener.subscriptions:
            channel = self._keys.channel(topic)
            self._listeners[channel].remove(listener)
            self._wanted[channel] -= 1
            if self._wanted[channel] <= 0:
                del self._wanted[channel], self._listeners[channel], self._topics[channel]
                self.confirmed(channel)
        self._changed.set()

    async def sync(self) -> None:
        """Return when every hint published before has reached its listeners. For tests that set the time."""
        for connection in list(self._connections.values()):
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await connection.ping()

    async def close(self) -> None:
        """Close the connections. Listeners receive nothing any more."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            await task.stop()
        self._open_barrier()

    def received(self, channel: str, news: bytes = b"") -> None:
        """Pass a message to the listeners of its topic."""
        topic = self._topics.get(channel)
        if topic is None:
            return
        if topic.startswith("to:"):
            _, queue, worker = topic.split(":", 2)
            if not self._handoffs.received(worker, news):
                return
            topic, news = f"ready:{queue}", b""
        for listener in self._listeners.get(channel, ()):
            listener.receive(topic, news)

    def confirmed(self, channel: str) -> None:
        """Note that a channel is subscribed to or not wanted any more; open the barrier with the last one."""
        self._pending.discard(channel)
        if not self._pending and self._barrier.open(self):
            self.hub.wake_all()  # a request did not wait long enough, so its hint may be lost

    def _open_barrier(self) -> None:
        self._pending.clear()
        self._barrier.open(self)

    # --- the connections --------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._serve()
            except (RedisError, OSError, NotSentError, TlsError, TimeoutError) as exc:
                log.info("hints from the server are interrupted: %s", exc)
                with contextlib.suppress(RedisError, TlsError):  # the servers refuse this, too
                    await self._topology.learn(exc)
            finally:
                connections, self._connections = self._connections, {}
                self._open_barrier()  # requests must not wait for a server that cannot be reached
                self._failures += 1
                for connection in connections.values():
                    await connection.close()
            pause_s = min(_FIRST_PAUSE_S * 2 ** min(self._failures - 1, 16), _LAST_PAUSE_S)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # clients must not return all at once

    async def _serve(self) -> None:
        """Keep the subscriptions up to date until a connection breaks or does not answer a ping."""
        asked = self._loop.time()
        while True:
            self._changed.clear()
            await self._subscribe()
            if self._failures:
                await self._ping()  # the server answers when it has the subscriptions
                if self._pending:
                    continue  # of listeners that were made meanwhile
                self._failures = 0
                self.hub.wake_all()
            readers = {connection.reader for connection in self._connections.values()}
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
                await self._ping()  # a dead connection may look like a quiet one
                asked = self._loop.time()

    async def _ping(self) -> None:
        """Return when every server has carried out what was sent to it. Raises as ``ping`` does."""
        for connection in list(self._connections.values()):
            await connection.ping()

    async def _subscribe(self) -> None:
        """Open connections and send what is missing: new subscriptions, and ends of unwanted ones."""
        wanted: dict[ServerNode, dict[int, set[str]]] = {}
        for channel in list(self._wanted):
            slot = self._topology.slot(channel)
            node = await self._topology.node(slot)
            wanted.setdefault(node, {}).setdefault(slot, set()).add(channel)
        for node, slots in wanted.items():
            connection = self._connections.get(node)
            if connection is None:
                connection = self._connections[node] = _SubscriberConnection(await node.connect(), self)
            for channels in slots.values():
                if new := channels - connection.channels:
                    await connection.join(new)
                for channel in filter(connection.is_joined, channels):
                    self.confirmed(channel)  # a topic was left and wanted again before that took effect
        for connection in self._connections.values():
            for channel in connection.channels - self._wanted.keys():
                await connection.leave(channel)
