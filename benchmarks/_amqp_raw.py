"""The same messages without Windlass: bare loops over pika, with prepared messages.

They show the limit of the broker and pika. Each loop publishes and acknowledges the same messages as Windlass
does for that row, and waits for the same confirms. It has no engine, no second thread and no coordinator, but
the loop of calls reads the log, as a coordinator must.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from pika import BasicProperties, SelectConnection, URLParameters
from pika.adapters.select_connection import IOLoop

from windlass import Windlass
from windlass.backend import requests as rq
from windlass.backend.urls import parse_url
from windlass.backends.amqp import direct_replies, verbs, wire
from windlass.backends.amqp.messages import to_message
from windlass.backends.amqp.names import Names
from windlass.core import transitions
from windlass.core.ids import new_id
from windlass.core.job import Completed, NewJob
from windlass.core.outcome import Outcome, Settlement
from windlass.speedups.amqp import Outgoing

QUEUE = "bench"
#: The most settlements that are not confirmed yet.
_UNSETTLED = 50
_NOW_MS = 1_760_000_000_000
_LEASE_MS = 30_000


class _Message(NamedTuple):
    """The arguments of ``basic_publish``."""

    exchange: str
    key: str
    body: bytes
    properties: BasicProperties
    mandatory: bool


def _ready(out: Outgoing) -> _Message:
    return _Message(*out[:3], BasicProperties().decode(out.properties), out.mandatory)


class _Client:
    """One connection with one channel with publisher confirms. ``begin`` is called when it is open."""

    def __init__(self, url: str, loop: IOLoop, begin: Callable[[_Client], None]) -> None:
        self._begin = begin
        self._tag = 0
        #: For each unconfirmed publish: how many of its batch are left, and the callback for the end.
        self._unconfirmed: dict[int, list[Any]] = {}
        self.channel: Any = None
        self.connection = SelectConnection(
            URLParameters(url.partition("?")[0]),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            custom_ioloop=loop,
        )

    def _opened(self, channel: Any) -> None:
        self.channel = channel
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._begin(self))

    def publish(self, messages: list[_Message], then: Callable[[], None] | None = None) -> None:
        """Publish messages; ``then`` is called when the broker has confirmed all of them."""
        batch = [len(messages), then]
        for exchange, key, body, properties, mandatory in messages:
            self.channel.basic_publish(exchange, key, body, properties, mandatory)
            self._tag += 1
            self._unconfirmed[self._tag] = batch

    def _confirmed(self, frame: Any) -> None:
        last, several = frame.method.delivery_tag, frame.method.multiple
        tags = [tag for tag in self._unconfirmed if tag <= last] if several else [last]
        for tag in tags:
            batch = self._unconfirmed.pop(tag)
            batch[0] -= 1
            if not batch[0] and batch[1] is not None:
                batch[1]()


class BareLoops:
    """Bare loops on the namespace of ``url``, which must be new."""

    def __init__(self, url: str, text: str) -> None:
        self._url = url
        self._names = Names(parse_url(url).namespace)
        self._queue = Windlass("memory://").queue(QUEUE)
        self._text = text
        self._loop = IOLoop()
        self._clients: list[_Client] = []
        self._started = self._ended = 0.0

    async def declare(self) -> None:
        """Let Windlass declare its exchanges, queues and streams."""
        async with Windlass(self._url) as app:
            await app.store.backend.prepare([QUEUE])  # type: ignore[attr-defined]

    # --- messages --------------------------------------------------------------------------------

    def _jobs(self, count: int) -> list[NewJob]:
        return [self._queue.prepare("noop", {"text": self._text}) for _ in range(count)]

    def _added(self, jobs: list[NewJob], reply: str = "") -> list[_Message]:
        """The messages of an add of ``jobs``: one log entry, and each job."""
        born = verbs.Born(add=rq.Add(jobs=jobs))
        recorder = transitions.ChangeRecorder(_NOW_MS, lambda: 0)
        out = [wire.log_entry(self._names.log, born, _NOW_MS)]
        for job in jobs:
            body, properties = to_message(transitions.create(job, recorder), 0, reply)
            out.append(Outgoing(self._names.direct, QUEUE, body, properties))
        return [_ready(one) for one in out]

    def _worked(self, count: int, *, next_begin: bool = False) -> tuple[list[_Message], list[_Message]]:
        """The messages of a worker when it starts and when it completes ``count`` jobs together.

        ``next_begin``: the completion also reports the start of as many other jobs, as on a busy worker.
        """
        starts = [
            verbs.Start(QUEUE, new_id(), new_id(), "worker", _LEASE_MS, _NOW_MS, "noop") for _ in range(count)
        ]
        ends = [
            Settlement(queue=QUEUE, id=start.id, token=start.token, outcome=Outcome.COMPLETE, result=b"null")
            for start in starts
        ]
        log = self._names.log
        began = [wire.log_entry(log, verbs.Started(starts=starts), _NOW_MS)]
        following = starts if next_begin else []
        ended = [wire.log_entry(log, verbs.Ended(items=ends, starts=starts, began=following), _NOW_MS)]
        return [_ready(one) for one in began], [_ready(one) for one in ended]

    # --- loops -----------------------------------------------------------------------------------

    def _run(self, *begin: Callable[[_Client], None]) -> float:
        """Run until ``_stop``; returns the seconds between ``_started`` and then."""
        self._clients = [_Client(self._url, self._loop, one) for one in begin]
        self._loop.start()
        return self._ended - self._started

    def _stop(self) -> None:
        """Stop the clock, and the loop when the last connection is closed."""
        self._ended = time.perf_counter()
        self._clients[-1].connection.add_on_close_callback(lambda *_: self._loop.stop())
        for client in self._clients:
            client.connection.close()

    def adds(self, count: int, batch: int) -> float:
        """Jobs per second. Each batch is awaited before the next; the first is not counted."""
        batches = deque(self._added(self._jobs(batch)) for _ in range(count // batch))

        def begin(client: _Client) -> None:
            def step() -> None:
                if batches:
                    client.publish(batches.popleft(), step)
                else:
                    self._stop()

            def first() -> None:
                self._started = time.perf_counter()
                step()

            client.publish(self._added(self._jobs(1)), first)

        return count / self._run(begin)

    def drain(self, count: int, together: int) -> float:
        """Jobs per second of a full queue: ``together`` jobs are started, logged and acknowledged at once."""
        self.adds(count, min(count, 1_000))
        began, ended = self._worked(together, next_begin=True)
        held = done = 0

        def begin(client: _Client) -> None:
            channel = client.channel

            def acknowledge(tag: int, jobs: int) -> None:
                nonlocal done
                channel.basic_ack(tag, multiple=jobs > 1)
                done += jobs
                if done >= count:
                    self._stop()

            def taken(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
                nonlocal held
                if held == count:
                    return
                msgspec.json.decode(body)
                held += 1
                if held % together == 0 or held == count:
                    tag, jobs = method.delivery_tag, (held - 1) % together + 1
                    if held == together:  # the starts of all others are logged with the ends before them
                        client.publish(began)
                    client.publish(ended, lambda: acknowledge(tag, jobs))

            channel.basic_qos(prefetch_count=max(_UNSETTLED, 3 * together))
            self._started = time.perf_counter()
            channel.basic_consume(self._names.queue(QUEUE), taken)

        return count / self._run(begin)

    def calls(self, count: int) -> float:
        """Calls per second: job, log entries and result make the same hops, one call after the other.

        A third connection reads the log. The first call is not counted.
        """
        _, ended = self._worked(1)
        inbox = f"bare-{new_id()}"

        def work(client: _Client) -> None:
            done = Completed(new_id(), b"1", _NOW_MS, _NOW_MS, "worker")
            reply = [_ready(one) for one in direct_replies.messages([(inbox, QUEUE, done)])]

            def taken(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
                def settled() -> None:
                    client.publish(reply)
                    channel.basic_ack(method.delivery_tag)

                msgspec.json.decode(body)
                client.publish(ended, settled)

            client.channel.basic_qos(prefetch_count=1)
            client.channel.basic_consume(self._names.queue(QUEUE), taken)

        def ask(client: _Client) -> None:
            requests = deque(self._added(self._jobs(1), inbox) for _ in range(count + 1))

            def answered(*_: Any) -> None:
                if len(requests) == count:  # the first call is over
                    self._started = time.perf_counter()
                if requests:
                    client.publish(requests.popleft())
                else:
                    self._stop()

            client.channel.queue_declare(inbox, exclusive=True)
            client.channel.basic_consume(inbox, answered, auto_ack=True)
            client.publish(requests.popleft())

        return count / self._run(self._read_log, work, ask)

    def _read_log(self, client: _Client) -> None:
        """Read and decode the log from here on, with an acknowledgement for every 50 entries."""

        def read(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            wire.read_entry(body)
            if method.delivery_tag % 50 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)

        client.channel.basic_qos(prefetch_count=500)
        arguments = {"x-stream-offset": "next"}
        client.channel.basic_consume(self._names.log, read, arguments=arguments)
