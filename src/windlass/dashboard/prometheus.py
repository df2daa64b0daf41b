"""Metrics of the store in Prometheus's text format. ``windlass.telemetry`` has the metrics of a process."""

from __future__ import annotations

from windlass.core.states import JobState
from windlass.dashboard.store_view import StoreView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Text:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, about: str) -> None:
        self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, **labels: str) -> None:
        inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        self._lines.append(f"{name}{{{inner}}} {value!r}" if inner else f"{name} {value!r}")

    def encode(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode("utf-8", "replace")


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


async def render(store_view: StoreView) -> bytes:
    """The metrics of the queues that are shown."""
    text = _Text()
    infos, workers, counters = (
        await store_view.queues(),
        await store_view.workers(),
        await store_view.counters(),
    )
    now_ms = store_view.now_ms()
    text.family("windlass_queue_jobs", "gauge", "Jobs of a queue in a state")
    for info in infos:
        for state in JobState:
            count = info.counts.get(state.value, 0)
            text.sample("windlass_queue_jobs", count, queue=info.name, state=state.value)
    text.family("windlass_queue_latency_seconds", "gauge", "How long the oldest waiting job has been ready")
    for info in infos:
        waits_ms = 0 if info.oldest_ready_ms is None else max(now_ms - info.oldest_ready_ms, 0)
        text.sample("windlass_queue_latency_seconds", waits_ms / 1000, queue=info.name)
    text.family("windlass_queue_paused", "gauge", "Whether a queue is paused")
    for info in infos:
        text.sample("windlass_queue_paused", int(info.paused), queue=info.name)
    text.family("windlass_attempts_total", "counter", "Attempts by outcome, and jobs enqueued, ever")
    for row in counters:
        labels = {"queue": row.queue, "task": row.task, "outcome": row.outcome}
        text.sample("windlass_attempts_total", row.total, **labels)
    text.family("windlass_workers", "gauge", "Live workers")
    text.sample("windlass_workers", len(workers))
    text.family("windlass_worker_slots", "gauge", "Slots of live workers")
    text.sample("windlass_worker_slots", sum(info.concurrency for info in workers))
    text.family("windlass_worker_busy", "gauge", "Busy slots of live workers")
    text.sample("windlass_worker_busy", sum(info.busy for info in workers))
    return text.encode()
