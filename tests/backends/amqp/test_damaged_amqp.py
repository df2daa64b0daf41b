"""Entries that cannot be read keep no coordinator from taking over; they go to the dead jobs, logged once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.backends.amqp.servers import make_harness
from windlass import JobState, Windlass
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.clock import SYSTEM_CLOCK
from windlass_conformance.damage import Damaged
from windlass_conformance.harness import Harness

backend_name = "amqp"
pytestmark = pytest.mark.service("rabbitmq")
WHERE = ["junk in kept", "nothing in kept", "another shape in kept", "junk in log", "junk in mark"]


def app_on(harness: Harness) -> Windlass:
    app = Windlass("memory://")
    app.store = Store(harness.connect(harness.namespace), SYSTEM_CLOCK)
    return app


async def buried(app: Windlass, damaged: Damaged) -> bytes:
    """The bytes of an entry, once it is among the dead jobs."""
    assert damaged.ref is not None
    async with asyncio.timeout(20):
        while True:
            job = await app.queue(damaged.ref.queue).get_job(damaged.ref.id)
            if job is not None and (job.state, job.record.reason) == (JobState.FAILED, "bad_record"):
                return job.record.payload
            await asyncio.sleep(0.02)


@pytest.mark.feature("C17", "J24")
@pytest.mark.parametrize("kind", WHERE)
async def test_a_coordinator_takes_over_with_entries_that_cannot_be_read(kind: str) -> None:
    async with make_harness() as harness:
        async with app_on(harness) as app:
            kept = await app.queue("mail").add("n", delay=3_600, job_id="later")
            assert kept.state is JobState.SCHEDULED
        await harness.backend.close()  # nobody coordinates: the next one takes over
        damaged = await asyncio.to_thread(harness.damage, "later", kind, "mail")
        await harness.reopen()
        async with app_on(harness) as app:
            async with asyncio.timeout(20):
                job = await app.queue("mail").get_job("later")
            assert job is not None and job.state is JobState.SCHEDULED
            if damaged.ref is not None:
                assert (
                    await buried(app, damaged) == (b"" if "nothing" in kind else b"junk later")
                    or "shape" in kind
                )
                dead = await app.queue("default").get_dead_letter_jobs()
                assert [one.id for one in dead] == [damaged.ref.id]
                await app.queue("default").remove(damaged.ref.id)
                assert await app.queue("default").get_dead_letter_jobs() == []


@pytest.mark.feature("C17")
@pytest.mark.parametrize("stream", ["scheduled_jobs", "retries"])
async def test_malformed_entries_of_the_streams_are_listed_counted_and_logged_once(
    stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_harness() as harness, app_on(harness) as app:
        await app.queue("mail").add("n")
        with caplog.at_level(logging.ERROR, "windlass.damage"):
            damaged = await asyncio.to_thread(harness.damage, "x", f"another shape in {stream}", "mail")
            assert b'"jid":5' in await buried(app, damaged)
        assert damaged.ref is not None
        logged = [line for line in caplog.messages if damaged.ref.id in line]
        assert len(logged) == 1 and "an entry of type" in logged[0]
        totals = await app.store.execute(rq.ReadCounters(queue="default"))
        assert [(row.outcome, row.total) for row in totals] == [("failed", 1)]
