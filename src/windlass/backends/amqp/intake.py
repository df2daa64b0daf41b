"""What the broker pushes to us: the first message of an idle queue, and the next ones of a busy queue.

An idle worker rings a *bell*: a consumer that gets at most one message, the first to come. A claim hushes it
first: what is pushed while it pulls would come out of turn.

A worker whose claims come back full one after the other opens a *tap*: a consumer that gets twice as many
messages ahead as the worker claims while an end is on its way, so that they are here when the slots are free.
The first claim that the tap does not fill at once closes it, takes what came, and pulls the rest: so a claim
that comes back short met the end of the queue. What no worker claims for a moment, or what is more than it
claims in that time, goes back to its place, and others get it.

Jobs start in their order because what waits here is older than what the broker still has. So claims of a
queue take turns; a bell rings only when none is under way; and what goes back goes back together, when
nothing more is pushed and no claim is under way: of a part, the rest would be taken first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.io_future import IoFuture, resolved, spawn
from windlass.backends.amqp.session import delivery_of
from windlass.core.paths import took
from windlass.core.probe import reach
from windlass.speedups.amqp_frames import Delivery

#: A pushed message that no worker claims goes back after this.
PATIENCE_S = 0.25
#: Full claims no further apart than this open a tap.
_BUSY_MS = 100
#: About how long an end is on its way: what is claimed in that time is held besides what waits.
_SETTLING_MS = 10
#: How long a claim waits for what the broker is about to push.
_LULL_S = 0.02
#: Most messages that a tap brings ahead.
_AHEAD = 500


class _Tap:
    """A consumer of a busy queue."""

    __slots__ = ("ended", "filled", "size", "tag")

    def __init__(self, size: int) -> None:
        self.size = size
        self.tag = ""
        #: Kept when the messages are there that a claim waits for.
        self.filled: tuple[int, IoFuture[None]] | None = None
        #: Set when it is closed; kept when the broker has answered that.
        self.ended: IoFuture[None] | None = None


class Intake:
    """Bells and taps of one connection."""

    def __init__(self, client: AmqpClient) -> None:
        self._client = client
        client.on_paused = self.stop
        #: Claims under way, by queue; the last one's turn; queues that did not fill one of them.
        self._claiming: Counter[str] = Counter()
        self._turns: dict[str, IoFuture[None]] = {}
        self._short: set[str] = set()
        #: Messages that a worker is shown just now; kept when it has answered.
        self._showing: dict[str, deque[IoFuture[None]]] = {}
        #: Shows a message to a worker that may begin it at once; False: it is to be claimed. Set by the desk.
        self.show: Callable[[str, Delivery], bool] = lambda queue, delivery: False
        self._bells: dict[str, str] = {}
        #: Bells and taps that were cancelled; kept when the broker pushes nothing more for them.
        self._hushed: dict[str, IoFuture[None]] = {}
        self._taps: dict[str, _Tap] = {}
        self._waiting: dict[str, deque[Delivery]] = {}
        #: Queues that we look after; those of which something came since we last looked; how much was taken.
        self._watched: set[str] = set()
        self._fresh: set[str] = set()
        self._taken: Counter[str] = Counter()
        self._full_ms: dict[str, int] = {}
        #: Queues whose end was met by the last pull.
        self._dry: set[str] = set()

    def listens(self, queue: str) -> bool:
        """Whether a message of ``queue`` is noticed here without news of it."""
        return (
            queue in self._bells
            or queue in self._taps
            or bool(self._waiting.get(queue))
            or self._claiming[queue] > 0
            or bool(self._showing.get(queue))
        )

    # --- claims ------------------------------------------------------------------------------------------

    def begin(self, queues: Iterable[str]) -> None:
        """A claim of ``queues`` is under way."""
        self._claiming.update(queues)

    def end(self, queues: Iterable[str]) -> None:
        """A claim of ``queues`` is answered. After the last one, the broker may push again."""
        for queue in queues:
            self._claiming[queue] -= 1
            if self._claiming[queue] > 0:
                continue
            del self._claiming[queue]
            short = queue in self._short
            self._short.discard(queue)
            if not self._client.usable:
                continue
            if queue in self._client.paused:
                self.stop(queue)
            elif short:
                self.ring(queue)
            if self._waiting.get(queue):
                self._watch(queue)

    def was_short(self, queues: Iterable[str]) -> None:
        """A claim got less than it wanted: let the broker push when none is under way any more."""
        self._short.update(queues)

    def next_turn(self, queue: str) -> tuple[IoFuture[None], IoFuture[None]]:
        """The turns of the claim before and of this one, to be set when its jobs have begun."""
        before, turn = self._turns.get(queue) or resolved(None), IoFuture[None]()
        self._turns[queue] = turn
        return before, turn

    def take(self, queue: str, count: int) -> list[Delivery]:
        """Messages that were pushed."""
        waiting = self._waiting.get(queue)
        if not waiting:
            return []
        taken = min(count, len(waiting))
        self._taken[queue] += taken
        return [waiting.popleft() for _ in range(taken)]

    def put_back(self, queue: str, deliveries: list[Delivery]) -> None:
        """A claim took more than it can start: it stays before what waits here, if something does."""
        waiting = self._waiting.get(queue)
        if waiting and queue not in self._client.paused:
            waiting.extendleft(reversed(deliveries))
        else:
            self._client.requeue(delivery.tag for delivery in deliveries)

    def step(self, queue: str, wanted: int) -> int:
        """How many messages to pull at once: of a queue that had no more, only one, to see if it has again.

        The broker answers each that is asked for, also when it has none.
        """
        return 1 if queue in self._dry else wanted

    def met_end(self, queue: str, dry: bool) -> None:
        """Whether the last pull met the end of ``queue``."""
        (self._dry.add if dry else self._dry.discard)(queue)

    # --- what no worker claims ---------------------------------------------------------------------------

    def stop(self, queue: str) -> None:
        """Take nothing more, give back what came: a queue is paused, or no worker claims."""
        if queue in self._bells or queue in self._taps or self._waiting.get(queue):
            spawn(self._give_back(queue))

    async def _give_back(self, queue: str) -> None:
        client = self._client
        tap = self._taps.pop(queue, None)
        if tap is not None:
            self._hushed[queue] = self._end(tap)
        await self.hush(queue)
        # What the broker pushed before it ended the consumer comes before the answer to what we ask now.
        await client.call(client.channel.basic_qos, prefetch_count=1)
        if self._claiming[queue] or queue in self._taps:
            return  # which take what is here
        waiting = self._waiting.pop(queue, None)
        if waiting and client.usable:
            reach("amqp.given_back", count=len(waiting))
            client.requeue([delivery.tag for delivery in waiting])
            if self._wanted(queue):  # nothing is pushed any more: who waits must come and look
                client.hub.publish([f"ready:{queue}"])

    def _watch(self, queue: str) -> None:
        """Look after a queue: what no worker claims goes back."""
        if queue in self._watched:
            self._fresh.add(queue)
            return
        self._watched.add(queue)
        self._client.later(PATIENCE_S, lambda: self._look(queue))

    def _look(self, queue: str) -> None:
        waits = len(self._waiting.get(queue, ()))
        fresh = queue in self._fresh or self._taken.pop(queue, 0) >= waits
        self._watched.discard(queue)
        self._fresh.discard(queue)
        if self._client.closed or not (waits or queue in self._taps):
            return
        if self._claiming[queue] or (self._wanted(queue) and fresh):
            self._watch(queue)
        else:
            self.stop(queue)

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
        took("amqp.bell")
        self._client.delivered(delivery)
        rung = self._cancel_bell(queue)
        wanted = self._wanted(queue)
        in_turn = queue in self._hushed or self._claiming[queue] > 0  # a claim takes it before others
        if in_turn or not rung or not wanted or not self.show(queue, delivery):
            self._keep(queue, delivery)
        if not wanted:
            self.stop(queue)

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
        if began and self._claiming[queue]:
            self._short.add(queue)  # a bell would ring while the claim pulls
        elif began and more:
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
        self._watch(queue)

    # --- taps --------------------------------------------------------------------------------------------

    def has_tap(self, queue: str) -> bool:
        return queue in self._taps

    def was_full(self, queue: str, count: int) -> None:
        """A claim got all of the ``count`` messages that it wanted."""
        now_ms = self._client.clock.now_ms()
        gap_ms = now_ms - self._full_ms.get(queue, 0)
        self._full_ms[queue] = now_ms
        idle = gap_ms > _BUSY_MS or queue in self._taps or queue in self._bells
        if not idle and self._wanted(queue):
            self._open(queue, min(count * max(_SETTLING_MS // max(gap_ms, 1), 1), _AHEAD))

    def _open(self, queue: str, size: int) -> None:
        """Let the broker push twice ``size`` ahead; besides these, ``size`` are in our hands."""
        client = self._client
        tap = self._taps[queue] = _Tap(size)
        client.channel.basic_qos(prefetch_count=3 * size)
        tap.tag = client.take_all(
            client.names.queue(queue), lambda delivery: self._pushed(queue, tap, delivery)
        )
        client.channel.basic_qos(prefetch_count=1)  # of the next bell
        self._watch(queue)

    def _pushed(self, queue: str, tap: _Tap, delivery: Delivery) -> None:
        client = self._client
        client.delivered(delivery)
        waiting = self._waiting.setdefault(queue, deque())
        if not waiting:
            self._watch(queue)
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
        return self.take(queue, count)

    def _end(self, tap: _Tap) -> IoFuture[None]:
        """Close a tap; kept when the broker has answered. What it pushed before may still be on its way."""
        ended = tap.ended
        if ended is None:
            ended = tap.ended = IoFuture()
            if tap.filled is not None:
                tap.filled[1].set(None)
            if self._client.usable:
                self._client.end_consumer(tap.tag, ended)
        return ended
