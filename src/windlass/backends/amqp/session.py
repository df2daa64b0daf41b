"""The state of one connection: channels, unconfirmed publishes, unacknowledged messages.

A session runs on the connection's thread and ends with the connection. The broker then redelivers the
unacknowledged messages to other workers, so the connection is the lease of the jobs that run here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from pika import BasicProperties, spec
from pika.exceptions import ChannelClosedByClient

from windlass.backends.amqp.io_future import IoFuture
from windlass.backends.amqp.names import CLASSIC, QUORUM, Names
from windlass.backends.amqp.topology import Topology
from windlass.errors import StorageError
from windlass.speedups.amqp import Outgoing
from windlass.speedups.amqp_frames import Delivery, of_properties

log = logging.getLogger("windlass.amqp")

PERSISTENT = 2
#: Arguments of exclusive queues, which cannot be quorum queues, whatever the default of the broker is.
EXCLUSIVE = {"x-queue-type": CLASSIC}
#: How many gets are sent before the first answer. A quorum queue writes to its disk for each get, also when
#: it is empty. For a classic queue an empty answer costs nothing.
_MOST_GETS = {CLASSIC: 1_000, QUORUM: 10}
#: Where a message goes: an exchange and a routing key.
_Place = tuple[str, str]


class PublishRefusedError(StorageError):
    """The broker refused ``messages``. They are in no queue and may be published again."""

    def __init__(self, messages: list[Outgoing]) -> None:
        super().__init__("the broker could not take the message; repeat the call")
        self.messages = messages


class UnroutableError(StorageError):
    """The broker returned some of ``messages``, because no queue takes them, and may have refused others."""

    def __init__(self, places: Iterable[_Place], messages: list[Outgoing]) -> None:
        shown = ", ".join(f"{key!r} of exchange {exchange!r}" for exchange, key in places)
        super().__init__(f"no queue takes {shown}; repeat the call")
        self.messages = messages


class _Batch:
    """Messages that were published together. ``first`` is the publish tag of the first one."""

    __slots__ = ("first", "left", "messages", "nacked", "promise", "returned")

    def __init__(self, messages: list[Outgoing], first: int) -> None:
        self.messages = messages
        self.first = first
        self.left = len(messages)
        #: Messages that the broker refused, and where it returned messages meanwhile, of any batch.
        self.nacked: list[Outgoing] = []
        self.returned: dict[_Place, None] = {}
        self.promise: IoFuture[None] = IoFuture()


class _Get:
    """A pull. ``left``: how many messages are still wanted. ``asked``: how many gets are not answered yet."""

    __slots__ = ("asked", "found", "left", "promise", "queue")

    def __init__(self, queue: str, count: int) -> None:
        self.queue = queue
        self.left = count
        self.asked = 0
        self.found: list[Delivery] = []
        self.promise: IoFuture[list[Delivery]] = IoFuture()


class AmqpSession:
    """One open connection."""

    def __init__(self, connection: Any, names: Names) -> None:
        self.connection = connection
        self.names = names
        self.closed = False
        self.channel: Any = None
        #: A second channel, for messages that the broker need not confirm.
        self._unconfirmed_channel: Any = None
        self.inbox = ""
        self.topology = Topology(self)
        self._pending: set[IoFuture[Any]] = set()
        self._last_tag = 0
        self._unconfirmed: dict[int, _Batch] = {}
        self._unacked: dict[int, None] = {}
        self._gets: deque[_Get] = deque()
        self._cancelling: dict[str, IoFuture[None]] = {}
        self.on_news: Callable[[BasicProperties, bytes], None] = lambda properties, body: None
        #: Called before this connection is closed for another one. Set by the link.
        self.on_reconnect: Callable[[], None] = lambda: None

    # --- open and close ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the channels, declare the exchanges and queues, and consume from our inbox."""
        await self.topology.declare_all()
        self.channel = channel = await self.open_channel()
        await self.confirming(channel)
        channel.add_on_return_callback(self._on_return)
        channel.add_callback(self._on_get_empty, [spec.Basic.GetEmpty], False)
        channel.add_callback(self._on_cancelled, [spec.Basic.CancelOk], False)
        declared = await self.call(channel.queue_declare, "", exclusive=True, arguments=EXCLUSIVE)
        self.inbox = declared.method.queue
        await self.call(channel.queue_bind, self.inbox, self.names.news)
        self.consume(channel, self.inbox, lambda _c, _m, *message: self.on_news(*message), auto_ack=True)
        await self.call(channel.basic_qos, prefetch_count=1)  # see intake
        self._unconfirmed_channel = await self.open_channel()

    async def prepare_close(self) -> None:
        """Finish work before this process closes the connection. For subclasses."""

    @property
    def usable(self) -> bool:
        """Whether messages can still be sent."""
        return not self.closed and self.channel is not None and bool(self.channel.is_open)

    def fail(self, error: Exception) -> None:
        """Fail all futures that wait for the connection, which is lost."""
        self.closed = True
        pending, self._pending = self._pending, set()
        for promise in pending:
            promise.fail(error)

    def expect(self, promise: IoFuture[Any]) -> IoFuture[Any]:
        """Have ``promise`` fail if the connection is lost before it is set; returns it."""
        if self.closed:
            promise.fail(StorageError("the connection to the broker was lost; repeat the call"))
        else:
            self._pending.add(promise)
            promise.then(lambda: self._pending.discard(promise))
        return promise

    def guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback for pika: an error in it causes a reconnect and does not end the thread."""

        def call(*args: Any) -> None:
            try:
                callback(*args)
            except Exception:
                log.exception("unexpected error on the connection's thread, reconnecting")
                self.reconnect()

        return call

    def reconnect(self) -> None:
        """Close this connection; the link then opens a new one."""
        if not self.closed and self.connection.is_open:
            self.on_reconnect()
            self.connection.hang_up()

    def consume(self, channel: Any, queue: str, callback: Callable[..., None], **options: Any) -> Any:
        """``basic_consume`` with a guarded callback; returns the consumer's tag."""
        return channel.basic_consume(queue, self.guarded(callback), **options)

    def consume_many(self, queue: str, taker: Callable[[Delivery], None]) -> str:
        """Consume many messages from ``queue`` on our channel; returns the consumer's tag."""
        channel = self.channel

        def on_message(_channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
            taker(delivery_of(method, properties, body))  # a message in several frames

        tag: str = self.consume(channel, queue, on_message)
        self.connection.take(channel, tag, self.guarded(taker))
        return tag

    def cancel_consumer(self, tag: str, ended: IoFuture[None]) -> None:
        """Cancel a consumer of our channel. ``ended`` is set when the broker has confirmed that. Messages in
        flight are still delivered."""
        if tag not in self.channel.consumer_tags:  # the broker ended it: its queue was deleted
            self.connection.end_take(self.channel, tag)
            ended.set(None)
            return
        self._cancelling[tag] = ended
        self.connection.cancel(self.channel, tag)

    def _on_cancelled(self, frame: Any) -> None:
        tag = frame.method.consumer_tag
        ended = self._cancelling.pop(tag, None)
        if ended is not None:
            self.connection.end_take(self.channel, tag)
            ended.set(None)

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a channel method that takes a ``callback``, and return what the callback gets."""
        promise: IoFuture[Any] = IoFuture()
        method(*args, callback=promise.set, **kwargs)
        return await self.expect(promise)

    async def open_channel(self, on_close: Callable[[Any], None] | None = None) -> Any:
        """Open a channel. If the broker closes it, ``on_close`` gets the reason; by default we reconnect."""
        promise: IoFuture[Any] = IoFuture()
        channel = self.connection.channel(on_open_callback=promise.set)
        channel.add_on_close_callback(
            lambda _, reason: on_close(reason) if on_close else self._channel_lost(reason)
        )
        return await self.expect(promise)

    async def confirming(self, channel: Any) -> None:
        """Switch ``channel`` to publisher confirms."""
        promise: IoFuture[Any] = IoFuture()
        channel.confirm_delivery(self._on_confirm, callback=promise.set)
        await self.expect(promise)
        self.connection.on_confirm(channel, self.guarded(self._confirm))

    def _channel_lost(self, reason: Exception) -> None:
        """Reconnect: a session cannot work without its channel."""
        if isinstance(reason, ChannelClosedByClient):
            return
        if not self.closed and self.connection.is_open:
            log.warning("the broker closed our channel, reconnecting: %s", reason)
            self.reconnect()

    # --- topology ----------------------------------------------------------------------------------------

    async def need_queue(self, name: str) -> None:
        """Declare and bind the job queue ``name``, once per connection."""
        await self.topology.need_queues([name])

    def need_queues(self, names: list[str]) -> Coroutine[IoFuture[Any], None, None]:
        """Declare and bind job queues, once per connection."""
        return self.topology.need_queues(names)

    # --- publish -----------------------------------------------------------------------------------------

    def publish(self, messages: Iterable[Outgoing]) -> IoFuture[None]:
        """Publish messages. The future is set when the broker has confirmed all of them, and fails if it
        refused or returned one."""
        out = list(messages)
        batch = _Batch(out, self._last_tag + 1)
        if not out:
            batch.promise.set(None)
            return batch.promise
        self.connection.publish(self.channel, out)
        for tag in range(batch.first, batch.first + len(out)):
            self._unconfirmed[tag] = batch
        self._last_tag += len(out)
        self.expect(batch.promise)
        return batch.promise

    def send(self, messages: Iterable[Outgoing]) -> None:
        """Publish messages that may be lost, without confirms, which would cost processor time."""
        if self._unconfirmed_channel is not None and self._unconfirmed_channel.is_open:
            self.connection.publish(self._unconfirmed_channel, messages)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        self._confirm(method.delivery_tag, method.multiple, refused=not isinstance(method, spec.Basic.Ack))

    def _confirm(self, last: int, multiple: bool, *, refused: bool = False) -> None:
        """Handle a confirm of the publish ``last``, or of all up to it; ``refused`` for a negative one."""
        if not multiple:
            self._confirmed(last, refused)
            return
        while self._unconfirmed:
            tag = next(iter(self._unconfirmed))
            if tag > last:
                break
            self._confirmed(tag, refused)

    def _confirmed(self, tag: int, refused: bool) -> None:
        batch = self._unconfirmed.pop(tag, None)
        if batch is None:
            return
        batch.left -= 1
        if refused:
            batch.nacked.append(batch.messages[tag - batch.first])
        if batch.left:
            return
        gone = batch.returned and [one for one in batch.messages if (one.exchange, one.key) in batch.returned]
        if gone:
            places = dict.fromkeys((one.exchange, one.key) for one in gone)
            batch.promise.fail(UnroutableError(places, gone + batch.nacked))
        elif batch.nacked:
            batch.promise.fail(PublishRefusedError(batch.nacked))
        else:
            batch.promise.set(None)

    def _on_return(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        """Handle a message that no queue takes. Its confirm follows.

        The return does not name the publish, so all unconfirmed messages to the same place fail.
        """
        if method.exchange == self.names.direct:
            self.topology.forget_queue(method.routing_key)
        for batch in set(self._unconfirmed.values()):
            batch.returned[method.exchange, method.routing_key] = None

    # --- take and acknowledge ----------------------------------------------------------------------------

    def pull(self, queue: str, count: int) -> IoFuture[list[Delivery]]:
        """Fetch up to ``count`` messages that are ready now."""
        get = _Get(queue, count)
        if self.expect(get.promise).done:  # the connection is lost
            return get.promise
        # Answers come in the order of the gets. So a pull sends its gets now only if all earlier pulls have
        # sent all of theirs.
        ahead = self.connection.gets_ahead and all(one.asked >= one.left for one in self._gets)
        self._gets.append(get)
        if len(self._gets) == 1 or ahead:
            self._send_gets(get)
        return get.promise

    def _send_gets(self, get: _Get) -> None:
        most = _MOST_GETS[self.names.queue_type]
        get.asked = self.connection.get(self.channel, get.queue, min(get.left, most), self._on_get)

    def _on_get(self, _channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
        delivery = delivery_of(method, properties, body)
        self._unacked[delivery.tag] = None
        get = self._gets[0]
        get.found.append(delivery)
        get.left -= 1
        self._got(get)

    def _on_get_empty(self, _frame: Any) -> None:
        get = self._gets[0]
        get.left = 0
        self._got(get)

    def _got(self, get: _Get) -> None:
        """Handle the answer to one get. Answers come in the order of the gets."""
        get.asked -= 1
        over = not get.asked and get.left <= 0
        if over:
            self._gets.popleft()
        if self._gets and self._gets[0].asked:
            self.connection.get_more(self.channel, self._on_get)
        elif self._gets:
            self._send_gets(self._gets[0])
        if over:
            get.promise.set(get.found)

    def delivered(self, delivery: Delivery) -> None:
        """Note a message that a consumer of our channel received and that is not acknowledged yet."""
        self._unacked[delivery.tag] = None

    def ack(self, tags: Iterable[int]) -> None:
        """Acknowledge messages, as many as possible with one frame."""
        wanted = set(tags)
        last = 0
        for tag in self._unacked:
            if tag not in wanted:
                break
            last = tag
        out = [(last, True)] if last else []
        held = [tag for tag in sorted(wanted) if self._unacked.pop(tag, 0) is None]
        out += [(tag, False) for tag in held if tag > last]
        if out:
            self.connection.acknowledge(self.channel, out)

    def requeue(self, tags: Iterable[int]) -> None:
        """Return messages to their old places in their queues.

        The oldest first, because a quorum queue keeps returned messages in the order of their return.
        """
        for tag in sorted(tags):
            if self._unacked.pop(tag, 0) is None:
                self.channel.basic_nack(tag, requeue=True)


def delivery_of(method: Any, properties: BasicProperties, body: bytes) -> Delivery:
    """The ``Delivery`` of a message that pika decoded."""
    return Delivery(method.delivery_tag, method.redelivered, *of_properties(properties), body)
