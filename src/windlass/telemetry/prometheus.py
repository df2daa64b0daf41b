"""Prometheus: counters and histograms of this process, and the number of jobs of each queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from windlass.core.outcome import AddOutcome
from windlass.core.states import JobState
from windlass.errors import not_installed
from windlass.handlers.hooks import AttemptEnd, Outgoing

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
except ImportError as exc:
    raise not_installed("telemetry", "prometheus_client", "windlass[prometheus]") from exc

if TYPE_CHECKING:
    from windlass.api.app import Windlass
    from windlass.jobs.job import Job

#: In seconds, from a millisecond to an hour.
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1_800, 3_600)
_JOB = ("queue", "task")


class PrometheusMetrics:
    """A middleware that counts and times jobs in a registry (by default a new one)."""

    #: The content type of ``text``, for the HTTP answer.
    content_type = CONTENT_TYPE_LATEST

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._collected = registry if registry is not None else CollectorRegistry()
        here: dict[str, Any] = {"registry": self._collected}
        self._enqueued = Counter("windlass_jobs_enqueued", "Jobs added by this process", _JOB, **here)
        self._ended = Counter("windlass_jobs_ended", "Attempts by outcome", (*_JOB, "outcome"), **here)
        self._active = Gauge("windlass_jobs_active", "Jobs that run now", _JOB, **here)
        self._duration = Histogram(
            "windlass_job_duration_seconds",
            "How long an attempt ran",
            _JOB,
            buckets=_BUCKETS,
            **here,
        )
        self._wait = Histogram(
            "windlass_job_wait_seconds",
            "How long a ready job waited for its start",
            _JOB,
            buckets=_BUCKETS,
            **here,
        )
        self._queue_jobs = Gauge(
            "windlass_queue_jobs", "Jobs of a queue in a state", ("queue", "state"), **here
        )
        self._queue_latency = Gauge(
            "windlass_queue_latency_seconds",
            "How long the oldest waiting job has been ready",
            ("queue",),
            **here,
        )

    @property
    def registry(self) -> CollectorRegistry:
        """The registry of the metrics."""
        return self._collected

    def enqueue(self, outgoing: Outgoing) -> Iterator[None]:
        """Count the jobs of an enqueue, except refused ones and those answered by an existing job."""
        yield
        for job in outgoing.added:
            if job.outcome is AddOutcome.QUEUED:
                self._enqueued.labels(job.queue_name, job.name).inc()

    def execute(self, job: Job[Any]) -> Iterator[None]:
        """Measure the wait of a job, and count it as active while it runs."""
        record = job.record
        if record.started_ms is not None:
            waited_ms = max(record.started_ms - record.ready_ms, 0)
            self._wait.labels(record.queue, record.task).observe(waited_ms / 1000)
        active = self._active.labels(record.queue, record.task)
        active.inc()
        try:
            yield
        finally:
            active.dec()

    def ended(self, job: Job[Any], end: AttemptEnd) -> None:
        """Count the outcome of a run and measure its duration."""
        self._ended.labels(job.queue_name, job.name, end.outcome.value).inc()
        self._duration.labels(job.queue_name, job.name).observe(end.duration_ms / 1000)

    async def text(self, app: Windlass | None = None) -> bytes:
        """Return all metrics in the text format of Prometheus; with ``app``, also the state of its queues."""
        if app is not None:
            await self._read_queues(app)
        return generate_latest(self.registry)

    async def _read_queues(self, app: Windlass) -> None:
        self._queue_jobs.clear()
        self._queue_latency.clear()
        now_ms = app.clock.now_ms()
        for info in await app.queues():
            for state in JobState:
                self._queue_jobs.labels(info.name, state.value).set(info.counts.get(state.value, 0))
            since_ms = info.oldest_ready_ms
            latency_ms = 0 if since_ms is None else max(now_ms - since_ms, 0)
            self._queue_latency.labels(info.name).set(latency_ms / 1000)
