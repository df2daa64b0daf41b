"""One trace from a request through two chained jobs, with the tenant of the request on the way.

Needs ``windlass[otel]`` and ``opentelemetry-sdk``. Prints::

    charged by acme
    shipped by acme
    checkout
      send orders
        process orders
          send parcels
            process parcels
"""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from windlass import Windlass, Worker
from windlass.telemetry import OpenTelemetry

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
tenant: ContextVar[str] = ContextVar("tenant")

app = Windlass(os.environ.get("WINDLASS_URL") or "memory://")
app.use(OpenTelemetry(tracer_provider=provider))
app.carry(tenant)


@app.task(queue="parcels")
def ship(order: int) -> None:
    print(f"shipped by {tenant.get()}")


@app.task(queue="orders")
async def charge(order: int) -> None:
    print(f"charged by {tenant.get()}")
    await ship.enqueue(order)


async def main() -> None:
    async with app:
        with provider.get_tracer("shop").start_as_current_span("checkout"):
            tenant.set("acme")
            await charge.enqueue(7)
        await Worker(["orders", "parcels"], url_or_app=app).drain()
    show(None, 0)


def show(parent: int | None, depth: int) -> None:
    """Print the spans below one as a tree."""
    for span in spans.get_finished_spans():
        if span_parent(span) == parent:
            print("  " * depth + span.name)
            show(span.context.span_id, depth + 1)


def span_parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


if __name__ == "__main__":
    asyncio.run(main())
