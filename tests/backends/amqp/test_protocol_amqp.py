"""Programs that know the protocol but not Windlass are full citizens; nonsense ends in the dead set."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pika
import pytest

from tests.backends.amqp.plain_client import JobClient
from tests.backends.amqp.servers import broker_url
from windlass import Job, JobState, Windlass, Worker
from windlass.core.job import JobRef

pytestmark = pytest.mark.service("rabbitmq")
backend_name = "amqp"


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    """An application in the default namespace, where the names are those that everybody knows."""
    async with Windlass(broker_url()) as app:
        yield app


@pytest.fixture
def queue() -> str:
    """A queue that nobody else uses."""
    return f"q{uuid.uuid4().hex[:12]}"


class Log:
    """A handler that notes what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.jobs: list[Job[Any]] = []

    async def __call__(self, job: Job[Any]) -> Any:
        self.calls.append((job.name, job.data))
        self.jobs.append(job)
        return len(self.calls)

    async def until(self, count: int, timeout: float = 20) -> None:
        async with asyncio.timeout(timeout):
            while len(self.calls) < count:  # noqa: ASYNC110 - other processes call it
                await asyncio.sleep(0.01)


def speak(then: Callable[[Any], Any]) -> Any:
    """Do something on a channel of a plain client."""
    connection = pika.BlockingConnection(pika.URLParameters(broker_url()))
    try:
        return then(connection.channel())
    finally:
        connection.close()


class DeadExchange:
    """Receives the messages of ``jobs.dead``."""

    def __init__(self) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(broker_url()))
        self._channel = self._connection.channel()
        self._queue = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.queue_bind(self._queue, "jobs.dead")

    def find(self, queue: str) -> Any:
        """The first message about a job of ``queue``."""
        for _, _, body in self._channel.consume(self._queue, auto_ack=True, inactivity_timeout=20):
            assert body is not None, "nothing was published"
            told = json.loads(body)
            if told["job"]["queue"] == queue:
                self._connection.close()
                return told
        raise AssertionError("the consumer was cancelled")


async def publish(exchange: str, key: str, body: bytes) -> None:
    properties = pika.BasicProperties(delivery_mode=2)
    await asyncio.to_thread(speak, lambda channel: channel.basic_publish(exchange, key, body, properties))


async def until_state(app: Windlass, queue: str, job_id: str, state: JobState) -> Any:
    """Wait until the store shows ``state``."""
    async with asyncio.timeout(20):
        while True:
            record = await app.store.get(JobRef(queue, job_id))
            if record is not None and record.state is state:
                return record
            await asyncio.sleep(0.02)


@pytest.mark.feature("N5", "N6", "N1", "N2", "A3")
async def test_a_plain_producer_enqueues_for_a_windlass_worker(app: Windlass, queue: str) -> None:
    log = Log()
    async with Worker(queue, log, url_or_app=app):
        await app.queue(queue).count()
        await asyncio.sleep(0)
        client = await asyncio.to_thread(JobClient, broker_url())
        jid = await asyncio.to_thread(client.enqueue, "SendEmailJob", ["user@example.com", "Hello!"], queue)
        await log.until(1)
        record = await until_state(app, queue, jid, JobState.COMPLETED)
        await asyncio.to_thread(client.connection.close)
    assert log.calls == [("SendEmailJob", ["user@example.com", "Hello!"])]
    assert (record.task, record.options.max_attempts, record.attempts) == ("SendEmailJob", 26, 0)


@pytest.mark.feature("B2", "B3", "B4", "N3")
async def test_a_plain_producer_schedules_for_a_windlass_worker(app: Windlass, queue: str) -> None:
    log = Log()
    async with Worker(queue, log, url_or_app=app):
        client = await asyncio.to_thread(JobClient, broker_url())
        due = time.time() + 0.7
        jid = await asyncio.to_thread(client.schedule, "SendReminderJob", [123], due, queue)
        await asyncio.to_thread(client.connection.close)
        await until_state(app, queue, jid, JobState.SCHEDULED)
        await log.until(1)
        record = await until_state(app, queue, jid, JobState.COMPLETED)
    assert log.calls == [("SendReminderJob", [123])]
    assert record.started_ms is not None and record.started_ms >= round(due * 1000)


@pytest.mark.feature("C6", "N6")
async def test_a_retry_entry_of_a_job_that_nobody_knows_runs_when_it_is_due(
    app: Windlass, queue: str
) -> None:
    entry = {
        "type": "retry",
        "jid": uuid.uuid4().hex,
        "retry_at": time.time(),
        "retry_count": 3,
        "failed_at": time.time() - 20,
        "error_message": "Connection timeout",
        "error_class": "TimeoutError",
        "job": {"class": "Import", "args": [1, 2], "queue": queue, "retry": 25, "tenant": "acme"},
    }
    log = Log()
    async with Worker(queue, log, url_or_app=app):
        await publish("", "retries", json.dumps(entry).encode())
        await log.until(1)
        record = await until_state(app, queue, str(entry["jid"]), JobState.COMPLETED)
    assert (log.jobs[0].attempt, record.errors[0].error_class) == (4, "TimeoutError")
    assert json.loads(record.payload)["extra"] == {"tenant": "acme"}


BAD = {
    "no JSON": b"{nonsense",
    "no object": b"[1, 2]",
    "no class": json.dumps({"jid": "x1", "args": []}).encode(),
    "no id": json.dumps({"class": "A", "args": []}).encode(),
    "an id that cannot be one": json.dumps({"jid": "../x", "class": "A", "args": []}).encode(),
    "arguments that are no list": json.dumps({"jid": "x2", "class": "A", "args": "no"}).encode(),
    "a retry that is no number": json.dumps({"jid": "x3", "class": "A", "args": [], "retry": "x"}).encode(),
    "ten megabytes": b'{"jid":"x4","class":"A","args":["' + b"a" * 10_000_000 + b'"]}',
}


@pytest.mark.feature("C17", "N6", "C15")
@pytest.mark.parametrize("what", BAD)
async def test_what_is_no_job_goes_to_the_dead_set_with_its_bytes(
    app: Windlass, queue: str, what: str
) -> None:
    log = Log()
    async with Worker(queue, log, url_or_app=app):
        await app.queue(queue).add("first")
        await log.until(1)  # so the queue is there
        await publish("jobs.direct", queue, BAD[what])
        async with asyncio.timeout(20):
            while not (dead := await app.queue(queue).get_dead_letter_jobs()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await app.queue(queue).add("after")  # nothing is stuck behind it
        await log.until(2)
    record = await app.store.get(JobRef(queue, dead[0].id))
    assert record is not None
    assert (record.reason, record.payload, len(dead)) == ("bad_record", BAD[what], 1)
    assert [name for name, _ in log.calls] == ["first", "after"]


@pytest.mark.feature("C17")
async def test_a_stream_entry_that_is_none_goes_to_the_dead_set(app: Windlass) -> None:
    body = f"{{not json {uuid.uuid4().hex}".encode()
    await app.queue("default").count()
    await publish("", "scheduled_jobs", body)
    async with asyncio.timeout(20):
        while True:
            dead = await app.queue("default").get_dead_letter_jobs()
            records = [await app.store.get(JobRef("default", job.id)) for job in dead]
            if any(record is not None and record.payload == body for record in records):
                return
            await asyncio.sleep(0.02)


@pytest.mark.feature("N6", "N7", "C12", "C15")
async def test_a_plain_worker_runs_jobs_that_windlass_enqueued(app: Windlass, queue: str) -> None:
    job = await app.queue(queue).add("Resize", [7, "large"])
    later = await app.queue(queue).add("Resize", [8], max_attempts=2)

    def work(channel: Any) -> list[Any]:
        """Take two messages; the first works, the second fails and is put into ``retries``."""
        seen = []
        for n in range(2):
            method, _, body = channel.basic_get(f"queue.{queue}")
            told = json.loads(body)
            seen.append(told)
            if n == 0:
                metric = {
                    "type": "job_metric", "timestamp": time.time(), "jid": told["jid"],
                    "job_class": told["class"], "queue": queue, "duration_ms": 5, "status": "success",
                    "worker_identity": "elsewhere:1:test",
                }  # fmt: skip
                channel.basic_publish("", "job_metrics", json.dumps(metric))
            else:
                retry = {
                    "type": "retry", "jid": told["jid"], "retry_at": time.time() + 0.1,
                    "retry_count": told["retry_count"] + 1, "failed_at": time.time(),
                    "error_message": "no", "error_class": "Oops", "job": told,
                }  # fmt: skip
                channel.basic_publish("", "retries", json.dumps(retry))
            channel.basic_ack(method.delivery_tag)
        return seen

    seen = await asyncio.to_thread(speak, work)
    assert [(told["jid"], told["class"], told["args"]) for told in seen] == [
        (job.id, "Resize", [7, "large"]),
        (later.id, "Resize", [8]),
    ]
    assert (seen[0]["retry"], seen[1]["retry"], seen[0]["retry_count"]) == (2, 1, 0)
    await until_state(app, queue, job.id, JobState.COMPLETED)
    log = Log()
    async with Worker(queue, log, url_or_app=app):
        await log.until(1)
        record = await until_state(app, queue, later.id, JobState.COMPLETED)
    assert (record.attempts, record.errors[0].error_class, log.jobs[0].attempt) == (1, "Oops", 2)


@pytest.mark.feature("C12", "C14", "C15")
async def test_a_dead_job_is_published_to_the_dead_exchange(app: Windlass, queue: str) -> None:
    dead = await asyncio.to_thread(DeadExchange)

    async def fail(job: Job[Any]) -> None:
        raise ValueError("no luck")

    async with Worker(queue, fail, url_or_app=app):
        job = await app.queue(queue).add("Import", [12345], max_attempts=1)
        await until_state(app, queue, job.id, JobState.FAILED)
    told = await asyncio.to_thread(dead.find, queue)
    assert (told["type"], told["jid"], told["error_class"], told["error_message"], told["retry_count"]) == (
        "dead_job", job.id, "ValueError", "no luck", 0,
    )  # fmt: skip
    assert (told["job"]["class"], told["job"]["args"]) == ("Import", [12345])
    again = await app.queue(queue).get_job(job.id)
    assert again is not None
    log = Log()
    await again.retry()
    async with Worker(queue, log, url_or_app=app):
        await log.until(1)
    assert log.calls == [("Import", [12345])]


@pytest.mark.feature("N6", "O13")
async def test_workers_elsewhere_are_listed_by_their_heartbeats(app: Windlass, queue: str) -> None:
    await app.queue(queue).count()
    identity = f"worker-01:12345:{uuid.uuid4().hex[:6]}"
    beat = {
        "type": "heartbeat", "identity": identity, "hostname": "worker-01", "pid": 12345, "tag": "production",
        "concurrency": 10, "busy": 3, "beat": time.time(), "rss_kb": 204800, "queues": [queue],
        "version": "1.0.0",
    }  # fmt: skip
    await publish("", "heartbeats", json.dumps(beat).encode())
    async with asyncio.timeout(20):
        while not (found := [w for w in await app.queue(queue).get_workers() if w.id == identity]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (found[0].busy, found[0].concurrency, found[0].rss_kb) == (3, 10, 204800)


@pytest.mark.feature("C17")
async def test_the_dead_stream_has_the_raw_bytes(app: Windlass, queue: str) -> None:
    dead = await asyncio.to_thread(DeadExchange)
    async with Worker(queue, Log(), url_or_app=app):
        job = await app.queue(queue).add("first")
        await job.result(timeout=20)
        await publish("jobs.direct", queue, b"\xff\xfe bytes")
        told = await asyncio.to_thread(dead.find, queue)
    assert base64.b64decode(told["raw"]) == b"\xff\xfe bytes"
