"""Puts messages back that a quorum queue dropped because they were returned too often.

The delivery limit that we declare is never reached. But a policy of the operator may set a lower one, and
RabbitMQ then moves the message to ``windlass.returned``. ``max_stalls`` limits how often a job may be lost,
not the broker. So the coordinator publishes the message again, and a worker verifies it before it starts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pika import BasicProperties

from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.messages import to_ask_about
from windlass.backends.amqp.names import QUORUM
from windlass.backends.amqp.session import delivery_of
from windlass.core.probe import reach
from windlass.speedups.amqp import Outgoing

if TYPE_CHECKING:
    from windlass.backends.amqp.client import AmqpClient

log = logging.getLogger("windlass.amqp")

_WINDOW = 100
_RETRY_S = 1.0


class ReturnedJobs:
    """Reads ``windlass.returned`` for the coordinator."""

    def __init__(self, session: AmqpClient) -> None:
        self._session = session
        self.channel: Any = None

    async def start(self) -> None:
        """Consume ``windlass.returned``, if queues are quorum queues."""
        session = self._session
        if session.names.queue_type != QUORUM:
            return
        channel = self.channel = await session.open_channel()
        await session.call(channel.basic_qos, prefetch_count=_WINDOW)

        def on_message(_channel: Any, method: Any, *message: Any) -> None:
            done = spawn(self._put_back(channel, method, *message))
            done.then(lambda: self._retry_later(channel, method.delivery_tag, done))

        session.consume(channel, session.names.returned, on_message)

    def _retry_later(self, channel: Any, tag: int, done: IoFuture[None]) -> None:
        """Return a message that could not be put back, so that it does not occupy the prefetch window."""
        if not done.failed or self._session.closed:
            return
        try:
            done.result()
        except Exception as exc:
            log.warning("a returned message could not be put back, retrying: %s", exc)
        self._session.call_later(_RETRY_S, lambda: channel.basic_nack(tag) if channel.is_open else None)

    async def _put_back(self, channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
        """Publish a message to its queue again; acknowledge it here after the broker has confirmed that."""
        session, headers = self._session, properties.headers or {}
        queue = session.names.job_queue(headers["x-first-death-queue"])
        log.warning(
            "queue %s returned a message more often than a policy of the broker allows: it is put back. "
            "Let no delivery-limit apply to the queues of Windlass",
            queue,
        )
        again = to_ask_about(delivery_of(method, properties, body), properties.message_id or "")
        await session.need_queue(queue)
        await session.publish([Outgoing(session.names.direct, queue, body, again)])
        reach("amqp.put_back")
        if channel.is_open:
            channel.basic_ack(method.delivery_tag)
