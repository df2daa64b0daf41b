"""What the broker pushes to us: the first message of an idle queue, and the next ones of a busy queue.

An idle worker rings a *bell*: a consumer that gets at most one message, the first to come. A claim hushes it
first: what is pushed while it pulls would come out of turn.

A worker whose claims come back full one after the other opens a *tap*: a consumer that gets twice as many
messages ahead as the last claim took, so that they are here when the slots are free. The first claim that the
tap does not fill at once closes it, takes what came, and pulls the rest: so a claim that comes back short met
the end of the queue. What no worker claims for a moment goes back to its place, and others get it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.io_future import IoFuture
from windlass.backends.amqp.session import delivery_of
from windlass.core.paths import took
from windlass.speedups.amqp_frames import Delivery

#: A pushed message that no worker claims goes back after this.
PATIENCE_S = 0.25
#: Full claims no further apart than this open a tap.
_BUSY_MS = 100
#: How long a claim waits for what the broker is about to push.
_LULL_S = 0.02
#: Most messages that a tap brings ahead.
_AHEAD = 500


class _Tap:
    """A consumer of a busy queue."""

    __slots__ = ("ended", "filled", "fresh", "size", "stopped", "tag")

    def __init__(self, size: int) -> None:
        self.size = size
        self.tag = ""
        #: Whether something came, or was taken, since we last looked.
        self.fresh = True
        #: Kept when the messages are there that a claim waits for.
        self.filled: tuple[int, IoFuture[None]] | None = None
        #: Set when it is closed; kept when nothing more can come.
        self.ended: IoFuture[None] | None = None
        self.stopped = False


class Intake:
    """Bells and taps of one connection."""

    def __init__(self, client: AmqpClient) -> None:
        self._client = client
        client.on_paused = self.stop
        #: Claims under way, by queue; messages that a worker is shown just now, kept when it has answered.
        self.claiming: Counter[str] = Counter()
        self._showing: dict[str, deque[IoFuture[None]]] = {}
        #: Shows a message to a worker that may begin it at once; False: it is to be claimed. Set by the desk.
        self.show: Callable[[str, Delivery], bool] = lambda queue, delivery: False
        self._bells: dict[str, str] = {}
        #: Bells and taps that were cancelled; kept when the broker pushes nothing more for them.
        self._hushed: dict[str, IoFuture[None]] = {}
        self._taps: dict[str, _Tap] = {}
        self._waiting: dict[str, deque[Delivery]] = {}
        self._full_ms: dict[str, int] = {}
        #: Queues whose end was met by the last pull.
        self._dry: set[str] = set()

    def listens(self, queue: str) -> bool:
        """Whether a message of ``queue`` is noticed here without news of it."""
        return (
            queue in self._bells
            or queue in self._taps
            or bool(self._waiting.get(queue))
            or self.claiming[queue] > 0
            or bool(self._showing.get(queue))
        )

    def take(self, queue: str, count: int) -> list[Delivery]:
        """Messages that were pushed."""
        waiting = self._waiting.get(queue)
        if not waiting:
            return []
        return [waiting.popleft() for _ in range(min(count, len(waiting)))]

    def step(self, queue: str, wanted: int) -> int:
        """How many messages to pull at once: of a queue that had no more, only one, to see if it has again.

        The broker answers each that is asked for, also when it has none.
        """
        return 1 if queue in self._dry else wanted

    def met_end(self, queue: str, dry: bool) -> None:
        """Whether the last pull met the end of ``queue``."""
        (self._dry.add if dry else self._dry.discard)(queue)

    def stop(self, queue: str) -> None:
        """Take nothing more, give back what came: a queue is paused, or no worker claims."""
        self._cancel_bell(queue)
        tap = self._taps.pop(queue, None)
        if tap is not None:
            tap.stopped = True
            self._hushed[queue] = self._end(tap)
        waiting = self._waiting.pop(queue, None)
        if waiting and self._client.usable:
            self._client.requeue([delivery.tag for delivery in waiting])
            if self._wanted(queue):  # nothing is pushed any more: who waits must come and look
                self._client.hub.publish([f"ready:{queue}"])

    def _wanted(self, queue: str) -> bool:
        client = self._client
        return queue not in client.paused and client.hub.wanted(f"ready:{queue}")

    # --- bells -------------------------------------------------------------------------------------------

    def ring(self, queue: str) -> None:
        """Let the broker push the next message of an empty queue, if a worker here waits for it."""
        client = self._client
        if queue in self._bells or queue in self._taps or self._waiting.get(queue) or not self._wanted(queue):
            return
        self._bells[queue] = client.consume(
            client.channel,
            client.names.queue(queue),
            lambda _c, *message: self._rang(queue, delivery_of(*message)),
        )

    def _cancel_bell(self, queue: str) -> bool:
        tag = self._bells.pop(queue, None)
        if tag is not None and self._client.usable:
            self._client.channel.basic_cancel(tag)
        return tag is not None

    async def hush(self, queue: str) -> None:
        """Cancel the bell of a queue; what it brought until then has begun, or can be taken.

        The broker may answer the cancelling before it hands over the last message: that one comes before the
        answer to the next pull, and is older than what that brings.
        """
        client, tag = self._client, self._bells.pop(queue, None)
        if tag is not None and client.usable:
            ended = self._hushed[queue] = IoFuture()
            client.end_consumer(tag, ended)
        ending = self._hushed.get(queue)
        if ending is not None:
            await client.expect(ending)
            if self._hushed.get(queue) is ending:
                del self._hushed[queue]
        while showing := self._showing.get(queue):
            await client.expect(showing[0])

    def _rang(self, queue: str, delivery: Delivery) -> None:
        client = self._client
        client.delivered(delivery)
        in_turn = queue in self._hushed or self.claiming[queue] > 0  # a claim takes it before others
        if not in_turn and (not self._cancel_bell(queue) or not self._wanted(queue)):
            client.requeue([delivery.tag])
            return
        took("amqp.bell")
        self._cancel_bell(queue)
        if in_turn or not self.show(queue, delivery):
            self._keep(queue, delivery)

    def showing(self, queue: str) -> IoFuture[None]:
        """A worker is shown a message: claims wait for its answer, or they would begin what is younger."""
        answered: IoFuture[None] = IoFuture()
        self._showing.setdefault(queue, deque()).append(answered)
        return answered

    def shown(
        self, queue: str, delivery: Delivery, answered: IoFuture[None], *, began: bool, more: bool
    ) -> None:
        """A worker was shown a message, and ``began`` its job or not. ``more``: one may be shown the next."""
        self._showing[queue].remove(answered)
        self._answered(queue, delivery, began=began, more=more)
        answered.set(None)

    def _answered(self, queue: str, delivery: Delivery, *, began: bool, more: bool) -> None:
        if not self._client.usable:
            return
        if began and more:
            self.ring(queue)
        elif began:  # nothing is pushed any more: other workers of ours must come and look
            self._client.hub.publish([f"ready:{queue}"])
        elif queue in self._client.paused:
            self._client.requeue([delivery.tag])
        else:
            self._keep(queue, delivery)

    def _keep(self, queue: str, delivery: Delivery) -> None:
        """Let a message wait for a claim."""
        client = self._client
        self._waiting.setdefault(queue, deque()).append(delivery)
        client.hub.publish([f"ready:{queue}"])
        client.later(PATIENCE_S, lambda: self._give_back(queue, delivery))

    def _give_back(self, queue: str, delivery: Delivery) -> None:
        waiting = self._waiting.get(queue)
        if waiting and delivery in waiting and self._client.usable:
            waiting.remove(delivery)
            self._client.requeue([delivery.tag])
            self._client.hub.publish([f"ready:{queue}"])  # nothing is pushed any more

    # --- taps --------------------------------------------------------------------------------------------

    def has_tap(self, queue: str) -> bool:
        return queue in self._taps

    def was_full(self, queue: str, count: int) -> None:
        """A claim got all of the ``count`` messages that it wanted."""
        now_ms = self._client.clock.now_ms()
        busy = now_ms - self._full_ms.get(queue, 0) <= _BUSY_MS
        self._full_ms[queue] = now_ms
        if busy and queue not in self._taps and queue not in self._bells and self._wanted(queue):
            self._open(queue, min(count, _AHEAD))

    def _open(self, queue: str, size: int) -> None:
        """Let the broker push what the next two claims take; besides these, ``size`` are in our hands."""
        client = self._client
        tap = self._taps[queue] = _Tap(size)
        client.channel.basic_qos(prefetch_count=3 * size)
        tap.tag = client.take_all(
            client.names.queue(queue), lambda delivery: self._pushed(queue, tap, delivery)
        )
        client.channel.basic_qos(prefetch_count=1)  # of the next bell
        client.later(PATIENCE_S, lambda: self._look(queue, tap))

    def _pushed(self, queue: str, tap: _Tap, delivery: Delivery) -> None:
        client = self._client
        client.delivered(delivery)
        if tap.stopped and not self.claiming[queue]:
            client.requeue([delivery.tag])
            return
        waiting = self._waiting.setdefault(queue, deque())
        if not waiting:
            tap.fresh = True
        waiting.append(delivery)
        if tap.filled is not None and len(waiting) >= tap.filled[0]:
            tap.filled[1].set(None)
        elif len(waiting) == 1 and tap.filled is None:  # a claim under way may be past its look at these
            client.hub.publish([f"ready:{queue}"])

    async def draw(self, queue: str, count: int) -> list[Delivery]:
        """Up to ``count`` messages of a tap. When they are fewer, the tap is closed: pull the rest."""
        took("amqp.tap")
        tap = self._taps[queue]
        waiting = self._waiting.setdefault(queue, deque())
        if len(waiting) < count <= tap.size and tap.filled is None:
            filled: IoFuture[None] = IoFuture()
            tap.filled = (count, filled)
            timer = self._client.later(_LULL_S, lambda: filled.set(None))
            await self._client.expect(filled)
            self._client.cancel_later(timer)
            tap.filled = None
        if len(self._waiting.get(queue, ())) < count:
            await self._client.expect(self._end(tap))
            if self._taps.get(queue) is tap:
                del self._taps[queue]
        tap.fresh = True
        found = self.take(queue, count)
        if tap.ended is not None:
            for delivery in self._waiting.get(queue, ()):  # nothing looks after these any more
                self._client.later(PATIENCE_S, lambda left=delivery: self._give_back(queue, left))
        return found

    def _end(self, tap: _Tap) -> IoFuture[None]:
        """Close a tap; kept when all that was under way has come."""
        ended = tap.ended
        if ended is None:
            ended = tap.ended = IoFuture()
            if tap.filled is not None:
                tap.filled[1].set(None)
            if self._client.usable:
                self._client.end_consumer(tap.tag, ended)
        return ended

    def _look(self, queue: str, tap: _Tap) -> None:
        """From time to time: what no worker waits for goes back."""
        if self._client.closed or self._taps.get(queue) is not tap:
            return
        if not self._wanted(queue) or (self._waiting.get(queue) and not tap.fresh):
            self.stop(queue)
            return
        tap.fresh = False
        self._client.later(PATIENCE_S, lambda: self._look(queue, tap))
