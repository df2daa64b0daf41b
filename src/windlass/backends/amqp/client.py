"""A session that speaks with the coordinator: asks it, gets its news, and takes its seat when it is free."""

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

#: How long to wait for the coordinator's answer, and how often to try for its seat.
_ANSWER_S = 15.0
_ELECTION_RETRY_S = 1.0
_LOCKED = 405
#: How long to wait before messages are published again that the broker refused, each time.
_AGAIN_S = (0.2, 0.5, 1.0, 2.0, 4.0)
_read_news = msgspec.msgpack.Decoder(verbs.News).decode


# Most connections are refused the coordinator's seat every second.
ignore_refusals(lambda code, text: code == _LOCKED and f"{COORDINATOR_QUEUE}'" in text)


class NoAnswerError(StorageError):
    """A request is in the log, and the coordinator has not answered in time: it will be carried out."""


class HoldsJobs(Protocol):
    """The consumer of this connection: the jobs that it holds."""

    def mark_lost(self, tokens: list[str]) -> None:
        """The coordinator took these attempts away."""

    def mark_void_lost(self, keys: set[tuple[str, str, int]]) -> None:
        """The jobs of these messages were cancelled, removed or changed while they waited."""

    def listens(self, queue: str) -> bool:
        """Whether the broker itself wakes us for this queue."""

    async def claim(self, request: rq.Claim) -> rq.Claimed:
        """Take jobs."""

    async def settle(self, request: rq.Settle) -> rq.SettleResult:
        """Hand in ends."""

    async def extend(self, request: rq.Extend) -> list[Any]:
        """Renew leases."""

    async def reconcile(self, request: rq.Reconcile) -> int:
        """Give back what is not held."""

    def prepare_close(self) -> None:
        """The connection is about to be closed."""

    def flush_starts(self) -> None:
        """Put starts that wait into the log now."""


class Coordinates(Protocol):
    """The coordinator, when this connection holds its seat."""

    async def take_over(self) -> None:
        """Read the log, then decide."""

    async def prepare_close(self) -> None:
        """Stop in good order."""

    async def retire(self) -> None:
        """Stop, and let another take the seat."""


class AmqpClient(AmqpSession):
    """One connection of a backend."""

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
        #: How many messages of no known job are left in a queue of those that a count looked at.
        self.unknown: dict[str, int] = {}
        #: When the first job of a queue is due.
        self.due: dict[str, int | None] = {}
        self.on_paused: Any = lambda queue: None
        self._calls: dict[str, IoFuture[Any]] = {}
        self._numbers = itertools.count(1)
        self._rules: IoFuture[None] | None = None
        self._election: IoFuture[None] | None = None
        self.coordinator: Coordinates | None = None
        #: Kept when our coordinator has read all that there was.
        self.taking_over: IoFuture[None] = resolved(None)
        self.on_news = self._on_message
        #: Where jobs are taken and handed in; set by the backend.
        self.consumer: HoldsJobs

    # --- time on the connection's thread -----------------------------------------------------------------

    def call_later(self, seconds: float, call: Any) -> Any:
        """Call back after ``seconds``; what ``call`` sends goes out at once, as one."""
        guarded, connection = self.guarded(call), self.connection

        def run() -> None:
            connection.gather()
            guarded()
            connection.send_gathered()

        return connection.ioloop.call_later(seconds, run)

    def call_soon_threadsafe(self, call: Any) -> None:
        """Call back on the connection's thread, after the calls that came before; from any thread."""
        self._call_soon_threadsafe(self.guarded(call))

    def cancel_timer(self, timer: Any) -> None:
        self.connection.ioloop.remove_timeout(timer)

    async def until_confirmed(self, promise: IoFuture[None]) -> None:
        """Wait until the broker has all that was published with ``promise``.

        A quorum queue that has no leader, or is full by a policy, refuses messages. These are published again
        after a pause, only these, a few times.
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

    # --- asking ------------------------------------------------------------------------------------------

    async def ask(self, request: rq.Request[Any], answer_s: float = _ANSWER_S) -> Any:
        """Put ``request`` into the log and wait for the coordinator's answer.

        ``NoAnswerError`` says that the broker has taken the request: the time is looked at after that.
        """
        if self._election is None:
            self._election = spawn(self._try_to_coordinate())
        await self._election
        number = f"{next(self._numbers)}"
        answer: IoFuture[Any] = IoFuture()
        self._calls[number] = answer
        name = type(request).__name__
        entry = wire.log_entry(
            self.names.log, request, self.clock.now_ms(), reply_to=self.inbox, correlation_id=number
        )
        late = NoAnswerError(f"the coordinator did not answer within {answer_s:g} s: {UNKNOWN}")
        timer = self.call_later(answer_s, lambda: answer.fail(late))
        self.consumer.flush_starts()  # what runs here is known to run
        try:
            await self.publish([entry])
            body = await self.expect(answer)
        finally:
            self._calls.pop(number, None)
            if not self.closed:
                self.cancel_timer(timer)
        return wire.open_reply(name, body)

    async def within(self, seconds: float, promise: IoFuture[T]) -> T:
        """What ``promise`` brings, if it is kept in time."""
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
        """The entry of the log for ``fact``."""
        return wire.log_entry(self.names.log, fact, self.clock.now_ms())

    def append_fact(self, fact: rq.Request[Any]) -> IoFuture[None]:
        """Put a fact into the log."""
        return self.publish([self.entry(fact)])

    def _on_message(self, properties: BasicProperties, body: bytes) -> None:
        call = self._calls.get(properties.correlation_id or "")
        if call is not None:
            call.set(body)
            return
        if properties.type == direct_replies.TYPE:
            ends = bad_records.read_or_none(body, direct_replies.read_ends, "the end of a job")
            if ends is not None:
                self.reply_listeners.deliver(ends)
            return
        if properties.type != "news":
            return  # an answer that came too late
        news = bad_records.read_or_none(body, _read_news, "a piece of news")
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

    async def load_rules(self) -> None:
        """Know which queues are paused and which messages are void; once per connection, then by news."""
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
        self.due = rules.due | self.due  # what came as news meanwhile is newer

    # --- the seat ----------------------------------------------------------------------------------------

    async def _try_to_coordinate(self) -> None:
        """Take the coordinator's seat if it is free; else try again from time to time."""
        refused: IoFuture[Any] = IoFuture()
        channel = await self.open_channel(refused.set)
        channel.queue_declare(
            self.names.coordinator, exclusive=True, arguments=EXCLUSIVE, callback=refused.set
        )
        answer = await self.expect(refused)
        if isinstance(answer, ChannelClosedByBroker) and answer.reply_code == _LOCKED:
            reach("amqp.seat_taken")
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
                log.warning("taking over as coordinator failed, connecting anew: %s", exc)
                self.reconnect()
            return
        reach("amqp.coordinates", log=self.names.log)

    async def prepare_close(self) -> None:
        self.consumer.prepare_close()
        if self.coordinator is not None:
            await self.coordinator.prepare_close()

    async def coordinate(self) -> None:
        """Run for the seat without having anything to ask."""
        if self._election is None:
            self._election = spawn(self._try_to_coordinate())
        await self._election

    async def get_one(self, channel: Any, queue: str) -> Delivery | None:
        """One message of a queue, unacknowledged, on a channel of its own; None when there is none."""
        found: IoFuture[Delivery | None] = IoFuture()
        channel.add_callback(lambda _: found.set(None), [spec.Basic.GetEmpty])
        channel.basic_get(
            queue,
            lambda _c, *message: found.set(delivery_of(*message)),
        )
        answer: Delivery | None = await self.expect(found)
        return answer
