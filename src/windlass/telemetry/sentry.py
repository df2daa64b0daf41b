"""Sentry: failed runs as events, enqueues and runs as spans of its queues page, in one trace.

A run is a transaction named after its task, with a ``queue.process`` span. An enqueue is a ``queue.publish``
span of the current transaction. The trace is carried in the job's ``trace``: ``sentry-trace``, ``baggage``.
An error event is sent when the store has accepted the settlement of the run, with the breadcrumbs of that
run. Without ``sentry_sdk.init`` this middleware does nothing. Arguments are never sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from windlass.errors import JobSignal, not_installed
from windlass.handlers.hooks import Outgoing

try:
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.scope import use_isolation_scope, use_scope
    from sentry_sdk.tracing import TransactionSource
    from sentry_sdk.utils import event_from_exception
except ImportError as exc:
    raise not_installed("telemetry", "sentry_sdk", "windlass[sentry]") from exc

if TYPE_CHECKING:
    from sentry_sdk.scope import Scope
    from sentry_sdk.tracing import Span

    from windlass.jobs.job import Job

_SYSTEM: Final = "windlass"
_ORIGIN: Final = "auto.queue.windlass"
#: The maximum number of runs whose scopes are kept. After a lost lease, ``failed`` is never called.
_MOST_SCOPES: Final = 256


class Sentry:
    """A middleware that reports errors and spans to the client set by ``sentry_sdk.init``.

    ``retries=False`` reports only errors that failed their job permanently.
    """

    def __init__(self, *, retries: bool = True) -> None:
        self._retries = retries
        self._scopes: dict[str | None, tuple[Scope, Scope]] = {}
        ignore_logger("windlass.attempt")  # avoids a second report of the same error

    def enqueue(self, outgoing: Outgoing) -> Iterator[None]:
        """Create a span for an enqueue, and add the trace to its jobs."""
        jobs = outgoing.jobs
        if not sentry_sdk.is_initialized() or not jobs:
            yield
            return
        name = jobs[0].task if len({new.task for new in jobs}) == 1 else f"{len(jobs)} jobs"
        with sentry_sdk.start_span(op="queue.publish", name=name, origin=_ORIGIN) as span:
            queues = {new.queue for new in jobs}
            _describe(span, queues.pop() if len(queues) == 1 else None, sum(len(new.payload) for new in jobs))
            if len(jobs) == 1:
                span.set_data("messaging.message.id", jobs[0].id)
            else:
                span.set_data("messaging.batch.message_count", len(jobs))
            carried = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
            outgoing.carry({key: text for key, text in carried.items() if text})
            yield

    def execute(self, job: Job[Any]) -> Iterator[None]:
        """Create a transaction for a run."""
        if not sentry_sdk.is_initialized():
            yield
            return
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            _mark(scope, job)
            transaction = sentry_sdk.continue_trace(
                job.trace, op="queue.task", name=job.name, source=TransactionSource.TASK, origin=_ORIGIN
            )
            error: BaseException | None = None
            with sentry_sdk.start_transaction(transaction):
                with sentry_sdk.start_span(op="queue.process", name=job.name, origin=_ORIGIN) as span:
                    _describe_run(span, job)
                    try:
                        yield
                    except (Exception, asyncio.CancelledError) as exc:
                        error = exc  # raised again below, because spans treat every exception as a failure
                    for one in (span, transaction):
                        one.set_status(_status(error))
                if error is not None and not isinstance(error, JobSignal):
                    self._keep(job, scope)
            if error is not None:
                raise error

    def failed(self, job: Job[Any], error: BaseException, final: bool) -> None:
        """Report the error of a failed run, with the scope of that run."""
        kept = self._scopes.pop(job.run_id, None)
        if not sentry_sdk.is_initialized() or (not final and not self._retries):
            return
        isolation, current = kept if kept is not None else (sentry_sdk.Scope(), sentry_sdk.Scope())
        with use_isolation_scope(isolation), use_scope(current):
            if kept is None:  # it failed before its handler was called
                _mark(isolation, job)
                sentry_sdk.continue_trace(job.trace)
            isolation.set_tag("windlass.final", final)
            event, hint = event_from_exception(
                error,
                client_options=sentry_sdk.get_client().options,
                mechanism={"type": _SYSTEM, "handled": not final},
            )
            event["transaction"] = job.name
            sentry_sdk.capture_event(event, hint)

    def _keep(self, job: Job[Any], scope: Scope) -> None:
        """Keep the scopes of a run that raised until its outcome is known."""
        self._scopes[job.run_id] = (scope, sentry_sdk.get_current_scope())
        while len(self._scopes) > _MOST_SCOPES:
            del self._scopes[next(iter(self._scopes))]


def _status(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    return "aborted" if isinstance(error, (JobSignal, asyncio.CancelledError)) else "internal_error"


def _mark(scope: Scope, job: Job[Any]) -> None:
    """Set the tags and the context of a run."""
    facts = {
        "task": job.name,
        "queue": job.queue_name,
        "job_id": job.id,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "deliveries": job.deliveries,
        "worker": job.worker_id,
    }
    for name in ("task", "queue", "job_id", "attempt"):
        scope.set_tag(f"windlass.{name}", facts[name])
    scope.set_context(_SYSTEM, facts)
    scope.set_transaction_name(job.name, source=TransactionSource.TASK)


def _describe(span: Span, queue: str | None, size: int) -> None:
    span.set_data("messaging.system", _SYSTEM)
    span.set_data("messaging.message.body.size", size)
    if queue is not None:
        span.set_data("messaging.destination.name", queue)


def _describe_run(span: Span, job: Job[Any]) -> None:
    record = job.record
    _describe(span, record.queue, len(record.payload))
    span.set_data("messaging.message.id", record.id)
    span.set_data("messaging.message.retry.count", record.attempts)
    if record.started_ms is not None:
        span.set_data("messaging.message.receive.latency", max(record.started_ms - record.ready_ms, 0))
