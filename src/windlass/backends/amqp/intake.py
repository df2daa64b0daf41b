"""Messages that the broker pushes to this connection, for idle and for busy workers.

An *idle consumer* serves a worker that found its queue empty. The broker pushes at most as many messages as
the worker has free slots, and they are offered to the worker one after the other (``offers``). A claim
cancels the idle consumer before it pulls: a message that is pushed at the same time would be out of order.

A *prefetching consumer* serves a busy worker, one whose last claims came back full. The broker pushes twice
as many messages as the worker claims while a settlement is being confirmed, so that they are here when its
slots become free. A claim that it cannot fill at once cancels it, takes the messages that came, and pulls the
rest. So a claim that comes back short has reached the end of the queue. Messages that no worker claims within
``UNCLAIMED_TIMEOUT_S``, or more than it claims in that time, are returned to their places in the queue, for
other workers.

Jobs start in order because messages that wait here are older than those that the broker still has. This
needs three rules. Claims of a queue take turns. An idle consumer starts only when no claim is running. And
unclaimed messages are returned all together, when the broker pushes no more and no claim is running: if only
some were returned, the ones that stay would be started before them.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable

from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.io_future import IoFuture, resolved, spawn
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.paths import took
from windlass.core.probe import reach
from windlass.speedups.amqp_frames import Delivery

#: A pushed message that no worker claims is returned to its queue after this time.
UNCLAIMED_TIMEOUT_S = 0.25
#: Two full claims within this time start a prefetching consumer.
_BUSY_MS = 100
#: About how long the broker takes to confirm a settlement. The size of a prefetching consumer is the number
#: of jobs that are claimed in this time.
_SETTLING_MS = 10
#: The connection counts as alive if its thread has checked the prefetched messages within this time. The
#: check runs every ``UNCLAIMED_TIMEOUT_S``.
_ALIVE_MS = 1_000
#: How long a claim waits for messages that the broker is about to push.
_FILL_TIMEOUT_S = 0.02
#: Most messages that an idle consumer receives.
_MOST_OFFERED = 16
#: The largest size of a prefetching consumer.
_LARGEST_SIZE = 500


class _IdleConsumer:
    """A consumer for an idle worker. ``size``: how many of its messages may be unacknowledged."""

    __slots__ = ("held", "size", "tag")

    def __init__(self, size: int) -> None:
        self.size = size
        #: The delivery tags of its messages whose jobs have not ended.
        self.held: set[int] = set()
        self.tag = ""


class _PrefetchConsumer:
    """A consumer for a busy worker. ``size``: how many jobs the worker claims in ``_SETTLING_MS``."""

    __slots__ = ("ended", "filled", "opened_ms", "size", "tag", "taken")

    def __init__(self, size: int, opened_ms: float) -> None:
        self.size = size
        self.tag = ""
        #: When it was started, by the monotonic clock.
        self.opened_ms = opened_ms
        #: How many of its messages claims have taken.
        self.taken = 0
        #: The claim that waits for messages: how many it needs, and a future that is set when they are here.
        self.filled: tuple[int, IoFuture[None]] | None = None
        #: Not None once it is being cancelled. Set when the broker has confirmed that.
        self.ended: IoFuture[None] | None = None


class Intake:
    """The idle and prefetching consumers of one connection, at most one for each queue."""

    def __init__(self, client: AmqpClient) -> None:
        self._client = client
        client.on_paused = self.stop
        #: Held while waiting messages are taken, and while a claim begins: workers call ``peek`` and ``take``
        #: on their own threads.
        self.lock = threading.RLock()
        #: The number of claims that are running, by queue.
        self._claiming: Counter[str] = Counter()
        #: When the connection's thread last checked the prefetched messages, by the monotonic clock.
        self._last_check_ms = 0.0
        #: The turn of the newest claim of each queue (see ``next_turn``).
        self._turns: dict[str, IoFuture[None]] = {}
        #: Queues of which a running claim got fewer jobs than it wanted.
        self._short: set[str] = set()
        #: Offers that workers have not answered yet. Each is set when it is answered.
        self._open_offers: dict[str, deque[IoFuture[None]]] = {}
        #: Offers a message to an idle worker. False: no worker can start it, so it waits for a claim.
        #: Set by the consumer.
        self.offer: Callable[[str, Delivery], bool] = lambda queue, delivery: False
        #: How many messages of a queue idle workers can start. Set by the consumer.
        self.free_slots: Callable[[str], int] = lambda queue: 0
        #: Messages that arrived while an earlier one was on offer.
        self._next_to_offer: dict[str, deque[Delivery]] = {}
        #: The prefetch count that the channel was last given. It applies to consumers that start after that.
        self._prefetch = 1
        self._idle: dict[str, _IdleConsumer] = {}
        self._prefetching: dict[str, _PrefetchConsumer] = {}
        #: Consumers that are being cancelled. Each is set when the broker has confirmed that.
        self._cancelled: dict[str, IoFuture[None]] = {}
        #: The size of the last prefetching consumer that a claim cancelled, and when that was.
        self._last_sizes: dict[str, tuple[int, float]] = {}
        #: Messages that were pushed and that no claim has taken yet.
        self._waiting: dict[str, deque[Delivery]] = {}
        #: Queues for which a check is due (see ``_check``).
        self._watched: set[str] = set()
        #: Queues whose check was requested again since the last one, and how many messages were taken since.
        self._rewatched: set[str] = set()
        self._taken: Counter[str] = Counter()
        #: When the last full claim of a queue ended.
        self._full_ms: dict[str, int] = {}
        #: Queues that were empty at the last pull.
        self._drained: set[str] = set()

    def listens(self, queue: str) -> bool:
        """Whether this connection notices a new message of ``queue`` without a hint of the coordinator."""
        return (
            queue in self._idle
            or queue in self._prefetching
            or bool(self._waiting.get(queue))
            or self._claiming[queue] > 0
            or bool(self._open_offers.get(queue))
        )

    # --- claims ------------------------------------------------------------------------------------------

    def begin_claim(self, queues: Iterable[str]) -> None:
        """Note that a claim of ``queues`` is running."""
        with self.lock:
            self._claiming.update(queues)

    def end_claim(self, queues: Iterable[str]) -> None:
        """Note that a claim of ``queues`` is answered. After the last one the broker may push again."""
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
                self.start_idle_consumer(queue)
            if self._waiting.get(queue):
                self._watch(queue)

    def on_short_claim(self, queues: Iterable[str]) -> None:
        """Note that a claim got less than it wanted: an idle consumer starts when no claim is running."""
        self._short.update(queues)

    def next_turn(self, queue: str) -> tuple[IoFuture[None], IoFuture[None]]:
        """The turn of the previous claim, to wait for, and that of this claim, to set when its jobs began."""
        before, turn = self._turns.get(queue) or resolved(None), IoFuture[None]()
        self._turns[queue] = turn
        return before, turn

    def peek(self, queue: str, count: int) -> list[Delivery]:
        """The next ``count`` prefetched messages, without taking them. The caller holds the lock.

        Empty when fewer are here, and while another claim of the queue is running. Also empty when the
        connection's thread has not run for a while: the broker may have ended the connection and given the
        messages to other workers.
        """
        consumer, waiting = self._prefetching.get(queue), self._waiting.get(queue, ())
        if consumer is None or consumer.ended is not None or self._claiming[queue] or len(waiting) < count:
            return []
        if SYSTEM_CLOCK.monotonic_ms() - self._last_check_ms > _ALIVE_MS:
            return []
        return [waiting[at] for at in range(count)]

    def take(self, queue: str, count: int) -> list[Delivery]:
        """Take up to ``count`` pushed messages, oldest first."""
        with self.lock:
            waiting = self._waiting.get(queue)
            if not waiting:
                return []
            taken = min(count, len(waiting))
            self._taken[queue] += taken
            consumer = self._prefetching.get(queue)  # once: the connection's thread may remove it meanwhile
            if consumer is not None:
                consumer.taken += taken
            return [waiting.popleft() for _ in range(taken)]

    def put_back(self, queue: str, deliveries: list[Delivery]) -> None:
        """Give back messages that a claim took and cannot start.

        They go in front of those that wait here. If none wait, or the queue is paused, they are returned to
        the broker.
        """
        waiting = self._waiting.get(queue)
        if waiting and queue not in self._client.paused:
            waiting.extendleft(reversed(deliveries))
        else:
            self._client.requeue(delivery.tag for delivery in deliveries)

    def pull_size(self, queue: str, wanted: int) -> int:
        """How many messages to request at once.

        Only one if the queue was empty at the last pull, because the broker answers each request, also when
        it has no message.
        """
        return 1 if queue in self._drained else wanted

    def note_drained(self, queue: str, drained: bool) -> None:
        """Note whether the last pull reached the end of ``queue``."""
        (self._drained.add if drained else self._drained.discard)(queue)

    # --- unclaimed messages ------------------------------------------------------------------------------

    def stop(self, queue: str) -> None:
        """Cancel the consumer of a queue that is paused or not claimed, and return its messages."""
        if queue in self._idle or queue in self._prefetching or self._waiting.get(queue):
            spawn(self._return_unclaimed(queue))

    async def _return_unclaimed(self, queue: str) -> None:
        client = self._client
        consumer = self._prefetching.pop(queue, None)
        if consumer is not None:
            self._cancelled[queue] = self._cancel_prefetching(consumer)
        await self.finish_idle_consumer(queue)
        # Messages that the broker pushed before the cancel arrive before the answer to this request.
        await client.call(client.channel.basic_qos, prefetch_count=self._prefetch)
        if self._claiming[queue] or queue in self._prefetching:
            return  # the claim, or the new consumer, uses these messages
        with self.lock:
            waiting = self._waiting.pop(queue, None)
        if waiting and client.usable:
            reach("amqp.given_back", count=len(waiting))
            client.requeue([delivery.tag for delivery in waiting])
            if self._wanted(queue):  # the broker pushes no more: workers that wait must claim
                client.hub.publish([f"ready:{queue}"])

    def _watch(self, queue: str) -> None:
        """Check after ``UNCLAIMED_TIMEOUT_S`` whether the messages of a queue are claimed."""
        if queue in self._watched:
            self._rewatched.add(queue)
            return
        self._watched.add(queue)
        self._client.call_later(UNCLAIMED_TIMEOUT_S, lambda: self._check(queue))

    def _check(self, queue: str) -> None:
        self._last_check_ms = SYSTEM_CLOCK.monotonic_ms()
        waits = len(self._waiting.get(queue, ()))
        taken = self._taken.pop(queue, 0)
        keeps_up = queue in self._rewatched or taken >= waits
        self._watched.discard(queue)
        self._rewatched.discard(queue)
        if self._client.closed or not (waits or queue in self._prefetching):
            return
        if self._claiming[queue] or (self._wanted(queue) and keeps_up):
            self._watch(queue)
        else:
            self.stop(queue)

    def _wanted(self, queue: str) -> bool:
        """Whether a worker of this process listens for jobs of ``queue``, which is not paused."""
        client = self._client
        return queue not in client.paused and client.hub.wanted(f"ready:{queue}")

    # --- idle workers ------------------------------------------------------------------------------------

    def start_idle_consumer(self, queue: str) -> None:
        """Have the broker push the next messages of an empty queue, if a worker here listens for them."""
        client = self._client
        open_already = queue in self._idle or queue in self._prefetching
        if open_already or self._waiting.get(queue) or not self._wanted(queue):
            return
        size = min(max(self.free_slots(queue), 1), _MOST_OFFERED)
        consumer = self._idle[queue] = _IdleConsumer(size)
        self._set_prefetch(size)

        def taker(delivery: Delivery) -> None:
            consumer.held.add(delivery.tag)
            self._on_idle_message(queue, delivery)

        consumer.tag = client.consume_many(client.names.queue(queue), taker)

    def _set_prefetch(self, count: int) -> None:
        if count != self._prefetch:
            self._prefetch = count
            self._client.channel.basic_qos(prefetch_count=count)

    def _cancel_idle_consumer(self, queue: str) -> None:
        """Ask the broker to cancel the idle consumer of a queue. Claims wait for the confirmation."""
        client, consumer = self._client, self._idle.pop(queue, None)
        if consumer is not None and client.usable:
            ended = self._cancelled[queue] = IoFuture()
            client.cancel_consumer(consumer.tag, ended)

    async def finish_idle_consumer(self, queue: str) -> None:
        """Cancel the idle consumer of a queue, and wait for the confirmation and for open offers.

        After that, each message that it received has started or can be taken. The broker may confirm before
        it delivers the last message. That message still arrives before the answer to the next pull, and is
        older than the messages of that pull.
        """
        client = self._client
        self._cancel_idle_consumer(queue)
        cancelled = self._cancelled.get(queue)
        if cancelled is not None:
            await client.expect(cancelled)
            if self._cancelled.get(queue) is cancelled:
                del self._cancelled[queue]
        while offers := self._open_offers.get(queue):
            await client.expect(offers[0])

    def _on_idle_message(self, queue: str, delivery: Delivery) -> None:
        took("amqp.idle_consumer")
        self._client.delivered(delivery)
        if self._open_offers.get(queue):
            self._next_to_offer.setdefault(queue, deque()).append(delivery)
        else:
            self._offer_or_keep(queue, [delivery])

    def _offer_or_keep(self, queue: str, deliveries: Iterable[Delivery]) -> None:
        """Offer the first of some messages to a worker; if that is not possible, keep all for a claim."""
        first, *others = deliveries
        wanted = self._wanted(queue)
        claimed = queue in self._cancelled or self._claiming[queue] > 0  # a claim takes it, in order
        if not claimed and queue in self._idle and wanted and self.offer(queue, first):
            self._next_to_offer[queue] = deque(others)
            return
        self._cancel_idle_consumer(queue)
        for delivery in (first, *others):
            self._keep(queue, delivery)
        if not wanted:
            self.stop(queue)

    def begin_offer(self, queue: str) -> IoFuture[None]:
        """Note that a message is on offer. Claims wait for the answer, or they would start younger jobs."""
        answered: IoFuture[None] = IoFuture()
        self._open_offers.setdefault(queue, deque()).append(answered)
        return answered

    def end_offer(
        self, queue: str, delivery: Delivery, answered: IoFuture[None], *, began: bool, more: bool
    ) -> None:
        """Note the answer to an offer. ``began``: the worker started the job. ``more``: a worker can start
        another one."""
        self._open_offers[queue].remove(answered)
        following = self._next_to_offer.pop(queue, ())
        more = more and not self._is_exhausted(queue)
        self._after_offer(queue, delivery, began=began, more=more or bool(following))
        if following and self._client.usable:
            self._offer_or_keep(queue, following)
        answered.set(None)

    def _is_exhausted(self, queue: str) -> bool:
        """Whether an idle consumer has received all messages that it may. The broker pushes no more to it
        until one of their jobs has ended."""
        consumer = self._idle.get(queue)
        return consumer is not None and len(consumer.held) >= consumer.size

    def end_offered(self, queue: str, tag: int) -> None:
        """Note that an offered job has ended and its message is acknowledged: the broker may push another."""
        consumer = self._idle.get(queue)
        if consumer is not None:
            consumer.held.discard(tag)

    def _after_offer(self, queue: str, delivery: Delivery, *, began: bool, more: bool) -> None:
        if not self._client.usable:
            return
        if began and self._claiming[queue]:
            self._short.add(queue)  # start the consumer after the claim, not while it pulls
        elif began and more:
            self.start_idle_consumer(queue)
        elif began:  # the broker pushes no more: workers with free slots must claim
            self._cancel_idle_consumer(queue)
            self._client.hub.publish([f"ready:{queue}"])
        elif queue in self._client.paused:
            self._client.requeue([delivery.tag])
        else:
            self._cancel_idle_consumer(queue)
            self._keep(queue, delivery)

    def _keep(self, queue: str, delivery: Delivery) -> None:
        """Keep a message for the next claim, and notify the workers."""
        client = self._client
        self._waiting.setdefault(queue, deque()).append(delivery)
        client.hub.publish([f"ready:{queue}"])
        self._watch(queue)

    # --- busy workers ------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether messages are prefetched for some queue. Usable from any thread."""
        return bool(self._prefetching)

    def is_prefetching(self, queue: str) -> bool:
        return queue in self._prefetching

    def on_full_claim(self, queue: str, count: int) -> None:
        """Note that a claim got all of the ``count`` messages that it wanted.

        If such claims are frequent, a prefetching consumer starts. If one was cancelled just before, the new
        one is at least as large.
        """
        now_ms = self._client.clock.now_ms()
        gap_ms = now_ms - self._full_ms.get(queue, 0)
        self._full_ms[queue] = now_ms
        busy = gap_ms <= _BUSY_MS and queue not in self._prefetching and queue not in self._idle
        if busy and self._wanted(queue):
            size = min(count * max(_SETTLING_MS // max(gap_ms, 1), 1), _LARGEST_SIZE)
            last_size, closed_ms = self._last_sizes.pop(queue, (0, 0.0))
            recent = SYSTEM_CLOCK.monotonic_ms() - closed_ms <= _BUSY_MS
            self._start_prefetching(queue, max(size, last_size) if recent else size)

    def _start_prefetching(self, queue: str, size: int) -> None:
        """Start a prefetching consumer. Its prefetch count has room for ``size`` running jobs and twice as
        many waiting messages."""
        client = self._client
        self._last_check_ms = SYSTEM_CLOCK.monotonic_ms()
        consumer = self._prefetching[queue] = _PrefetchConsumer(size, self._last_check_ms)
        self._set_prefetch(3 * size)
        consumer.tag = client.consume_many(
            client.names.queue(queue), lambda delivery: self._on_prefetched(queue, consumer, delivery)
        )
        self._watch(queue)

    def _on_prefetched(self, queue: str, consumer: _PrefetchConsumer, delivery: Delivery) -> None:
        client = self._client
        client.delivered(delivery)
        waiting = self._waiting.setdefault(queue, deque())
        if not waiting:
            self._watch(queue)
        waiting.append(delivery)
        if consumer.filled is not None and len(waiting) >= consumer.filled[0]:
            consumer.filled[1].set(None)
        elif len(waiting) == 1 and consumer.filled is None:  # a running claim may not look here again
            client.hub.publish([f"ready:{queue}"])

    async def take_prefetched(self, queue: str, count: int) -> list[Delivery]:
        """Take up to ``count`` prefetched messages, after waiting up to ``_FILL_TIMEOUT_S`` for them.

        If they are fewer, the consumer is cancelled, and the caller must pull the rest. A consumer that is
        too small for the pace of the worker is replaced by a larger one.
        """
        took("amqp.prefetching_consumer")
        consumer = self._prefetching[queue]
        waiting, larger = self._waiting.setdefault(queue, deque()), 0
        if len(waiting) < count <= consumer.size and consumer.filled is None:
            filled: IoFuture[None] = IoFuture()
            consumer.filled = (count, filled)
            timer = self._client.call_later(_FILL_TIMEOUT_S, lambda: filled.set(None))
            await self._client.expect(filled)
            self._client.cancel_timer(timer)
            consumer.filled = None
            larger = _better_size(consumer, SYSTEM_CLOCK.monotonic_ms())
        short = len(self._waiting.get(queue, ())) < count
        if short or larger:
            await self._client.expect(self._cancel_prefetching(consumer))
            if self._prefetching.get(queue) is consumer:
                del self._prefetching[queue]
                self._last_sizes[queue] = consumer.size, SYSTEM_CLOCK.monotonic_ms()
                if not short:
                    self._start_prefetching(queue, larger)
        return self.take(queue, count)

    def _cancel_prefetching(self, consumer: _PrefetchConsumer) -> IoFuture[None]:
        """Cancel a prefetching consumer. The future is set when the broker has confirmed that; the last
        messages may arrive later."""
        ended = consumer.ended
        if ended is None:
            ended = consumer.ended = IoFuture()
            if consumer.filled is not None:
                consumer.filled[1].set(None)
            if self._client.usable:
                self._client.cancel_consumer(consumer.tag, ended)
        return ended


def _better_size(consumer: _PrefetchConsumer, now_ms: float) -> int:
    """The size that fits the pace at which messages are taken; 0 when the present size is good enough.

    A change costs a round trip to the broker, so the size grows by at least half.
    """
    pace = consumer.taken / max(now_ms - consumer.opened_ms, 1)
    size = min(round(pace * _SETTLING_MS), _LARGEST_SIZE)
    return size if size >= 1.5 * consumer.size else 0
