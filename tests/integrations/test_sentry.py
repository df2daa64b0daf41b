"""Errors and spans of real ``sentry_sdk``, received by a transport in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from windlass import Retry, Snooze, Windlass, Worker, current_job
from windlass.telemetry import Sentry

log = logging.getLogger("shop")


class Received:
    """What the SDK sent."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") != "transaction"]

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") == "transaction"]

    def spans(self, op: str) -> list[dict[str, Any]]:
        return [span for item in self.transactions for span in item["spans"] if span["op"] == op]


@pytest.fixture
def received() -> Iterator[Received]:
    """A client of the SDK whose envelopes stay here."""
    found = Received()

    class Collect(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            found.items += [item.payload.json or {} for item in envelope.items]

    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=Collect,
        traces_sample_rate=1.0,
        default_integrations=False,
        integrations=[LoggingIntegration()],
        auto_session_tracking=False,
        enable_backpressure_handling=False,
    )
    yield found
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
async def app() -> Any:
    async with Windlass("memory://sentry-tests", defaults={"backoff": 0}) as made:
        yield made
        await made.queue("pay").obliterate(force=True)


async def work(app: Windlass) -> None:
    await Worker("pay", url_or_app=app).drain()


async def test_a_failed_run_is_an_event_with_its_job_and_its_breadcrumbs(
    app: Windlass, received: Received
) -> None:
    app.use(Sentry())

    @app.task(queue="pay", name="charge", max_attempts=2)
    def charge(order: int) -> None:
        log.warning("asking the bank about %d", order)
        raise ValueError(f"order {order} has no price")

    job = await charge.enqueue(7)
    await work(app)

    first, second = received.errors
    (raised,) = second["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("ValueError", "order 7 has no price")
    assert raised["mechanism"] == {"type": "windlass", "handled": False}
    assert raised["stacktrace"]["frames"][-1]["function"] == "charge"
    tags = {key: value for key, value in second["tags"].items() if key.startswith("windlass.")}
    assert tags == {
        "windlass.task": "charge",
        "windlass.queue": "pay",
        "windlass.job_id": job.id,
        "windlass.attempt": 2,
        "windlass.final": True,
    }
    assert (first["tags"]["windlass.attempt"], first["tags"]["windlass.final"]) == (1, False)
    assert (second["transaction"], second["contexts"]["windlass"]["max_attempts"]) == ("charge", 2)
    crumbs = [crumb["message"] for crumb in second["breadcrumbs"]["values"]]
    assert crumbs.count("asking the bank about 7") == 1, "those of its own run, once"
    assert "order 7" not in str(second["contexts"]["windlass"])


async def test_only_final_errors_when_retries_are_left_out(app: Windlass, received: Received) -> None:
    app.use(Sentry(retries=False))

    @app.task(queue="pay", name="charge", max_attempts=3)
    async def charge() -> None:
        raise ValueError("no")

    await charge.enqueue()
    await work(app)
    assert [event["tags"]["windlass.attempt"] for event in received.errors] == [3]


async def test_signals_are_no_errors_and_success_sends_none(app: Windlass, received: Received) -> None:
    app.use(Sentry())

    @app.task(queue="pay", name="charge")
    async def charge() -> str:
        job = current_job()
        if job.deliveries == 1:
            raise Snooze
        return "done"

    await charge.enqueue()
    await work(app)
    assert received.errors == []
    assert [item["contexts"]["trace"]["status"] for item in received.transactions] == ["aborted", "ok"]


async def test_a_retry_by_signal_is_reported_as_the_failure_that_it_is(
    app: Windlass, received: Received
) -> None:
    app.use(Sentry())

    @app.task(queue="pay", name="charge", max_attempts=2)
    async def charge() -> None:
        raise Retry(0)

    await charge.enqueue()
    await work(app)
    assert [event["tags"]["windlass.final"] for event in received.errors] == [False, True]


async def test_a_timeout_and_a_payload_that_cannot_be_read_are_reported(
    app: Windlass, received: Received
) -> None:
    app.use(Sentry())

    @app.task(queue="pay", name="slow", max_attempts=1, timeout=0.05)
    async def slow(order: int) -> None:
        await asyncio.Event().wait()

    await slow.enqueue(1)
    await app.queue("pay").add("slow", {"order": "not a number"})
    await work(app)
    found = {event["exception"]["values"][-1]["type"]: event["tags"] for event in received.errors}
    assert found.keys() == {"JobTimeoutError", "ArgumentError"}
    assert {tags["windlass.task"] for tags in found.values()} == {"slow"}


async def test_the_queues_page_gets_publish_and_process_spans_of_one_trace(
    app: Windlass, received: Received
) -> None:
    app.use(Sentry())

    @app.task(queue="pay", name="charge", max_attempts=2)
    async def charge(order: int) -> None:
        if current_job().attempt == 1:
            raise ValueError("again")

    with sentry_sdk.start_transaction(op="http.server", name="POST /orders"):
        job = await charge.enqueue(7)
    await work(app)

    (publish,) = received.spans("queue.publish")
    assert publish["data"]["messaging.message.id"] == job.id
    assert publish["data"]["messaging.destination.name"] == "pay"
    assert publish["data"]["messaging.message.body.size"] == len(job.record.payload)
    first, second = received.spans("queue.process")
    assert [span["data"]["messaging.message.retry.count"] for span in (first, second)] == [0, 1]
    assert second["data"]["messaging.message.id"] == job.id
    assert second["data"]["messaging.system"] == "windlass"
    assert second["data"]["messaging.message.receive.latency"] >= 0
    assert {item["contexts"]["trace"]["trace_id"] for item in received.items} == {publish["trace_id"]}
    run = received.transactions[-1]
    assert (run["transaction"], run["contexts"]["trace"]["parent_span_id"]) == ("charge", publish["span_id"])


async def test_a_bulk_is_one_span_and_jobs_do_not_share_what_they_note(
    app: Windlass, received: Received
) -> None:
    app.use(Sentry())

    @app.task(queue="pay", name="charge", max_attempts=1)
    async def charge(order: int) -> None:
        sentry_sdk.set_tag("order", order)
        raise ValueError("no")

    with sentry_sdk.start_transaction(op="http.server", name="POST /orders"):
        await charge.map([1, 2, 3])
    await work(app)
    (publish,) = received.spans("queue.publish")
    assert publish["data"]["messaging.batch.message_count"] == 3
    assert sorted(event["tags"]["order"] for event in received.errors) == [1, 2, 3]
    assert "order" not in sentry_sdk.get_isolation_scope()._tags


async def test_without_a_client_nothing_is_carried_and_nothing_is_kept(app: Windlass) -> None:
    sentry = Sentry()
    app.use(sentry)

    @app.task(queue="pay", name="charge", max_attempts=1)
    async def charge() -> None:
        raise ValueError("no")

    job = await charge.enqueue()
    await work(app)
    assert job.trace == {}
    assert sentry._scopes == {}
