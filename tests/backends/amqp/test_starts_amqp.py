"""Starts in the log: each is there before its handler runs, with the end of another job or alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from tests.backends.amqp.servers import fresh_url
from tests.faults.kit import until
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend, verbs
from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.io_future import spawn
from windlass.backends.amqp.start_log import StartLog
from windlass.core import probe
from windlass.core.ids import new_id
from windlass.core.job import JobRef, NewJob
from windlass.core.outcome import Outcome, Settled, Settlement
from windlass.core.states import JobState

pytestmark = pytest.mark.service("rabbitmq")
QUEUE = "q"


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The facts of starts and ends that were put into the log."""
    logged: list[Any] = []
    append = AmqpClient.append_fact

    def noted(self: AmqpClient, fact: rq.Request[Any]) -> Any:
        logged.append(fact)
        return append(self, fact)

    monkeypatch.setattr(AmqpClient, "append_fact", noted)
    yield logged


def _claim() -> rq.Claim:
    queues = [rq.ClaimQueue(QUEUE, 1, 1)]
    return rq.Claim(worker="w", queues=queues, limit=1, claim_id=new_id(), lease_ms=30_000)


async def test_a_start_is_logged_with_the_end_of_the_job_before(facts: list[Any]) -> None:
    """Both came to the connection at the same time: one entry of the log has them, and both count."""
    store = open_backend(fresh_url())
    assert isinstance(store, AmqpBackend)
    await store.open()
    ids = [new_id() for _ in range(2)]
    await store.execute(rq.Add(jobs=[NewJob(queue=QUEUE, id=id, task="n", payload=b"{}") for id in ids]))
    (first,) = (await store.execute(_claim())).jobs
    end = Settlement(queue=QUEUE, id=first.id, token=first.token or "", outcome=Outcome.COMPLETE)

    async def claim_and_settle(client: Any) -> list[Any]:
        claimed = spawn(client.consumer.claim(_claim(), 0))
        settled = spawn(client.consumer.settle(rq.Settle(items=[end]), 0))
        return [await claimed, await settled]

    async def pull_ahead(client: Any) -> None:
        """So that the claim need not wait for the broker."""
        found = await client.pull(client.names.queue(QUEUE), 1)
        client.consumer.intake._waiting.setdefault(QUEUE, deque(found))

    await store._run(pull_ahead)
    facts.clear()
    claimed, _ = await store._run(claim_and_settle)
    assert [job.id for job in claimed.jobs] == ids[1:]
    (entry,) = facts
    assert isinstance(entry, verbs.Ended)
    assert [start.id for start in entry.began] == ids[1:]
    one, other = await store.execute(rq.GetJobs(refs=[JobRef(QUEUE, id) for id in ids]))
    assert one is not None and other is not None
    assert (one.state, other.state, other.deliveries) == (JobState.COMPLETED, JobState.ACTIVE, 1)
    await store.remove_all()
    await store.close()


async def test_a_job_that_is_cancelled_before_its_start_is_logged_does_not_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cancel was answered: its worker loses the attempt, as any that is taken from it."""
    watch, url = probe.Probe(), fresh_url()
    monkeypatch.setattr(probe, "_installed", watch)
    other, store = open_backend(url), open_backend(url)
    await other.open()
    await store.open()
    ref = JobRef(QUEUE, new_id())
    await other.execute(rq.Add(jobs=[NewJob(queue=QUEUE, id=ref.id, task="n", payload=b"{}")]))
    monkeypatch.setattr(StartLog, "flush", lambda self: None)
    (job,) = (await store.execute(_claim())).jobs
    await other.execute(rq.CancelJobs(refs=[ref]))
    await until(lambda: watch.count("amqp.dropped_lost") > 0, "the worker dropped the message")
    end = Settlement(queue=QUEUE, id=ref.id, token=job.token or "", outcome=Outcome.COMPLETE)
    assert (await store.execute(rq.Settle(items=[end]))).items == [Settled.LOST]
    (after,) = await other.execute(rq.GetJobs(refs=[ref]))
    assert after is not None and after.state is JobState.CANCELLED
    await store.remove_all()  # type: ignore[attr-defined]
    for backend in (store, other):
        await backend.close()
