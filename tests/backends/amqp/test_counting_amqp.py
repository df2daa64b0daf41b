"""What a count says and what the list shows agree, whatever messages a queue still has."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.amqp.servers import fresh_url, open_store
from tests.faults.kit import staged, until
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend
from windlass.backends.amqp.coordinator import Coordinator
from windlass.backends.amqp.counting import drop_leftovers, ready_messages
from windlass.core import probe
from windlass.core.ids import new_id
from windlass.core.job import JobRecord, NewJob
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import Extended, Outcome, Settlement
from windlass.errors import StorageError
from windlass.speedups.amqp import Outgoing

backend_name = "amqp"
pytestmark = [pytest.mark.service("rabbitmq")]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> probe.Probe:
    watch = probe.Probe()
    monkeypatch.setattr(probe, "_installed", watch)
    return watch


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
async def store(url: str) -> AsyncIterator[AmqpBackend]:
    """A client that coordinates and counts."""
    store = await open_store(url)
    yield store
    await store.remove_all()
    await store.close()


async def _messages(store: AmqpBackend) -> int:
    messages, _ = await store._run(lambda client: ready_messages(client, "q"))
    return int(messages)


async def _is_there(store: AmqpBackend, count: int) -> bool:
    return await _messages(store) == count


async def _counted(store: AmqpBackend) -> dict[str, int]:
    """The counts of the queue; those that are not zero."""
    counts = await store.execute(rq.CountJobs(queue="q"))
    return {state.value: count for state, count in counts.items() if count}


async def _listed(store: AmqpBackend) -> dict[str, int]:
    """How many jobs the list of the queue has in each state."""
    page = await store.execute(rq.ListJobs(queue="q", limit=100))
    states = [job.state.value for job in page.jobs]
    return {state: states.count(state) for state in states}


async def _claim(client: AmqpBackend, limit: int) -> list[JobRecord]:
    queues = [rq.ClaimQueue("q", limit, limit)]
    claim = rq.Claim(worker="w", queues=queues, limit=limit, claim_id=new_id(), lease_ms=30_000)
    return (await client.execute(claim)).jobs


async def _starts_are_logged(client: AmqpBackend) -> None:
    """Wait until the log has the starts of ``client``. Other connections could otherwise be faster."""
    await client.execute(rq.ListQueues())  # its requests come after its starts


async def _add(store: AmqpBackend, count: int, **options: Any) -> None:
    stored = StoredOptions(**options)
    await store.execute(
        rq.Add(
            jobs=[
                NewJob(queue="q", id=new_id(), task="t", payload=b"{}", options=stored) for _ in range(count)
            ]
        )
    )


async def _publish_as_another_program(store: AmqpBackend, *ids: str) -> None:
    """Jobs that the coordinator does not know of."""
    bodies = [json.dumps({"jid": job_id, "class": "t", "args": []}).encode() for job_id in ids]

    async def publish(client: Any) -> None:
        await client.need_queue("q")
        await client.publish([Outgoing(client.names.direct, "q", body) for body in bodies])

    await store._run(publish)


async def _leave_messages(
    store: AmqpBackend, url: str, watch: probe.Probe, count: int, outcome: Outcome = Outcome.COMPLETE
) -> None:
    """A worker ends ``count`` jobs, and its connection ends before their messages are acknowledged."""

    def lose(point: str, facts: dict[str, Any]) -> None:
        raise StorageError("the worker was killed (injected)")

    worker = await open_store(url)
    before = await _messages(store)
    jobs = await _claim(worker, count)
    assert len(jobs) == count
    watch.arm("amqp.ended" if outcome is Outcome.COMPLETE else "amqp.closed", lose)
    ends = [
        Settlement(queue="q", id=job.id, token=job.token or "", outcome=outcome, delay_ms=3_600_000)
        for job in jobs
    ]
    with pytest.raises(StorageError, match="injected"):
        await worker.execute(rq.Settle(items=ends))
    await worker.close()

    await until(lambda: _is_there(store, before), "the broker has the messages again")


@pytest.mark.feature("N8", "L12")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.RETRY])
async def test_messages_of_jobs_that_are_over_are_not_counted(
    store: AmqpBackend, url: str, watch: probe.Probe, outcome: Outcome
) -> None:
    await _add(store, 5)
    await _leave_messages(store, url, watch, 3, outcome)
    state = "completed" if outcome is Outcome.COMPLETE else "retrying"
    assert await _counted(store) == await _listed(store) == {"waiting": 2, state: 3}
    await until(lambda: _is_there(store, 2), "the broker has the others again")
    assert len(await _claim(store, 5)) == 2


@pytest.mark.feature("N8")
async def test_a_job_that_left_no_record_is_not_counted_and_does_not_come_back(
    store: AmqpBackend, url: str, watch: probe.Probe
) -> None:
    await _add(store, 2, keep_completed=Keep(count=0), result_ttl_ms=0)
    await _leave_messages(store, url, watch, 2)
    assert await _counted(store) == await _listed(store) == {}
    assert await _messages(store) == 0


@pytest.mark.feature("N8")
async def test_a_worker_killed_between_the_end_and_the_acknowledgement_leaves_nothing_to_count(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, fresh_url()) as stage:
        store = stage.app.store.backend
        assert isinstance(store, AmqpBackend)
        await stage.app.queue("q").add("noop", {"n": 1})
        victim = stage.worker(probes="amqp.ended=kill", concurrency=1)
        assert await victim.ended() == -signal.SIGKILL

        await until(lambda: _is_there(store, 1), "the broker has the message again")
        assert await _counted(store) == await _listed(store) == {"completed": 1}
        await store.remove_all()


@pytest.mark.feature("N8", "L12")
async def test_jobs_of_other_programs_are_counted_beside_messages_of_jobs_that_are_over(
    store: AmqpBackend, url: str, watch: probe.Probe
) -> None:
    await _add(store, 1)
    await _publish_as_another_program(store, "a", "b", "c")
    await _leave_messages(store, url, watch, 1)
    assert await _messages(store) == 4
    for _ in range(3):
        assert await _counted(store) == {"waiting": 3, "completed": 1}
        await until(lambda: _is_there(store, 3), "the broker has the messages again")
    assert watch.count("amqp.looked_for_leftovers") == 1  # what was looked at is left alone
    assert await _listed(store) == {"completed": 1}  # the coordinator does not know the others
    assert sorted(job.id for job in await _claim(store, 5)) == ["a", "b", "c"]


@pytest.mark.feature("N8")
async def test_messages_that_were_counted_while_a_worker_served_the_queue_are_looked_at_later(
    store: AmqpBackend, url: str, watch: probe.Probe
) -> None:
    await _add(store, 2)
    (job,) = await _claim(store, 1)
    await _leave_messages(store, url, watch, 1)
    assert await _counted(store) == {"waiting": 1, "active": 1, "completed": 1}  # for the worker to drop
    assert watch.count("amqp.looked_for_leftovers") == 0
    end = Settlement(queue="q", id=job.id, token=job.token or "", outcome=Outcome.COMPLETE)
    await store.execute(rq.Settle(items=[end]))
    assert await _counted(store) == await _listed(store) == {"completed": 2}


@pytest.mark.feature("N8")
async def test_a_job_whose_worker_is_gone_stays_when_messages_are_looked_at(
    store: AmqpBackend, url: str, watch: probe.Probe
) -> None:
    """Its message is the one thing that brings it back before its lease ends."""
    await _add(store, 1)
    worker = await open_store(url)
    (job,) = await _claim(worker, 1)
    await worker.close()
    await until(lambda: _is_there(store, 1), "the broker has the message again")
    dropped = await store._run(lambda client: drop_leftovers(client, "q"))
    assert dropped == []
    await until(lambda: _is_there(store, 1), "the broker has the message again")
    assert [again.id for again in await _claim(store, 1)] == [job.id]


async def test_a_client_that_comes_later_does_not_count_cancelled_jobs(store: AmqpBackend, url: str) -> None:
    """Their messages are in the queue until a worker meets them."""
    await _add(store, 3)
    page = await store.execute(rq.ListJobs(queue="q", limit=10))
    await store.execute(rq.CancelJobs(refs=[job.ref for job in page.jobs[:2]]))
    await _publish_as_another_program(store, "a")
    later = await open_store(url)
    try:
        assert await _messages(later) == 4
        assert await _counted(later) == {"waiting": 2, "cancelled": 2}
    finally:
        await later.close()


@pytest.mark.feature("N8")
async def test_second_messages_that_a_new_coordinator_published_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(Coordinator, "_write_mark", lambda self: None)
    first = await open_store(url)
    jobs = [NewJob(queue="q", id=f"j{n}", task="t", payload=b"{}", delay_ms=100) for n in range(5)]
    await first.execute(rq.Add(jobs=jobs, now_ms=1_000_000))
    await first.execute(rq.Promote(now_ms=1_000_100))
    await first.close()
    second = await open_store(url)
    assert await _messages(second) == 10
    assert await _counted(second) == await _listed(second) == {"waiting": 5}
    await until(lambda: _is_there(second, 5), "the broker has one message of each job")
    assert sorted(job.id for job in await _claim(second, 10)) == [f"j{n}" for n in range(5)]
    await second.remove_all()
    await second.close()


@pytest.mark.feature("N8")
async def test_a_worker_drops_the_message_of_an_attempt_that_was_taken_from_it(
    store: AmqpBackend, url: str, watch: probe.Probe
) -> None:
    """It hands in no end. The message would come back when it stops, or be held for too long."""
    job_ids = [new_id(), new_id()]
    await store.execute(
        rq.Add(
            jobs=[NewJob(queue="q", id=job_id, task="t", payload=b"{}") for job_id in job_ids],
            now_ms=1_000_000,
        )
    )
    worker = await open_store(url)
    queues = [rq.ClaimQueue("q", 2, 2)]
    claim = rq.Claim(worker="w", queues=queues, limit=2, claim_id=new_id(), lease_ms=1_000, now_ms=1_000_000)
    assert len((await worker.execute(claim)).jobs) == 2
    await _starts_are_logged(worker)
    recovered = await store.execute(rq.Recover(now_ms=1_002_000))
    assert len(recovered.recovered) == 2
    await until(lambda: watch.count("amqp.dropped_lost") == 1, "the worker drops the messages")
    await worker.close()
    closed = await open_store(url)
    assert await _messages(closed) == 2
    assert sorted(job.id for job in await _claim(closed, 5)) == sorted(job_ids)
    await closed.close()


@pytest.mark.feature("N8")
async def test_a_job_that_is_given_back_keeps_the_message_that_its_worker_holds(
    store: AmqpBackend, url: str, watch: probe.Probe
) -> None:
    """The coordinator calls the attempt lost, but the job waits by this message, and has no other one."""
    await _add(store, 2)
    worker = await open_store(url)
    jobs = await _claim(worker, 2)
    await _starts_are_logged(worker)
    assert await store.execute(rq.Reconcile(worker="w", held=[])) == 2
    await until(lambda: watch.count("amqp.dropped_lost") == 1, "the worker gives the messages back")
    await until(lambda: _is_there(store, 2), "the broker has the messages again")
    assert await _counted(store) == await _listed(store) == {"waiting": 2}
    assert sorted(job.id for job in await _claim(store, 5)) == sorted(job.id for job in jobs)
    await worker.close()


@pytest.mark.feature("N8")
async def test_an_attempt_that_was_taken_away_stays_lost_while_no_coordinator_answers(
    store: AmqpBackend, url: str, watch: probe.Probe
) -> None:
    await _add(store, 1)
    worker = await open_store(url)
    (job,) = await _claim(worker, 1)
    await _starts_are_logged(worker)
    await store.execute(rq.Reconcile(worker="w", held=[]))
    await until(lambda: watch.count("amqp.dropped_lost") == 1, "the worker gives the message back")
    await store._run(lambda client: client.coordinator.retire())
    lease = rq.LeaseRef("q", job.id, job.token or "", 600)
    assert await worker.execute(rq.Extend(leases=[lease])) == [Extended.LOST]
    await worker.close()
