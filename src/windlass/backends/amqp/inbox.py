"""Copies entries that other programs put into the public streams to the log.

The streams serve as an inbox: the coordinator copies each entry to the log, and from there the job goes to
``windlass.kept``. Entries that Windlass itself wrote, for other programs to read, are skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs, wire
from windlass.backends.amqp.acks import StreamAcks
from windlass.backends.amqp.messages import opened
from windlass.backends.amqp.unreadable import MOST_KEPT
from windlass.core import bad_records
from windlass.core.job import WORKER_GONE_MS, WorkerInfo

if TYPE_CHECKING:
    from windlass.backends.amqp.client import AmqpClient
    from windlass.backends.amqp.ledger import Ledger

_WINDOW = 200


class StreamReader(Protocol):
    """The coordinator, as ``ForeignStreams`` uses it."""

    ledger: Ledger

    def now_ms(self) -> int:
        """The coordinator's time."""

    def append(self, request: rq.Request[Any]) -> object:
        """Append an entry to the log."""

    def beat(self, request: rq.Beat) -> None:
        """Note the heartbeat of a worker in another language."""


class ForeignStreams:
    """Reads the five public streams (scheduled, retries, dead, heartbeats, metrics) for the coordinator."""

    def __init__(self, session: AmqpClient, coordinator: StreamReader) -> None:
        self._session = session
        self._coordinator = coordinator
        self._acks = StreamAcks(session.call_later)
        self.channel: Any = None

    async def start(self) -> None:
        """Consume the streams from where the last coordinator stopped."""
        names, session = self._session.names, self._session
        channel = self.channel = await session.open_channel()
        await session.call(channel.basic_qos, prefetch_count=_WINDOW)
        cursors = self._coordinator.ledger.cursors_of_streams
        for stream, kind in (
            (names.scheduled_jobs, "scheduled_job"),
            (names.retries, "retry"),
            (names.dead_jobs, "dead_job"),
            (names.job_metrics, "job_metric"),
        ):
            start: Any = cursors[kind] + 1 if kind in cursors else "first"
            session.consume(channel, stream, self._reader(kind), arguments={"x-stream-offset": start})
        session.consume(channel, names.heartbeats, self._on_beat, arguments={"x-stream-offset": "first"})

    def _reader(self, kind: str) -> Any:
        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            headers = properties.headers or {}
            offset = int(headers["x-stream-offset"])
            coordinator = self._coordinator
            if wire.COPY not in headers and offset > coordinator.ledger.cursors_of_streams.get(kind, -1):
                body = body[:MOST_KEPT]
                if kind == "job_metric":
                    coordinator.append(verbs.ForeignMetric(offset=offset, body=body))
                else:
                    coordinator.append(verbs.Foreign(kind=kind, offset=offset, body=body))
            self._acks.add(channel, method.delivery_tag)

        return on_message

    def _on_beat(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._acks.add(channel, method.delivery_tag)
        if wire.COPY in (properties.headers or {}):
            return
        try:
            fields = opened(msgspec.json.decode(body, type=dict[str, Any]))
            if float(fields["beat"]) * 1000 < self._coordinator.now_ms() - WORKER_GONE_MS:
                return
            worker = WorkerInfo(
                id=str(fields["identity"]),
                hostname=str(fields.get("hostname", "")),
                pid=_number(fields, "pid"),
                tag=str(fields.get("tag", "")),
                queues=tuple(str(name) for name in fields.get("queues", ())),
                concurrency=_number(fields, "concurrency"),
                busy=_number(fields, "busy"),
                rss_kb=_number(fields, "rss_kb"),
                version=str(fields.get("version", "")),
            )
        except bad_records.UNREADABLE as exc:
            bad_records.log_once("a heartbeat", str(exc))
            return
        self._coordinator.beat(rq.Beat(worker=worker))


def _number(fields: dict[str, Any], name: str) -> int:
    """A number of a heartbeat. Raises ``ValueError`` if it is negative or too large for an answer."""
    value = int(fields.get(name, 0))
    if not 0 <= value < 2**53:
        raise ValueError(f"{name} must be a whole number from 0 on")
    return value
