"""Spans of the real OpenTelemetry SDK: the conventions' names, and one trace across two processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.trace import SpanKind

from tests.cli.support import WorkerProcess
from windlass import Windlass, Worker, chain
from windlass.telemetry import OpenTelemetry

SHOP = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from windlass import Windlass
from windlass.telemetry import OpenTelemetry

provider = TracerProvider()
spans = open("spans.txt", "w")
exporter = ConsoleSpanExporter(out=spans, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
app = Windlass()
app.use(OpenTelemetry(tracer_provider=provider))

@app.task(queue="orders", name="charge")
def charge(order: int) -> str:
    return f"charged {order}"
"""


class Spans:
    """A provider whose spans stay here."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_spans_are_named_as_the_conventions_for_messaging_say(spans: Spans) -> None:
    async with Windlass("memory://conventions") as app:
        app.use(OpenTelemetry(tracer_provider=spans.provider))

        @app.task(queue="orders", name="charge", max_attempts=1)
        async def charge(order: int) -> None:
            raise ValueError("no price")

        job = await charge.enqueue(7)
        await Worker("orders", url_or_app=app, id="worker-1").drain()

    (send,), (process,) = spans.of(SpanKind.PRODUCER), spans.of(SpanKind.CONSUMER)
    assert (send.name, process.name) == ("send orders", "process orders")
    for span, operation in ((send, "send"), (process, "process")):
        found = facts(span)
        assert found[names.MESSAGING_SYSTEM] == "windlass"
        assert found[names.MESSAGING_OPERATION_NAME] == found[names.MESSAGING_OPERATION_TYPE] == operation
        assert found[names.MESSAGING_DESTINATION_NAME] == "orders"
        assert found[names.MESSAGING_MESSAGE_ID] == job.id
        assert found[names.MESSAGING_MESSAGE_BODY_SIZE] == len(job.record.payload)
    assert facts(process)[names.MESSAGING_CLIENT_ID] == "worker-1"
    assert facts(process)["error.type"] == "ValueError"
    assert process.parent is not None
    assert [link.context.span_id for link in process.links] == [process.parent.span_id]
    assert process.parent.span_id == send.context.span_id


async def test_a_bulk_and_a_flow_over_queues_are_one_span_each(spans: Spans) -> None:
    async with Windlass("memory://flows-traced") as app:
        app.use(OpenTelemetry(tracer_provider=spans.provider))

        @app.task(queue="orders", name="charge")
        async def charge(order: int) -> None: ...

        @app.task(queue="ship", name="ship")
        async def ship() -> None: ...

        await charge.map([1, 2, 3])
        await chain(charge.s(4), ship.s()).enqueue()
        await app.queue("orders").obliterate(force=True)
        await app.queue("ship").obliterate(force=True)

    bulk, flow = spans.of(SpanKind.PRODUCER)
    assert (bulk.name, facts(bulk)[names.MESSAGING_BATCH_MESSAGE_COUNT]) == ("send orders", 3)
    assert (flow.name, facts(flow)[names.MESSAGING_BATCH_MESSAGE_COUNT]) == ("send", 2)
    assert names.MESSAGING_DESTINATION_NAME not in facts(flow)


async def test_a_run_without_a_sender_that_is_traced_has_no_link(spans: Spans) -> None:
    async with Windlass("memory://untraced") as app:

        @app.task(queue="orders", name="charge")
        async def charge() -> None: ...

        await charge.enqueue()
        app.use(OpenTelemetry(tracer_provider=spans.provider))
        await Worker("orders", url_or_app=app).drain()
    (process,) = spans.of(SpanKind.CONSUMER)
    assert (process.parent, list(process.links)) == (None, [])


async def test_a_worker_process_goes_on_with_the_trace_of_the_producer(spans: Spans, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    (tmp_path / "shop.py").write_text(SHOP)
    worker = WorkerProcess(tmp_path, url, "shop:app")
    try:
        async with Windlass(url) as app:
            app.use(OpenTelemetry(tracer_provider=spans.provider))
            with spans.provider.get_tracer("web").start_as_current_span("POST /orders") as request:
                job = await app.queue("orders").add("charge", {"order": 7})
            assert await job.result(timeout=40) == "charged 7"
        worker.process.terminate()
        worker.ends()
    finally:
        worker.clean_up()
    (run,) = [json.loads(line) for line in (tmp_path / "spans.txt").read_text().splitlines()]
    (send,) = spans.of(SpanKind.PRODUCER)
    assert run["name"] == "process orders"
    assert run["context"]["trace_id"] == f"0x{request.get_span_context().trace_id:032x}"
    assert run["parent_id"] == f"0x{send.context.span_id:016x}"
