"""Metrics and heartbeats that workers publish to the public streams, for other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from windlass.backends.amqp import verbs, wire
from windlass.backends.amqp.messages import envelope
from windlass.backends.amqp.names import Names
from windlass.core.job import WorkerInfo
from windlass.core.outcome import Outcome, Settlement
from windlass.speedups.amqp import Outgoing

_to_json = msgspec.json.Encoder().encode
#: How long a metric may wait for others, and how many may wait.
_METRICS_S = 0.1
_MOST_METRICS = 200


class Publishes(Protocol):
    """The session that publishes."""

    names: Names

    @property
    def usable(self) -> bool:
        """Whether messages can still be sent."""

    def publish(self, messages: Iterable[Outgoing]) -> object:
        """Send messages."""

    def call_later(self, seconds: float, call: Callable[[], None]) -> object:
        """Call back after ``seconds``."""


class Metrics:
    """Metrics of settled attempts. No job waits for them, so those of ``_METRICS_S`` share a message."""

    def __init__(self, session: Publishes) -> None:
        self._session = session
        self._waiting: list[dict[str, Any]] = []
        self._timed = False

    def add(self, items: list[Settlement], starts: list[verbs.Start], now_ms: int) -> None:
        """Report how these attempts ended."""
        at = now_ms / 1000
        self._waiting += [
            {
                "type": "job_metric",
                "timestamp": at,
                "jid": end.id,
                "job_class": start.task,
                "queue": end.queue,
                "duration_ms": end.duration_ms or 0,
                "status": "success" if end.outcome is Outcome.COMPLETE else "failed",
                "worker_identity": start.worker,
            }
            for end, start in zip(items, starts, strict=True)
        ]
        if len(self._waiting) >= _MOST_METRICS:
            self.flush()
        elif not self._timed:
            self._timed = True
            self._session.call_later(_METRICS_S, self._tick)

    def _tick(self) -> None:
        self._timed = False
        self.flush()

    def flush(self) -> None:
        """Publish pending metrics in one envelope. A single metric is also at its top level."""
        metrics, self._waiting = self._waiting, []
        if not metrics or not self._session.usable:
            return
        last = metrics[-1]
        top = last if len(metrics) == 1 else {"type": "job_metrics", "timestamp": last["timestamp"]}
        body = _to_json({**top, "data": metrics})
        self._session.publish([Outgoing("", self._session.names.job_metrics, body, wire.COPIED)])


def heartbeat_message(names: Names, worker: WorkerInfo, now_ms: int) -> Outgoing:
    """The message of a worker's heartbeat."""
    beat = {
        "identity": worker.id,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "tag": worker.tag,
        "concurrency": worker.concurrency,
        "busy": worker.busy,
        "beat": now_ms / 1000,
        "rss_kb": worker.rss_kb,
        "queues": worker.queues,
        "version": worker.version,
    }
    return Outgoing("", names.heartbeats, envelope("heartbeat", now_ms, beat), wire.COPIED)
