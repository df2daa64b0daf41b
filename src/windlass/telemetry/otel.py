"""OpenTelemetry: a span for every enqueue and every run, in one trace from the producer through all its jobs.

The context of the ``send`` span is carried in the job's ``trace`` (W3C ``traceparent`` by default, or the
format of the propagator). A run is its child, and jobs that the handler enqueues are children of the run.
Names follow OpenTelemetry's conventions for messaging. Without a configured SDK this middleware does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from windlass._version import __version__
from windlass.core.job import TRACEBACK_CHARS
from windlass.core.outcome import AddOutcome
from windlass.core.text import clean_text
from windlass.core.tracebacks import format_error, name_of
from windlass.errors import JobSignal, not_installed
from windlass.handlers.hooks import AttemptEnd, Outgoing
from windlass.jobs.abort import StopReason

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError as exc:
    raise not_installed("telemetry", "OpenTelemetry", "windlass[otel]") from exc

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider

    from windlass.jobs.job import Job

_SYSTEM = "windlass"


class OpenTelemetry:
    """A middleware for spans and metrics. The default providers are those of the process."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("windlass", __version__, tracer_provider)
        self._propagator = propagator or propagate.get_global_textmap()
        meter = metrics.get_meter("windlass", __version__, meter_provider)
        self._enqueued = meter.create_counter("windlass.jobs.enqueued", "{job}", "Jobs added")
        self._ended = meter.create_counter("windlass.jobs.ended", "{job}", "Attempts by outcome")
        self._active = meter.create_up_down_counter("windlass.jobs.active", "{job}", "Jobs that run now")
        self._duration = meter.create_histogram("windlass.job.duration", "s", "How long an attempt ran")
        self._wait = meter.create_histogram("windlass.job.wait", "s", "How long a ready job waited")

    def enqueue(self, outgoing: Outgoing) -> Iterator[None]:
        """Create a span for an enqueue, and add the trace to its jobs."""
        jobs = outgoing.jobs
        queues = {new.queue for new in jobs}
        queue = queues.pop() if len(queues) == 1 else ""  # a flow may use several queues
        facts: dict[str, Any] = _facts("send", queue)
        if len(jobs) == 1:
            size = len(jobs[0].payload)
            facts |= {"messaging.message.id": jobs[0].id, "messaging.message.body.size": size}
            facts["windlass.task"] = jobs[0].task
        else:
            facts["messaging.batch.message_count"] = len(jobs)
        name = f"send {queue}".strip()
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=facts):
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
            if carrier:
                outgoing.carry(carrier)
            yield
        for job in outgoing.added:
            if job.outcome is AddOutcome.QUEUED:
                self._enqueued.add(1, {"queue": job.queue_name, "task": job.name})

    def execute(self, job: Job[Any]) -> Iterator[None]:
        """Create a span for a run, and measure the job's wait."""
        record = job.record
        facts = {
            **_facts("process", record.queue),
            "messaging.message.id": record.id,
            "messaging.message.body.size": len(record.payload),
            "messaging.client.id": record.worker or "",
            "windlass.task": record.task,
            "windlass.attempt": job.attempt,
        }
        labels = {"queue": record.queue, "task": record.task}
        if record.started_ms is not None:
            self._wait.record(max(record.started_ms - record.ready_ms, 0) / 1000, labels)
        self._active.add(1, labels)
        parent = self._propagator.extract(job.trace, Context())  # not the worker's own context
        try:
            with self._tracer.start_as_current_span(
                f"process {record.queue}",
                parent,
                SpanKind.CONSUMER,
                facts,
                _links(parent),
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    yield
                except BaseException as exc:
                    _record_error(span, job, exc)
                    raise
        finally:
            self._active.add(-1, labels)

    def ended(self, job: Job[Any], end: AttemptEnd) -> None:
        """Count the outcome of a run and measure its duration."""
        labels = {"queue": job.queue_name, "task": job.name, "outcome": end.outcome.value}
        self._ended.add(1, labels)
        self._duration.record(end.duration_ms / 1000, labels)


def _facts(operation: str, queue: str) -> dict[str, Any]:
    found = {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    return {**found, "messaging.destination.name": queue} if queue else found


def _links(parent: Context) -> list[Link]:
    """Return a link to the span that sent the job. The conventions require it even if that is the parent."""
    sent = trace.get_current_span(parent).get_span_context()
    return [Link(sent)] if sent.is_valid else []


def _record_error(span: Span, job: Job[Any], error: BaseException) -> None:
    """Record why a run ended early. A signal is not an error; a stop is recorded with its reason."""
    reason = job.abort_signal.reason if job.abort_signal is not None else None
    if isinstance(error, JobSignal):
        span.set_attribute("windlass.signal", type(error).__name__)
        return
    if isinstance(error, asyncio.CancelledError) and reason is not None:
        span.set_attribute("windlass.stopped", reason.value)
        if reason is StopReason.TIMEOUT:
            span.set_status(Status(StatusCode.ERROR, "timeout"))
        return
    kind = clean_text(name_of(error))
    facts = {
        "exception.type": kind,
        "exception.message": clean_text(error),
        "exception.stacktrace": clean_text(format_error(error, error.__traceback__), TRACEBACK_CHARS),
    }
    span.add_event("exception", facts)  # record_exception would format the error, which may raise
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, clean_text(f"{kind}: {facts['exception.message']}", 200)))
