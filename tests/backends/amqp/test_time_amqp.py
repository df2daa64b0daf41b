"""Jobs for later: they start in order and in time, however little the streams keep."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pika
import pytest

from tests.backends.amqp.servers import broker_url, make_harness
from tests.faults.kit import until
from windlass import Job, JobState, Windlass, Worker
from windlass.backend import requests as rq
from windlass.backends.amqp.names import Names
from windlass.core.ids import new_id
from windlass.core.outcome import Outcome
from windlass_conformance.harness import settlement

pytestmark = pytest.mark.service("rabbitmq")
backend_name = "amqp"

COUNT = 5_000
SPAN_MS = 60_000
STEP_MS = 500


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.feature("B3", "N3")
async def test_5000_jobs_scheduled_over_a_minute_start_in_order_and_in_time() -> None:
    """Time is driven: whoever looks twice a second finds all that is due, and nothing else."""
    async with make_harness() as harness:
        due = {f"j{n:04}": harness.now_ms + 1 + n * SPAN_MS // COUNT for n in range(COUNT)}
        added = list(due)
        random.Random(4).shuffle(added)
        for start in range(0, COUNT, 1_000):
            jobs = [harness.new(name, run_at_ms=due[name]) for name in added[start : start + 1_000]]
            assert {one.state for one in await harness.do(rq.Add(jobs=jobs))} == {JobState.SCHEDULED}
        begun: list[tuple[str, int]] = []
        for _ in range(SPAN_MS // STEP_MS + 1):
            harness.pass_ms(STEP_MS)
            found = await harness.claim(200)
            begun += [(job.id, harness.now_ms) for job in found]
            assert all(due[job.id] <= harness.now_ms for job in found)
            if found:
                await harness.do(rq.Settle(items=[settlement(job, Outcome.COMPLETE) for job in found]))
        assert [name for name, _ in begun] == list(due)
        late = sorted(at_ms - due[name] for name, at_ms in begun)
        assert late[len(late) * 99 // 100] < 1_000


def short_lived(names: Names) -> None:
    """Declare streams that keep next to nothing, before a client of ours would with the usual retention."""
    connection = pika.BlockingConnection(pika.URLParameters(broker_url()))
    channel = connection.channel()
    for stream in (names.log, names.scheduled_jobs):
        arguments = {
            "x-queue-type": "stream",
            "x-max-length-bytes": 20_000,
            "x-stream-max-segment-size-bytes": 10_000,
        }
        channel.queue_declare(stream, durable=True, arguments=arguments)
    connection.close()


def oldest_offset(stream: str) -> int:
    """The offset of the first entry that a stream still has."""
    connection = pika.BlockingConnection(pika.URLParameters(broker_url()))
    try:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        _, properties, _ = next(channel.consume(stream, arguments={"x-stream-offset": "first"}))
        return int(properties.headers["x-stream-offset"])
    finally:
        connection.close()


@pytest.mark.feature("B3", "N3")
async def test_what_is_beyond_the_retention_of_the_streams_stays() -> None:
    """A scheduled job, a schedule and a pause outlive the entries of the log that told of them."""
    namespace = f"f{new_id()[-12:]}"
    url, names = f"{broker_url()}?namespace={namespace}", Names(namespace)
    await asyncio.to_thread(short_lived, names)
    async with Windlass(url) as app:
        await app.queue("q").add("later", delay=3, job_id="later")
        await app.queue("q").upsert_job_scheduler("nightly", {"cron": "0 3 * * *"}, {"name": "n"})
        await app.queue("other").pause()
        for n in range(40):  # more than the streams keep, many times over
            await app.queue("q").add("far", {"text": "x" * 3_000}, delay=90_000, job_id=f"far-{n}")
    for stream in (names.log, names.scheduled_jobs):
        assert await asyncio.to_thread(oldest_offset, stream) > 3

    ran: list[str] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(job.id)

    async with Windlass(url) as app:  # another coordinator, which reads what is left
        async with Worker("q", handler, url_or_app=app):
            await until(lambda: ran == ["later"], "the scheduled job ran")
        assert (await app.queue("q").get_job_counts())[JobState.SCHEDULED] == 40
        assert [one.name for one in await app.queue("q").get_job_schedulers()] == ["nightly"]
        assert await app.queue("other").is_paused()
        await app.store.backend.remove_all()  # type: ignore[attr-defined]
