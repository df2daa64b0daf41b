"""Results that a worker sends directly to the waiting client, after the broker has confirmed the settlement.

If a client has callers that wait for results of a queue, it puts its inbox into the messages that it
publishes there (``Carried.reply``). A worker that completes such a job in its first run sends the result to
that inbox. A direct reply is only a hint and may be lost: the result is also in the log, and waiters get
notifications of the coordinator and poll.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from windlass.backend.hub import Hub, HubListener
from windlass.core.clock import SYSTEM_CLOCK, Clock
from windlass.core.job import Completed
from windlass.speedups import amqp_frames as frames
from windlass.speedups.amqp import Outgoing

TYPE = "done"
#: A larger result is not sent. The waiter gets a notification of the coordinator and reads it.
MOST_RESULT = 65_536
_REMEMBERED = 10_000
_PROPERTIES = frames.properties(type=TYPE)

Receive = Callable[[list[Completed]], None]


class Ends(msgspec.Struct, array_like=True):
    """The body of a direct reply: completed jobs of a queue."""

    queue: str
    items: list[Completed]


_encode = msgspec.msgpack.Encoder().encode
read_ends = msgspec.msgpack.Decoder(Ends).decode


def messages(replies: Iterable[tuple[str, str, Completed]]) -> list[Outgoing]:
    """The messages for some completed jobs, each given with the inbox of its client and its queue."""
    ends: dict[tuple[str, str], list[Completed]] = {}
    for inbox, queue, end in replies:
        ends.setdefault((inbox, queue), []).append(end)
    return [
        Outgoing("", inbox, _encode(Ends(queue, items)), _PROPERTIES, mandatory=False)
        for (inbox, queue), items in ends.items()
    ]


class ReplyListeners:
    """The listeners of this process, by queue. Usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, set[ReplyListener]] = {}
        #: The newest jobs whose direct replies arrived: a notification of their ends adds nothing.
        self._received: OrderedDict[tuple[str, str], None] = OrderedDict()

    def listen(self, hub: Hub, queue: str, receive: Receive) -> ReplyListener:
        """Make a listener for completed jobs of ``queue``. The running event loop calls ``receive``."""
        listener = ReplyListener(self, hub.listen([f"done:{queue}"]), queue, receive)
        with self._lock:
            self._listeners.setdefault(queue, set()).add(listener)
        return listener

    def forget(self, listener: ReplyListener) -> None:
        with self._lock:
            listeners = self._listeners.get(listener.queue, set())
            listeners.discard(listener)
            if not listeners:
                self._listeners.pop(listener.queue, None)

    def wants(self, queue: str) -> bool:
        """Whether a caller here waits for jobs of ``queue``."""
        return queue in self._listeners

    def awaits(self, queue: str, job_id: str) -> bool:
        """Whether a caller here waits for the end of this job."""
        with self._lock:
            return any(listener.awaits(job_id) for listener in self._listeners.get(queue, ()))

    def deliver(self, ends: Ends) -> None:
        """Pass a direct reply to the listeners of its queue. Called on the connection's thread."""
        with self._lock:
            listeners = list(self._listeners.get(ends.queue, ()))
        for end in ends.items:
            self._received[ends.queue, end.id] = None
            if len(self._received) > _REMEMBERED:
                self._received.popitem(last=False)
        for listener in listeners:
            listener.deliver(ends.items)

    def has_received(self, queue: str, job_ids: list[str]) -> bool:
        """Whether direct replies for all these jobs arrived."""
        return all((queue, job_id) in self._received for job_id in job_ids)


class ReplyListener:
    """A listener of ``CompletionHintsBackend.listen_completed`` (see ``backend.protocol``)."""

    def __init__(self, owner: ReplyListeners, inner: HubListener, queue: str, receive: Receive) -> None:
        self._owner = owner
        self._inner = inner
        self.queue = queue
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        #: See ``backend.protocol.AwaitingListener``.
        self.awaits: Callable[[str], bool] = lambda job_id: False

    def deliver(self, items: list[Completed]) -> None:
        """Call ``receive`` on the loop of the listener. Usable from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._receive, items)
        except RuntimeError:  # the loop was closed without closing its listener
            self.close()

    async def wait(self, timeout_ms: float | None = None, clock: Clock = SYSTEM_CLOCK) -> frozenset[str]:
        return await self._inner.wait(timeout_ms, clock)

    def wake(self) -> None:
        self._inner.wake()

    def close(self) -> None:
        self._owner.forget(self)
        self._inner.close()
