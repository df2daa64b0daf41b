"""Figures for others: what workers report to ``job_metrics`` and ``heartbeats``, in the formats they know."""

from __future__ import annotations

import msgspec

from windlass.backends.amqp import verbs, wire
from windlass.backends.amqp.messages import envelope
from windlass.backends.amqp.names import Names
from windlass.core.job import WorkerInfo
from windlass.core.outcome import Outcome, Settlement
from windlass.speedups.amqp import Outgoing

_to_json = msgspec.json.Encoder().encode


def metrics_message(
    names: Names, items: list[Settlement], starts: list[verbs.Start], now_ms: int
) -> Outgoing:
    """What became of some attempts: an envelope of all; one alone stands at its top as well."""
    at = now_ms / 1000
    metrics = [
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
    top = metrics[0] if len(metrics) == 1 else {"type": "job_metrics", "timestamp": at}
    return Outgoing("", names.job_metrics, _to_json({**top, "data": metrics}), wire.COPIED)


def heartbeat_message(names: Names, worker: WorkerInfo, now_ms: int) -> Outgoing:
    """A worker's sign of life."""
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
