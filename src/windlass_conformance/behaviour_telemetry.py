"""Telemetry: traces that start at the producer, metrics, structured logs.

These tests need ``windlass[otel,prometheus]`` and ``opentelemetry-sdk``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from windlass import Job, JobState, Snooze, chain, current_job
from windlass.backend import requests as rq
from windlass.telemetry import JobFields, JobLog, JsonLines
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import QUEUE, Stage

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class Traced:
    """OpenTelemetry in memory, in use by an app."""

    def __init__(self, stage: Stage) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from windlass.telemetry import OpenTelemetry

        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        stage.app.use(OpenTelemetry(tracer_provider=self.provider, meter_provider=self.meters))

    def tracer(self) -> Any:
        """A tracer for code of the application."""
        return self.provider.get_tracer("application")

    def spans(self) -> dict[str, ReadableSpan]:
        """Finished spans by name and task."""
        return {
            f"{span.name} {(span.attributes or {}).get('windlass.task', '')}".strip(): span
            for span in self.exporter.get_finished_spans()
        }

    def counts(self, name: str) -> dict[tuple[str, ...], float]:
        """The points of one metric, by the values of their attributes in the order of their names."""
        found: dict[tuple[str, ...], float] = {}
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        key = tuple(str(value) for _, value in sorted((point.attributes or {}).items()))
                        found[key] = getattr(point, "value", getattr(point, "count", 0))
        return found


@pytest.mark.feature("S1", "S2")
async def test_a_producer_and_two_chained_jobs_are_one_trace(harness: Harness) -> None:
    async with Stage(harness) as stage:
        traced = Traced(stage)

        @stage.app.task(queue="second", name="ship")
        def ship(order: int) -> str:
            return f"shipped {order}"

        @stage.app.task(queue=QUEUE, name="charge")
        async def charge(order: int) -> str:
            job = await ship.enqueue(order)
            return job.id

        await stage.work(queues=[QUEUE, "second"])
        with traced.tracer().start_as_current_span("checkout"):
            job = await charge.enqueue(7)
        shipped = await stage.app.queue("second").get_job(await job.result())
        assert shipped is not None
        assert await shipped.result() == "shipped 7"
        await stage.settle()

        spans = traced.spans()
        chain = ["checkout", "send mail charge", "process mail charge", "send second ship"]
        chain.append("process second ship")
        assert sorted(spans) == sorted(chain)
        assert len({span.context.trace_id for span in spans.values()}) == 1
        for parent, child in itertools.pairwise(chain):
            link = spans[child].parent
            assert link is not None
            assert link.span_id == spans[parent].context.span_id
        facts = spans["process second ship"].attributes or {}
        assert facts["messaging.message.id"] == shipped.id
        assert (facts["messaging.destination.name"], facts["windlass.attempt"]) == ("second", 1)


@needs("flows")
@pytest.mark.feature("S2")
async def test_a_declared_chain_is_one_trace_too(harness: Harness) -> None:
    async with Stage(harness) as stage:
        traced = Traced(stage)

        @stage.app.task(queue=QUEUE, name="charge")
        async def charge(order: int) -> int:
            return order

        @stage.app.task(queue="second", name="ship")
        async def ship() -> str:
            return "shipped"

        await stage.work(queues=[QUEUE, "second"])
        with traced.tracer().start_as_current_span("checkout") as checkout:
            last = await chain(charge.s(7), ship.s()).enqueue()
        assert await last.result() == "shipped"
        await stage.settle()
        spans = traced.spans()
        assert {"process mail charge", "process second ship"} <= set(spans)
        assert {span.context.trace_id for span in spans.values()} == {checkout.get_span_context().trace_id}


@pytest.mark.feature("S1", "S2")
async def test_a_retried_job_stays_in_the_trace_of_its_producer(harness: Harness) -> None:
    async with Stage(harness) as stage:
        traced = Traced(stage)

        async def handler(job: Job[Any]) -> None:
            if job.deliveries == 1:
                raise ValueError("first")
            if job.deliveries == 2:
                raise Snooze

        await stage.work(handler)
        job = await stage.queue.add("n", backoff=0)
        await stage.until_state(job, JobState.COMPLETED)
        # A worker may be through with the job before its producer has the answer: in order of their starts.
        spans = sorted(traced.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        send, failed, snoozed, done = spans
        assert {span.context.trace_id for span in (failed, snoozed, done)} == {send.context.trace_id}
        assert [span.status.is_ok for span in (failed, snoozed, done)] == [False, True, True]
        assert [event.name for event in failed.events] == ["exception"]
        assert (snoozed.attributes or {})["windlass.signal"] == "Snooze"


@pytest.mark.feature("S1")
async def test_a_bulk_add_is_one_span_and_a_timeout_is_told(harness: Harness) -> None:
    async with Stage(harness) as stage:
        traced = Traced(stage)

        async def hang(job: Job[Any]) -> None:
            await asyncio.Event().wait()

        await stage.work(hang)
        jobs = await stage.queue.add_bulk([{"name": "n", "timeout": 5, "max_attempts": 1}] * 2)
        await stage.settle()
        await stage.advance(6)
        for job in jobs:
            await stage.until_state(job, JobState.FAILED)
        send, *runs = traced.exporter.get_finished_spans()
        assert (send.attributes or {})["messaging.batch.message_count"] == 2
        assert [(run.attributes or {})["windlass.stopped"] for run in runs] == ["timeout", "timeout"]
        assert [run.status.is_ok for run in runs] == [False, False]


@pytest.mark.feature("S1")
async def test_a_job_without_a_trace_begins_one_of_its_own(harness: Harness) -> None:
    async with Stage(harness) as stage:
        traced = Traced(stage)

        async def handler(job: Job[Any]) -> None: ...

        with traced.tracer().start_as_current_span("startup"):
            await stage.work(handler)
        new = stage.queue.prepare("n")  # as another program would, without telemetry
        await stage.app.store.execute(rq.Add(jobs=[new]))
        job = await stage.queue.get_job(new.id)
        assert job is not None
        await stage.until_state(job, JobState.COMPLETED)
        spans = traced.spans()
        assert sorted(spans) == [f"process {QUEUE} n", "startup"]
        assert spans[f"process {QUEUE} n"].parent is None


@pytest.mark.feature("Q8", "Q5")
async def test_opentelemetry_counts_jobs_by_outcome(harness: Harness) -> None:
    async with Stage(harness) as stage:
        traced = Traced(stage)

        async def handler(job: Job[Any]) -> None:
            if job.name == "bad":
                raise ValueError("bad")

        await stage.work(handler)
        for name in ("good", "good", "bad"):
            job = await stage.queue.add(name, max_attempts=1)
            await stage.until_state(job, JobState.FAILED if name == "bad" else JobState.COMPLETED)
        assert traced.counts("windlass.jobs.enqueued") == {(QUEUE, "good"): 2, (QUEUE, "bad"): 1}
        assert traced.counts("windlass.jobs.ended") == {
            ("completed", QUEUE, "good"): 2,
            ("failed", QUEUE, "bad"): 1,
        }
        assert traced.counts("windlass.jobs.active") == {(QUEUE, "good"): 0, (QUEUE, "bad"): 0}
        assert traced.counts("windlass.job.wait") == {(QUEUE, "good"): 2, (QUEUE, "bad"): 1}


@pytest.mark.feature("Q8", "Q5")
async def test_prometheus_reads_counts_durations_and_what_queues_hold(harness: Harness) -> None:
    from windlass.telemetry import PrometheusMetrics

    async with Stage(harness) as stage:
        metrics = PrometheusMetrics()
        stage.app.use(metrics)

        async def handler(job: Job[Any]) -> None:
            await stage.clock.wait(asyncio.Event(), 2_000)

        await stage.work(handler)
        job = await stage.queue.add("slow")
        await stage.queue.add("later", delay=600)
        await stage.settle()
        await stage.advance(3)
        await stage.until_state(job, JobState.COMPLETED)
        other = stage.app.queue("other")
        await other.add("waits", job_id="one")
        await other.add("waits", job_id="one")  # answered by the first
        await stage.advance(4)
        lines = (await metrics.text(stage.app)).decode().splitlines()
        for line in (
            f'windlass_jobs_enqueued_total{{queue="{QUEUE}",task="slow"}} 1.0',
            'windlass_jobs_enqueued_total{queue="other",task="waits"} 1.0',
            f'windlass_jobs_ended_total{{outcome="completed",queue="{QUEUE}",task="slow"}} 1.0',
            f'windlass_jobs_active{{queue="{QUEUE}",task="slow"}} 0.0',
            f'windlass_job_duration_seconds_sum{{queue="{QUEUE}",task="slow"}} 2.0',
            f'windlass_job_wait_seconds_count{{queue="{QUEUE}",task="slow"}} 1.0',
            f'windlass_queue_jobs{{queue="{QUEUE}",state="completed"}} 1.0',
            f'windlass_queue_jobs{{queue="{QUEUE}",state="scheduled"}} 1.0',
            'windlass_queue_latency_seconds{queue="other"} 4.0',
        ):
            assert line in lines


class Lines(logging.Handler):
    """Keeps JSON lines as objects."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.addFilter(JobFields())
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))


@pytest.mark.feature("S3")
async def test_log_lines_name_their_job_attempt_and_elapsed_time(harness: Harness) -> None:
    async with Stage(harness) as stage:
        logger = logging.getLogger(f"conformance.{harness.namespace}")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        lines = Lines()
        logger.addHandler(lines)
        stage.app.use(JobLog(logger))

        async def handler(job: Job[Any]) -> None:
            logger.info("working on %s", job.data["item"])
            await stage.clock.wait(asyncio.Event(), 1_500)
            if current_job().attempt == 1:
                raise ValueError("first")

        await stage.work(handler)
        job = await stage.queue.add("n", {"item": "x"}, backoff=0)
        await stage.settle()
        await stage.advance(2)
        await stage.settle()
        await stage.advance(2)
        await stage.until_state(job, JobState.COMPLETED)
        facts = [
            (line["message"], line["attempt"], line.get("elapsed_ms"), line.get("error_class"))
            for line in lines.found
        ]
        assert facts == [
            ("start", 1, None, None),
            ("working on x", 1, None, None),
            ("retrying", 1, 1_500, "ValueError"),
            ("start", 2, None, None),
            ("working on x", 2, None, None),
            ("completed", 2, 1_500, None),
        ]
        assert {(line["job_id"], line["task"], line["queue"]) for line in lines.found} == {
            (job.id, "n", QUEUE)
        }
