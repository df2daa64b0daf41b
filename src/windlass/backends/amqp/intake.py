"""What the broker pushes to us: the first message of an idle queue, and the next ones of a busy queue.

An idle worker rings a *bell*: a consumer that gets the first messages to come, at most as many as the worker
has room for. They are shown to it one after the other. A claim hushes the bell first: what is pushed while it
pulls would come out of turn.

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

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.io_future import IoFuture, resolved, spawn
from windlass.backends.amqp.session import delivery_of
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.paths import took
from windlass.core.probe import reach
from windlass.speedups.amqp_frames import Delivery

#: A pushed message that no worker claims goes back after this.
PATIENCE_S = 0.25
#: Full claims no further apart than this open a tap.
_BUSY_MS = 100
#: About how long an end is on its way: what is claimed in that time is held besides what waits.
_SETTLING_MS = 10
#: A connection whose thread looked after its taps no later than this ago is alive; it looks each PATIENCE_S.
_ALIVE_MS = 1_000
#: How long a claim waits for what the broker is about to push.
_LULL_S = 0.02
#: Most messages that a bell brings.
_MOST_SHOWN = 16
#: Most messages that a tap brings ahead.
_AHEAD = 500


class _Bell:
    """A consumer of an idle queue: how many messages it may bring, and how many it brought."""

    __slots__ = ("brought", "size", "tag")

    def __init__(self, size: int) -> None:
        self.size = size
        self.brought = 0
        self.tag = ""


class _Tap:
    """A consumer of a busy queue."""

    __slots__ = ("ended", "filled", "opened_ms", "size", "tag", "taken")

    def __init__(self, size: int, opened_ms: float) -> None:
        self.size = size
        self.tag = ""
        #: Since when it is open, by the monotonic clock, and how many of its messages claims have taken.
        self.opened_ms = opened_ms
        self.taken = 0
        #: Kept when the messages are there that a claim waits for.
        self.filled: tuple[int, IoFuture[None]] | None = None
        #: Set when it is closed; kept when the broker has answered that.
        self.ended: IoFuture[None] | None = None


class Intake:
    """Bells and taps of one connection."""

    def __init__(self, client: AmqpClient) -> None:
        self._client = client
        client.on_paused = self.stop
        #: Held while messages that wait here are taken, and while a claim begins: ``peek`` and ``take`` are
        #: also called by the threads of workers.
        self.lock = threading.RLock()
        #: Claims under way, by queue; the last one's turn; queues that did not fill one of them.
        self._claiming: Counter[str] = Counter()
        #: When the connection's thread last looked after taps, by the monotonic clock.
        self._looked_ms = 0.0
        self._turns: dict[str, IoFuture[None]] = {}
        self._short: set[str] = set()
        #: Messages that a worker is shown just now; kept when it has answered.
        self._showing: dict[str, deque[IoFuture[None]]] = {}
        #: Shows a message to a worker that may begin it at once; False: a claim must take it.
        #: Set by the consumer.
        self.show: Callable[[str, Delivery], bool] = lambda queue, delivery: False
        #: How many messages of a queue may be shown. Set by the consumer.
        self.room: Callable[[str], int] = lambda queue: 0
        #: Messages that came while one before them was shown.
        self._next: dict[str, deque[Delivery]] = {}
        #: The prefetch of the next consumer.
        self._prefetch = 1
        self._bells: dict[str, _Bell] = {}
        #: Bells and taps that were cancelled; kept when the broker pushes nothing more for them.
        self._hushed: dict[str, IoFuture[None]] = {}
        self._taps: dict[str, _Tap] = {}
        #: The size of the last tap of a queue that a claim closed, and when that was.
        self._last_taps: dict[str, tuple[int, float]] = {}
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
        with self.lock:
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

    def peek(self, queue: str, count: int) -> list[Delivery]:
        """The next ``count`` messages of a tap; none when they are not all here, or a claim is under way,
        which is first, or the process stood still: the broker may have given them to others. The caller
        holds the lock."""
        tap, waiting = self._taps.get(queue), self._waiting.get(queue, ())
        if tap is None or tap.ended is not None or self._claiming[queue] or len(waiting) < count:
            return []
        if SYSTEM_CLOCK.monotonic_ms() - self._looked_ms > _ALIVE_MS:
            return []
        return [waiting[at] for at in range(count)]

    def take(self, queue: str, count: int) -> list[Delivery]:
        """Messages that were pushed."""
        with self.lock:
            waiting = self._waiting.get(queue)
            if not waiting:
                return []
            taken = min(count, len(waiting))
            self._taken[queue] += taken
            tap = self._taps.get(queue)  # once: the connection's thread may close it meanwhile
            if tap is not None:
                tap.taken += taken
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
        await client.call(client.channel.basic_qos, prefetch_count=self._prefetch)
        if self._claiming[queue] or queue in self._taps:
            return  # which take what is here
        with self.lock:
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
        self._looked_ms = SYSTEM_CLOCK.monotonic_ms()
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
        bell = self._bells[queue] = _Bell(min(max(self.room(queue), 1), _MOST_SHOWN))
        self._set_prefetch(bell.size)

        def on_message(_channel: object, *message: Any) -> None:
            bell.brought += 1
            self._rang(queue, delivery_of(*message))

        bell.tag = client.consume(client.channel, client.names.queue(queue), on_message)

    def _set_prefetch(self, count: int) -> None:
        if count != self._prefetch:
            self._prefetch = count
            self._client.channel.basic_qos(prefetch_count=count)

    def _cancel_bell(self, queue: str) -> None:
        """Ask the broker to push nothing more for a bell; claims wait for its answer."""
        client, bell = self._client, self._bells.pop(queue, None)
        if bell is not None and client.usable:
            ended = self._hushed[queue] = IoFuture()
            client.end_consumer(bell.tag, ended)

    async def hush(self, queue: str) -> None:
        """Cancel the bell of a queue; what it brought until then has begun, or can be taken.

        The broker may answer the cancelling before it hands over the last message: that one comes before the
        answer to the next pull, and is older than what that brings.
        """
        client = self._client
        self._cancel_bell(queue)
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
        if self._showing.get(queue):
            self._next.setdefault(queue, deque()).append(delivery)
        else:
            self._show_or_keep(queue, [delivery])

    def _show_or_keep(self, queue: str, deliveries: Iterable[Delivery]) -> None:
        """Show the first of some messages to a worker; if that cannot be, they all wait for a claim."""
        first, *others = deliveries
        wanted = self._wanted(queue)
        in_turn = queue in self._hushed or self._claiming[queue] > 0  # a claim takes it before others
        if not in_turn and queue in self._bells and wanted and self.show(queue, first):
            self._next[queue] = deque(others)
            return
        self._cancel_bell(queue)
        for delivery in (first, *others):
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
        following = self._next.pop(queue, ())
        more = more and not self._is_used_up(queue)
        self._answered(queue, delivery, began=began, more=more or bool(following))
        if following and self._client.usable:
            self._show_or_keep(queue, following)
        answered.set(None)

    def _is_used_up(self, queue: str) -> bool:
        """Whether a bell brought all that it may: while these jobs run, the broker pushes nothing more."""
        bell = self._bells.get(queue)
        return bell is not None and bell.brought >= bell.size

    def _answered(self, queue: str, delivery: Delivery, *, began: bool, more: bool) -> None:
        if not self._client.usable:
            return
        if began and self._claiming[queue]:
            self._short.add(queue)  # a bell would ring while the claim pulls
        elif began and more:
            self.ring(queue)
        elif began:  # nothing is pushed any more: workers of ours that have room must come and look
            self._cancel_bell(queue)
            self._client.hub.publish([f"ready:{queue}"])
        elif queue in self._client.paused:
            self._client.requeue([delivery.tag])
        else:
            self._cancel_bell(queue)
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
            size = min(count * max(_SETTLING_MS // max(gap_ms, 1), 1), _AHEAD)
            last_size, closed_ms = self._last_taps.pop(queue, (0, 0.0))
            recent = SYSTEM_CLOCK.monotonic_ms() - closed_ms <= _BUSY_MS
            self._open(queue, max(size, last_size) if recent else size)

    def _open(self, queue: str, size: int) -> None:
        """Let the broker push twice ``size`` ahead; besides these, ``size`` are in our hands."""
        client = self._client
        self._looked_ms = SYSTEM_CLOCK.monotonic_ms()
        tap = self._taps[queue] = _Tap(size, self._looked_ms)
        self._set_prefetch(3 * size)
        tap.tag = client.take_all(
            client.names.queue(queue), lambda delivery: self._pushed(queue, tap, delivery)
        )
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
        waiting, larger = self._waiting.setdefault(queue, deque()), 0
        if len(waiting) < count <= tap.size and tap.filled is None:
            filled: IoFuture[None] = IoFuture()
            tap.filled = (count, filled)
            timer = self._client.later(_LULL_S, lambda: filled.set(None))
            await self._client.expect(filled)
            self._client.cancel_later(timer)
            tap.filled = None
            larger = _fitting_size(tap, SYSTEM_CLOCK.monotonic_ms())
        short = len(self._waiting.get(queue, ())) < count
        if short or larger:
            await self._client.expect(self._end(tap))
            if self._taps.get(queue) is tap:
                del self._taps[queue]
                self._last_taps[queue] = tap.size, SYSTEM_CLOCK.monotonic_ms()
                if not short:
                    self._open(queue, larger)
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


def _fitting_size(tap: _Tap, now_ms: float) -> int:
    """The size that suits how fast the messages of a tap are taken; 0 when its own does.

    It grows by half at least: to change it costs an exchange with the broker.
    """
    pace = tap.taken / max(now_ms - tap.opened_ms, 1)
    size = min(round(pace * _SETTLING_MS), _AHEAD)
    return size if size >= 1.5 * tap.size else 0
