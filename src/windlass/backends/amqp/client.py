"""A session that talks to the coordinator: sends requests, receives notifications, and takes over if there is
no coordinator.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec
from pika import BasicProperties, spec
from pika.exceptions import ChannelClosedByBroker

from windlass.backend import requests as rq
from windlass.backend.calls import UNKNOWN
from windlass.backend.hub import Hub
from windlass.backends.amqp import direct_replies, verbs, wire
from windlass.backends.amqp.direct_replies import ReplyListeners
from windlass.backends.amqp.io_future import IoFuture, resolved, spawn
from windlass.backends.amqp.names import COORDINATOR_QUEUE, Names
from windlass.backends.amqp.pika_log import ignore_refusals
from windlass.backends.amqp.session import EXCLUSIVE, AmqpSession, PublishRefusedError, delivery_of
from windlass.core import bad_records
from windlass.core.clock import SteadyClock
from windlass.core.probe import reach
from windlass.errors import StorageError
from windlass.speedups.amqp import Outgoing
from windlass.speedups.amqp_frames import Delivery

log = logging.getLogger("windlass.amqp")
T = TypeVar("T")

#: How long to wait for the coordinator's answer, and how often to try to become the coordinator.
ANSWER_S = 15.0
_ELECTION_RETRY_S = 1.0
_LOCKED = 405
#: Pauses before refused messages are published again.
_AGAIN_S = (0.2, 0.5, 1.0, 2.0, 4.0)
_read_news = msgspec.msgpack.Decoder(verbs.News).decode


# All connections except one are refused the coordinator's queue every second.
ignore_refusals(lambda code, text: code == _LOCKED and f"{COORDINATOR_QUEUE}'" in text)


class NoAnswerError(StorageError):
    """The coordinator did not answer in time. The request is in the log, so it will be carried out."""


class HoldsJobs(Protocol):
    """The consumer of this connection, which holds the jobs that run here."""

    def mark_lost(self, tokens: list[str]) -> None:
        """Note that the coordinator has taken these attempts from their workers."""

    def mark_void_lost(self, keys: set[tuple[str, str, int]]) -> None:
        """Note that the jobs of these messages were cancelled, removed or changed while they waited."""

    def listens(self, queue: str) -> bool:
        """Whether this connection notices a new message of ``queue`` without a hint of the coordinator."""

    async def claim(self, request: rq.Claim, sent_ms: float) -> rq.Claimed:
        """Lease the next jobs to a worker. ``sent_ms`` (monotonic) is when it sent the request."""

    async def settle(self, request: rq.Settle, sent_ms: float) -> rq.SettleResult:
        """Settle attempts. ``sent_ms``: see ``claim``."""

    async def extend(self, request: rq.Extend) -> list[Any]:
        """Renew leases."""

    async def reconcile(self, request: rq.Reconcile) -> int:
        """Return jobs that the worker does not have."""

    def prepare_close(self) -> None:
        """Publish what is pending, before the connection is closed."""

    def flush_starts(self) -> None:
        """Append pending starts to the log now."""


class AddsJobs(Protocol):
    """Publishes new jobs on this connection."""

    def publish(self, request: rq.Add, now_ms: int) -> IoFuture[None]:
        """Publish the jobs of an add, with an entry in the log. Set when the broker has confirmed that."""


class Coordinates(Protocol):
    """The coordinator, if this connection holds its queue."""

    async def take_over(self) -> None:
        """Read the log. Returns when its end is reached."""

    async def prepare_close(self) -> None:
        """Finish all work and write the mark, before the connection is closed."""

    async def retire(self) -> None:
        """Stop reading. Another client can take over when the connection ends."""


class AmqpClient(AmqpSession):
    """One connection of a backend. Its methods run on the connection's thread, unless they say otherwise."""

    def __init__(
        self,
        connection: Any,
        names: Names,
        hub: Hub,
        reply_listeners: ReplyListeners,
        clock: SteadyClock,
        coordinator: Callable[[AmqpClient], Coordinates],
        call_soon_threadsafe: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(connection, names)
        self._call_soon_threadsafe = call_soon_threadsafe
        self._make_coordinator = coordinator
        self.hub = hub
        self.reply_listeners = reply_listeners
        self.clock = clock
        self.paused: set[str] = set()
        self.void: set[tuple[str, str, int]] = set()
        #: How many messages of unknown jobs the last count left in a queue (see ``counting``).
        self.unknown: dict[str, int] = {}
        #: When the first job of a queue is due, as far as the coordinator has reported it.
        self.due: dict[str, int | None] = {}
        self.on_paused: Any = lambda queue: None
        self._calls: dict[str, IoFuture[Any]] = {}
        #: Adds that wait for ``until_ended``, by the queue and the id of their job.
        self._adding: dict[tuple[str, str], IoFuture[None]] = {}
        self._numbers = itertools.count(1)
        self._rules: IoFuture[None] | None = None
        self._election: IoFuture[None] | None = None
        self.coordinator: Coordinates | None = None
        #: Set when the coordinator of this connection has read the whole log.
        self.taking_over: IoFuture[None] = resolved(None)
        self.on_news = self._on_message
        #: Claims and settles jobs. Set by the backend.
        self.consumer: HoldsJobs
        #: Adds jobs without the coordinator. Set by the backend.
        self.plain_adds: AddsJobs

    # --- time on the connection's thread -----------------------------------------------------------------

    def call_later(self, seconds: float, call: Any) -> Any:
        """Call back after ``seconds``. Everything that ``call`` sends is written in one step."""
        guarded, connection = self.guarded(call), self.connection

        def run() -> None:
            connection.gather()
            guarded()
            connection.send_gathered()

        return connection.ioloop.call_later(seconds, run)

    def call_soon_threadsafe(self, call: Any) -> None:
        """Call back on the connection's thread, in the order of the calls. Usable from any thread."""
        self._call_soon_threadsafe(self.guarded(call))

    def cancel_timer(self, timer: Any) -> None:
        self.connection.ioloop.remove_timeout(timer)

    async def until_confirmed(self, promise: IoFuture[None]) -> None:
        """Wait until the broker has confirmed everything that was published with ``promise``.

        A quorum queue refuses messages while it has no leader, or when a policy limits its length. Only the
        refused messages are published again, a few times, each time after a longer pause.
        """
        for pause_s in _AGAIN_S:
            try:
                return await promise
            except PublishRefusedError as exc:
                refused = exc.messages
            reach("amqp.refused")
            log.warning("the broker refused %s messages, trying again in %g s", len(refused), pause_s)
            over: IoFuture[None] = IoFuture()
            self.call_later(pause_s, lambda over=over: over.set(None))
            await self.expect(over)
            promise = self.publish(refused)
        await promise

    async def until_ended(self, queue: str, job_id: str, confirmed: IoFuture[None]) -> None:
        """Wait until the broker has confirmed an add, but at most until the job's direct reply comes.

        A worker sends it when the broker has confirmed the end of the job, which comes after its beginning in
        the log. So nothing can be lost any more. Messages that are refused are still published again.
        """
        over = self._adding[queue, job_id] = IoFuture()
        confirmed.then(lambda: over.set(None))
        await over
        self._adding.pop((queue, job_id), None)  # a repeat of the add may have removed it
        if confirmed.done:
            confirmed.result()  # raises its error

    # --- asking ------------------------------------------------------------------------------------------

    async def ask(self, request: rq.Request[Any], answer_s: float = ANSWER_S) -> Any:
        """Put ``request`` into the log and wait for the coordinator's answer.

        Raises ``NoAnswerError`` if no answer comes in time although the broker has confirmed the request.
        """
        if self._election is None:
            self._election = spawn(self._try_to_coordinate())
        await self._election
        number, name = f"{next(self._numbers)}", type(request).__name__
        entry = wire.log_entry(
            self.names.log, request, self.clock.now_ms(), reply_to=self.inbox, correlation_id=number
        )
        answer: IoFuture[Any] = IoFuture()
        self._calls[number] = answer
        late = NoAnswerError(f"the coordinator did not answer within {answer_s:g} s: {UNKNOWN}")
        timer = self.call_later(answer_s, lambda: answer.fail(late))
        self.consumer.flush_starts()  # so that the coordinator knows which jobs run here
        try:
            await self.publish([entry])
            body = await self.expect(answer)
        finally:
            self._calls.pop(number, None)
            if not self.closed:
                self.cancel_timer(timer)
        return wire.open_reply(name, body)

    async def within(self, seconds: float, promise: IoFuture[T]) -> T:
        """The result of ``promise``. Raises ``StorageError`` if it takes longer than ``seconds``."""
        if promise.done:
            return promise.result()
        over: IoFuture[None] = IoFuture()
        promise.then(lambda: over.set(None))
        timer = self.call_later(seconds, lambda: over.fail(StorageError(f"no answer within {seconds:g} s")))
        try:
            await self.expect(over)
        finally:
            if not self.closed:
                self.cancel_timer(timer)
        return promise.result()

    def entry(self, fact: rq.Request[Any]) -> Outgoing:
        """The message that appends ``fact`` to the log."""
        return wire.log_entry(self.names.log, fact, self.clock.now_ms())

    def append_fact(self, fact: rq.Request[Any]) -> IoFuture[None]:
        """Append a fact to the log."""
        return self.publish([self.entry(fact)])

    def _on_message(self, properties: BasicProperties, body: bytes) -> None:
        call = self._calls.get(properties.correlation_id or "")
        if call is not None:
            call.set(body)
            return
        if properties.type == direct_replies.TYPE:
            ends = bad_records.read_or_none(body, direct_replies.read_ends, "a direct reply")
            if ends is not None:
                self._on_ends(ends)
            return
        if properties.type != "news":
            return  # an answer that came after its timeout
        news = bad_records.read_or_none(body, _read_news, "a notification of the coordinator")
        if news is None:
            return
        for queue in news.paused:
            self.paused.add(queue)
            self.on_paused(queue)
        self.paused.difference_update(news.resumed)
        self.void.update(news.void)
        self.due.update(news.due)
        self.consumer.mark_lost(news.lost)
        if news.void:
            self.consumer.mark_void_lost(set(news.void).difference(news.doubled))
        known = {
            f"done:{queue}"
            for queue, ids in news.told.items()
            if self.reply_listeners.has_received(queue, ids)
        }
        topics = [topic for topic in news.topics if topic not in known]
        topics += [f"ready:{queue}" for queue in news.arrived if not self.consumer.listens(queue)]
        if topics:
            self.hub.publish(topics)

    def _on_ends(self, ends: direct_replies.Ends) -> None:
        """Pass a direct reply on, and then answer the add of the job if it still waits."""
        self.reply_listeners.deliver(ends)
        for end in ends.items:
            adding = self._adding.get((ends.queue, end.id))
            if adding is not None:
                adding.set(None)

    async def load_rules(self) -> None:
        """Load paused queues, void messages and due times, once per connection; changes come as ``News``."""
        if self._rules is None:
            self._rules = spawn(self._request_rules())
        rules = self._rules
        try:
            await rules
        except BaseException:
            self._rules = None
            raise

    async def _request_rules(self) -> None:
        rules = await self.ask(verbs.GetRules())
        self.paused.update(rules.paused)
        self.void.update(rules.void)
        self.due = rules.due | self.due  # notifications that came meanwhile are newer

    # --- election of the coordinator ---------------------------------------------------------------------

    async def _try_to_coordinate(self) -> None:
        """Become the coordinator by declaring its exclusive queue; retry later if another client has it."""
        refused: IoFuture[Any] = IoFuture()
        channel = await self.open_channel(refused.set)
        channel.queue_declare(
            self.names.coordinator, exclusive=True, arguments=EXCLUSIVE, callback=refused.set
        )
        answer = await self.expect(refused)
        if isinstance(answer, ChannelClosedByBroker) and answer.reply_code == _LOCKED:
            reach("amqp.not_elected")
            self.call_later(_ELECTION_RETRY_S, self._retry_election)
            return
        if isinstance(answer, Exception):
            raise answer
        self.coordinator = self._make_coordinator(self)
        taken = self.taking_over = spawn(self.coordinator.take_over())
        taken.then(lambda: self._took_over(taken))

    def _retry_election(self) -> None:
        if not self.closed and self.connection.is_open:
            spawn(self._try_to_coordinate())

    def _took_over(self, taken: IoFuture[None]) -> None:
        try:
            taken.result()
        except Exception as exc:
            if not self.closed and self.connection.is_open:
                log.warning("taking over as coordinator failed, reconnecting: %s", exc)
                self.reconnect()
            return
        reach("amqp.coordinates", log=self.names.log)

    async def prepare_close(self) -> None:
        self.consumer.prepare_close()
        if self.coordinator is not None:
            await self.coordinator.prepare_close()

    async def coordinate(self) -> None:
        """Try to become the coordinator, now and whenever there is none."""
        if self._election is None:
            self._election = spawn(self._try_to_coordinate())
        await self._election

    async def get_one(self, channel: Any, queue: str) -> Delivery | None:
        """Get one message of a queue without acknowledging it; None if the queue is empty.

        ``channel`` must not be used for other gets.
        """
        found: IoFuture[Delivery | None] = IoFuture()
        channel.add_callback(lambda _: found.set(None), [spec.Basic.GetEmpty])
        channel.basic_get(
            queue,
            lambda _c, *message: found.set(delivery_of(*message)),
        )
        answer: Delivery | None = await self.expect(found)
        return answer
