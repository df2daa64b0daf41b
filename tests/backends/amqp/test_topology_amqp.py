"""What stands on the broker: names and arguments that every client knows, bands of priority, figures."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from functools import partial
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.backends.amqp.servers import broker_url, fresh_url
from tests.faults.kit import until
from windlass import Job, JobState, Queue, Windlass, Worker
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend
from windlass.backends.amqp.messages import band
from windlass.core import probe
from windlass.core.ids import new_id
from windlass.core.job import NewJob
from windlass.errors import StorageError, UnsupportedByBackendError

pytestmark = pytest.mark.service("rabbitmq")
backend_name = "amqp"

DAY = 86_400
SEGMENT = {"x-stream-max-segment-size-bytes": 8_000_000}
STREAMS = {
    "scheduled_jobs": 30 * DAY,
    "retries": 30 * DAY,
    "dead_jobs": 180 * DAY,
    "heartbeats": 300,
    "job_metrics": 5 * 365 * DAY,
}


def queue_name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def on_channel(step: Any) -> Any:
    connection = pika.BlockingConnection(pika.URLParameters(broker_url()))
    try:
        return step(connection.channel())
    finally:
        connection.close()


@pytest.mark.feature("N1", "N2", "N3")
async def test_everything_is_declared_with_the_arguments_that_everybody_knows() -> None:
    name = queue_name()
    async with Windlass(broker_url()) as app:
        await app.queue(name).add("n")

    def declare_again(channel: Any) -> None:
        """The broker refuses a declaration that differs in kind or arguments."""
        channel.exchange_declare("jobs.direct", "direct", durable=True)
        channel.exchange_declare("jobs.dead", "fanout", durable=True)
        # A program, or an earlier release, that leaves out the type means the same queue.
        channel.queue_declare(f"queue.{name}", durable=True, arguments={"x-max-priority": 10})
        typed = {"x-max-priority": 10, "x-queue-type": "classic"}
        channel.queue_declare(f"queue.{name}", durable=True, arguments=typed)
        for stream, seconds in STREAMS.items():
            arguments = {"x-queue-type": "stream", "x-max-age": f"{seconds}s", **SEGMENT}
            channel.queue_declare(stream, durable=True, arguments=arguments)
        channel.queue_delete(f"queue.{name}")

    await asyncio.to_thread(on_channel, declare_again)

    def declare_otherwise(channel: Any) -> None:
        channel.queue_declare("retries", durable=True, arguments={"x-queue-type": "stream"})

    with pytest.raises(ChannelClosedByBroker):
        await asyncio.to_thread(on_channel, declare_otherwise)


@pytest.mark.feature("N2", "N6")
async def test_a_queue_that_somebody_declared_otherwise_is_used_as_it_is() -> None:
    name = queue_name()
    await asyncio.to_thread(on_channel, lambda channel: channel.queue_declare(f"queue.{name}", durable=True))
    async with Windlass(broker_url()) as app:
        ran: list[str] = []

        async def handler(job: Job[Any]) -> None:
            ran.append(job.name)

        async with Worker(name, handler, url_or_app=app):
            await (await app.queue(name).add("n")).result(timeout=30)
        assert ran == ["n"]


@pytest.mark.feature("N2")
async def test_queues_that_an_earlier_release_declared_without_a_type_are_declared_alike(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, namespace = queue_name(), f"old{uuid.uuid4().hex[:8]}"

    def declare_as_before(channel: Any) -> None:
        channel.queue_declare(f"{namespace}.windlass.kept", durable=True)
        channel.queue_declare(f"{namespace}.windlass.mark", durable=True, arguments={"x-max-length": 1})
        arguments = {"x-max-priority": 10}
        channel.queue_declare(f"{namespace}.queue.{name}", durable=True, arguments=arguments)

    await asyncio.to_thread(on_channel, declare_as_before)
    async with Windlass(f"{broker_url()}?namespace={namespace}") as app:
        await app.queue(name).add("n")
        assert (await app.queue(name).get_job_counts())[JobState.WAITING] == 1
        await app.store.backend.remove_all()  # type: ignore[attr-defined]
    assert "exists with other arguments" not in caplog.text


async def delete_all(names: list[str]) -> None:
    """Delete queues of jobs, on several connections: the broker takes its time for each."""

    def delete(some: list[str]) -> None:
        on_channel(lambda channel: [channel.queue_delete(f"queue.{name}") for name in some])

    await asyncio.gather(*(asyncio.to_thread(delete, names[at::8]) for at in range(8)))


@pytest.mark.timeout(180)
@pytest.mark.feature("N1", "N6")
async def test_what_is_published_right_after_a_worker_is_ready_runs_on_each_of_a_thousand_new_queues() -> (
    None
):
    names = [queue_name() for _ in range(1_000)]
    connection = await asyncio.to_thread(pika.BlockingConnection, pika.URLParameters(broker_url()))
    channel = await asyncio.to_thread(connection.channel)
    await asyncio.to_thread(channel.confirm_delivery)
    ran: list[str] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(job.queue.name)

    def publish_to_all() -> None:
        """Each message comes back, as an error, when no queue takes it."""
        for name in names:
            body = json.dumps({"jid": uuid.uuid4().hex, "class": "n", "args": [], "queue": name}).encode()
            channel.basic_publish("jobs.direct", name, body, mandatory=True)
        connection.close()

    async with Windlass(broker_url()) as app:
        worker = Worker(names, handler, url_or_app=app)
        await worker.wait_until_ready()
        await asyncio.to_thread(publish_to_all)
        await until(lambda: len(ran) >= len(names), "all ran", timeout=60)
        await worker.close()
    assert sorted(ran) == sorted(names)
    await delete_all(names)


@pytest.mark.feature("N2", "N6")
async def test_one_queue_declared_otherwise_does_not_keep_the_others_from_being_declared() -> None:
    names = [queue_name() for _ in range(20)]
    theirs = names[9], names[16]  # on one of the channels beside the first, and on the first

    def declare_theirs(channel: Any) -> None:
        for name in theirs:
            channel.queue_declare(f"queue.{name}", durable=True)

    await asyncio.to_thread(on_channel, declare_theirs)
    store = open_backend(broker_url())
    assert isinstance(store, AmqpBackend)
    await store.open()
    await store.prepare(names)

    def publish_to_all(channel: Any) -> None:
        channel.confirm_delivery()
        for name in names:
            channel.basic_publish("jobs.direct", name, b"{}", mandatory=True)

    await asyncio.to_thread(on_channel, publish_to_all)
    await store.close()
    await delete_all(names)


@pytest.mark.feature("N2")
async def test_adds_of_one_client_to_a_new_queue_keep_the_order_in_which_they_were_made() -> None:
    store = open_backend(fresh_url())
    assert isinstance(store, AmqpBackend)
    await store.open()
    jobs = [NewJob(queue="new", id=new_id(), task="n", payload=b"{}") for _ in range(20)]
    await asyncio.gather(*(store.execute(rq.Add(jobs=[job])) for job in jobs))
    queues = [rq.ClaimQueue("new", 20, 20)]
    claimed = await store.execute(
        rq.Claim(worker="w", queues=queues, limit=20, claim_id="c", lease_ms=30_000)
    )
    assert [job.id for job in claimed.jobs] == [job.id for job in jobs]
    await store.remove_all()
    await store.close()


@pytest.mark.feature("G3", "N2")
async def test_higher_bands_run_first_whoever_published() -> None:
    name = queue_name()
    order: list[str] = []

    async def handler(job: Job[Any]) -> None:
        order.append(job.name)

    async with Windlass(broker_url()) as app:
        for task, priority in (("plain", 0), ("five", 5), ("critical", 1_000_000), ("high", 100_000)):
            await app.queue(name).add(task, priority=priority)
        body = json.dumps({"jid": uuid.uuid4().hex, "class": "theirs", "args": [], "queue": name}).encode()
        properties = pika.BasicProperties(delivery_mode=2, priority=7)
        await asyncio.to_thread(
            on_channel, lambda channel: channel.basic_publish("jobs.direct", name, body, properties)
        )
        with pytest.raises(UnsupportedByBackendError, match="from 0 on"):
            await app.queue(name).add("low", priority=-1)
        async with Worker(name, handler, url_or_app=app, concurrency=1):
            await until(lambda: len(order) == 5, "all ran")
    assert order == ["critical", "high", "theirs", "five", "plain"]


@pytest.mark.feature("G3")
def test_bands_keep_the_order_of_priorities() -> None:
    assert [band(p) for p in (0, 1, 7, 8, 999, 1_000, 100_000, 999_999, 1_000_000, 2**20 - 1)] == [
        0, 1, 7, 8, 8, 9, 9, 9, 10, 10,
    ]  # fmt: skip


@pytest.mark.feature("N4", "N6")
async def test_workers_report_their_figures_in_the_envelope_that_everybody_reads() -> None:
    name = queue_name()

    def read(channel: Any) -> list[Any]:
        """Everything in ``job_metrics`` about our queue."""
        channel.basic_qos(prefetch_count=100)
        found = []
        arguments = {"x-stream-offset": "first"}
        for method, _, body in channel.consume("job_metrics", arguments=arguments, inactivity_timeout=2):
            if method is None:
                break
            channel.basic_ack(method.delivery_tag)
            told = json.loads(body)
            found += [one for one in told.get("data", [told]) if one["queue"] == name]
        return found

    async def handler(job: Job[Any]) -> None:
        return None

    async with Windlass(broker_url()) as app:
        jobs = await app.queue(name).add_bulk({"name": "n", "data": [n]} for n in range(5))
        async with Worker(name, handler, url_or_app=app):
            for job in jobs:
                await job.result(timeout=30)
    found = await asyncio.to_thread(on_channel, read)
    assert {one["jid"] for one in found} == {job.id for job in jobs}
    assert {(one["type"], one["job_class"], one["status"]) for one in found} == {
        ("job_metric", "n", "success")
    }


def read_stream(channel: Any, stream: str) -> list[Any]:
    """Everything that stands in a stream, as a program in any language reads it."""
    channel.basic_qos(prefetch_count=100)
    found = []
    for method, _, body in channel.consume(
        stream, arguments={"x-stream-offset": "first"}, inactivity_timeout=1
    ):
        if method is None:
            break
        channel.basic_ack(method.delivery_tag)
        found.append(json.loads(body))
    channel.cancel()
    return found


@pytest.mark.feature("N4")
async def test_every_stream_holds_envelopes_of_a_type_a_time_and_data() -> None:
    name, namespace = queue_name(), queue_name()
    began = time.time()

    async def handler(job: Job[Any]) -> None:
        if job.name == "bad":
            raise ValueError("no")

    async with Windlass(f"{broker_url()}?namespace={namespace}") as app:
        queue = app.queue(name)
        jobs = {
            "scheduled_jobs": await queue.add("good", delay=3_600),
            "retries": await queue.add("bad", max_attempts=2, backoff=3_600),
            "dead_jobs": await queue.add("bad", max_attempts=1),
            "job_metrics": await queue.add("good"),
        }
        async with Worker(name, handler, url_or_app=app):
            for job, state in (
                (jobs["retries"], JobState.RETRYING),
                (jobs["dead_jobs"], JobState.FAILED),
                (jobs["job_metrics"], JobState.COMPLETED),
            ):
                await until_state(queue, job, state)
        streams = {
            stream: await asyncio.to_thread(on_channel, partial(read_stream, stream=f"{namespace}.{stream}"))
            for stream in STREAMS
        }
        await app.store.backend.remove_all()  # type: ignore[attr-defined]
    types = {stream: {one["type"] for one in found} for stream, found in streams.items()}
    assert types.pop("job_metrics") <= {"job_metric", "job_metrics"}
    assert types == {
        "scheduled_jobs": {"scheduled_job"},
        "retries": {"retry"},
        "dead_jobs": {"dead_job"},
        "heartbeats": {"heartbeat"},
    }
    for stream, found in streams.items():
        assert all(isinstance(one["timestamp"], float) for one in found)
        assert all(began - 1 <= one["timestamp"] <= time.time() + 1 for one in found)
        told = [part for one in found for part in (one["data"] if stream == "job_metrics" else [one["data"]])]
        if stream in jobs:
            assert jobs[stream].id in {part["jid"] for part in told}
    assert {one["data"]["queues"][0] for one in streams["heartbeats"]} == {name}


async def until_state(queue: Queue, job: Job[Any], state: JobState) -> None:
    """Wait until a job is in ``state``."""
    async with asyncio.timeout(30):
        while True:
            found = await queue.get_job(job.id)
            if found is not None and found.state is state:
                return
            await asyncio.sleep(0.02)


@pytest.mark.feature("N5")
async def test_a_job_in_its_queue_has_the_nine_fields_that_other_programs_read() -> None:
    name = queue_name()
    async with Windlass(broker_url()) as app:
        began = time.time()
        job = await app.queue(name).add("Greet", ["Ada", 3], max_attempts=4, backtrace=15, tags=["red"])

    def take(channel: Any) -> Any:
        _, _, body = channel.basic_get(f"queue.{name}", auto_ack=True)
        channel.queue_delete(f"queue.{name}")
        return json.loads(body)

    told = await asyncio.to_thread(on_channel, take)
    at = told.pop("enqueued_at")
    assert isinstance(at, float) and began - 1 <= at <= time.time() + 1
    assert told == {
        "jid": job.id,
        "class": "Greet",
        "args": ["Ada", 3],
        "queue": name,
        "retry": 3,
        "retry_count": 0,
        "backtrace": 15,
        "tags": ["red"],
    }


@pytest.mark.parametrize("level", [logging.WARNING, logging.DEBUG])
async def test_a_connection_that_is_not_the_coordinator_writes_no_warnings(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level)
    url, points = fresh_url(), probe.Probe()
    before = probe.install(points)
    try:
        async with Windlass(url) as first, Windlass(url) as second:
            await first.queue("q").get_job_counts()
            await second.queue("q").get_job_counts()
            await until(lambda: points.count("amqp.not_elected") >= 2, "one of them tried twice")
    finally:
        probe.install(before)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_worker_goes_on_when_its_queue_was_deleted() -> None:
    """The broker ends its consumer without being asked, and answers no cancel of it."""
    name, done = queue_name(), list[str]()

    async def handler(job: Job[Any]) -> None:
        done.append(job.id)

    async with Windlass(broker_url()) as app, Worker(name, handler, url_or_app=app, poll=0.2):
        await (await app.queue(name).add("first")).result(timeout=30)
        await asyncio.to_thread(on_channel, lambda channel: channel.queue_delete(f"queue.{name}"))

        async def added() -> bool:
            try:
                await app.queue(name).add("second")
            except StorageError:  # no queue takes it: the next add declares the queue again
                return False
            return True

        await until(added, "the queue is there again")
        await until(lambda: len(done) >= 2, "the job ran")


async def test_an_error_says_what_the_broker_refused_not_that_we_hung_up() -> None:
    backend = open_backend(f"{fresh_url()}&open=1")
    assert isinstance(backend, AmqpBackend)
    connection = pika.BlockingConnection(pika.URLParameters(broker_url()))
    try:
        connection.channel().queue_declare(backend.names.heartbeats, exclusive=True)
        with pytest.raises(StorageError, match="RESOURCE_LOCKED"):
            await backend.open()
    finally:
        connection.close()
