"""``listen``: a listener is woken soon after a change, no matter which client made it."""

from __future__ import annotations

import asyncio

import pytest

from windlass.backend import Backend, Listener
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.job import JobRecord, JobRef
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settled, Settlement
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, WORKER, Harness, settlement
from windlass_conformance.needs import needs

#: Real milliseconds in which a hint must arrive. Far more than any store needs.
SOON = 5_000
READY, DONE, EVENT = f"ready:{QUEUE}", f"done:{QUEUE}", f"event:{QUEUE}"


async def heard(listener: Listener, topic: str) -> bool:
    """Whether ``topic`` is touched soon; other topics and repeats are allowed."""
    for _ in range(20):
        touched = await listener.wait(SOON)
        if topic in touched:
            return True
        if not touched:
            return False
    return False


@pytest.mark.feature("K6", "J21")
async def test_an_added_job_wakes_those_who_wait_for_work(harness: Harness) -> None:
    listener = harness.backend.listen([READY])
    await harness.add("a")
    assert await heard(listener, READY)
    listener.close()


@pytest.mark.feature("K6", "J21")
async def test_a_worker_that_found_nothing_gets_the_job_that_is_added_then(harness: Harness) -> None:
    """Requests carry no time, as in production: then a store may register the idle worker."""
    backend = harness.backend
    listener = backend.listen([READY, f"worker:{WORKER}"])

    async def claim() -> list[JobRecord]:
        asked = harness.claim_request()
        asked.idle = True
        return (await backend.execute(asked)).jobs

    assert await claim() == []
    await backend.execute(rq.Add(jobs=[harness.new("a", request_id="a")]))
    found: list[JobRecord] = []
    while not found:
        assert await heard(listener, READY)
        found = await claim()
    assert [(job.id, job.worker, job.deliveries) for job in found] == [("a", WORKER, 1)]
    end = Settlement(queue=QUEUE, id="a", token=found[0].token or "", outcome=Outcome.COMPLETE, result=b"1")
    assert (await backend.execute(rq.Settle(items=[end]))).items == [Settled.OK]
    listener.close()


@pytest.mark.feature("K6", "B1")
async def test_a_scheduled_job_wakes_those_who_sleep_until_the_next_due_time(harness: Harness) -> None:
    listener = harness.backend.listen([READY])
    await harness.add("a", delay_ms=60_000)
    assert await heard(listener, READY)
    listener.close()


@needs("groups")
@pytest.mark.feature("K6", "H14")
async def test_a_job_that_is_parked_for_a_while_wakes_those_who_sleep(harness: Harness) -> None:
    await harness.do(lrq.Hold(queue=QUEUE, group="g", ms=1_000))
    listener = harness.backend.listen([READY])
    await harness.add("a", options=StoredOptions(group="g"))
    assert await heard(listener, READY)
    listener.close()


@pytest.mark.feature("K6")
@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.RELEASE, Outcome.SNOOZE])
async def test_a_job_put_back_wakes_those_who_wait_for_work(harness: Harness, outcome: Outcome) -> None:
    job = await harness.start("a")
    listener = harness.backend.listen([READY])
    await harness.settle(job, outcome)
    assert await heard(listener, READY)
    listener.close()


@pytest.mark.feature("K6", "E2")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL, Outcome.CANCEL])
async def test_a_finished_job_wakes_those_who_wait_for_its_end(harness: Harness, outcome: Outcome) -> None:
    job = await harness.start("a")
    listener = harness.backend.listen([DONE])
    await harness.settle(job, outcome)
    assert await heard(listener, DONE)
    listener.close()


@pytest.mark.feature("K6", "F5")
async def test_a_cancelled_pending_job_wakes_those_who_wait_for_its_end(harness: Harness) -> None:
    await harness.add("a")
    listener = harness.backend.listen([DONE])
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")]))
    assert await heard(listener, DONE)
    listener.close()


@pytest.mark.feature("K6", "F5")
async def test_a_removed_job_wakes_those_who_wait_for_its_end(harness: Harness) -> None:
    await harness.add("a")
    listener = harness.backend.listen([DONE])
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    assert await heard(listener, DONE)
    listener.close()


@pytest.mark.feature("K6", "K1")
async def test_an_event_wakes_those_who_follow_the_log(harness: Harness) -> None:
    listener = harness.backend.listen([EVENT])
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    assert await heard(listener, EVENT)
    listener.close()


@pytest.mark.feature("K6", "F2")
async def test_a_request_to_cancel_wakes_the_worker_that_runs_the_job(harness: Harness) -> None:
    job = await harness.start("a")
    listener = harness.backend.listen(["worker:w1"])
    await harness.do(rq.CancelJobs(refs=[job.ref]))
    assert await heard(listener, "worker:w1")
    listener.close()


@pytest.mark.feature("K6", "H10")
async def test_a_resumed_queue_wakes_those_who_wait_for_work(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    listener = harness.backend.listen([READY])
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=False))
    assert await heard(listener, READY)
    listener.close()


@pytest.mark.feature("K6", "J3")
async def test_a_recovered_job_wakes_those_who_wait_for_work(harness: Harness) -> None:
    await harness.start("a")
    listener = harness.backend.listen([READY])
    harness.pass_ms(10**6)
    await harness.do(rq.Recover())
    assert await heard(listener, READY)
    listener.close()


@pytest.mark.feature("K6", "J12")
async def test_one_listener_covers_many_queues(harness: Harness) -> None:
    topics = [f"ready:q{n}" for n in range(50)]
    listener = harness.backend.listen(topics)
    await harness.add("a", "q37")
    assert await heard(listener, "ready:q37")
    listener.close()


@pytest.mark.feature("K6")
async def test_a_listener_that_already_sleeps_is_woken(harness: Harness) -> None:
    listener = harness.backend.listen([READY])
    sleeper = asyncio.create_task(heard(listener, READY))
    await asyncio.sleep(0)
    await harness.add("a")
    assert await sleeper
    listener.close()


@pytest.mark.feature("K6", "L1")
async def test_a_change_by_another_client_is_heard(harness: Harness) -> None:
    listener = harness.backend.listen([READY])
    clone = await harness.clone()
    await clone.execute(rq.Add(jobs=[harness.new("a")], now_ms=harness.now_ms))
    assert await heard(listener, READY)
    listener.close()


@pytest.mark.feature("K6", "L1")
async def test_a_change_made_in_another_thread_is_heard(harness: Harness) -> None:
    listener = harness.backend.listen([READY])
    clone = harness.backend.clone()

    def add() -> None:
        asyncio.run(_add_from(clone, harness))

    await asyncio.to_thread(add)
    assert await heard(listener, READY)
    listener.close()


async def _add_from(client: Backend, harness: Harness) -> None:
    await client.open()
    await client.execute(rq.Add(jobs=[harness.new("a")], now_ms=harness.now_ms))
    await client.close()


@pytest.mark.feature("K6")
async def test_every_listener_of_a_topic_is_woken(harness: Harness) -> None:
    clone = await harness.clone()
    listeners = [harness.backend.listen([READY]), harness.backend.listen([READY]), clone.listen([READY])]
    await harness.add("a")
    assert all([await heard(listener, READY) for listener in listeners])
    for listener in listeners:
        listener.close()


@pytest.mark.feature("K6")
async def test_a_wait_ends_when_its_time_is_over(harness: Harness) -> None:
    listener = harness.backend.listen(["ready:nothing-happens-here"])
    assert await listener.wait(1) == frozenset()
    listener.close()


@pytest.mark.feature("K6")
async def test_a_listener_can_be_woken_by_hand_from_any_thread(harness: Harness) -> None:
    listener = harness.backend.listen(["ready:nothing-happens-here"])
    sleeper = asyncio.create_task(listener.wait(None))
    await asyncio.sleep(0)
    await asyncio.to_thread(listener.wake)
    assert await asyncio.wait_for(sleeper, 5) == frozenset()
    listener.close()


@pytest.mark.feature("K6")
async def test_a_wake_before_the_wait_is_not_lost(harness: Harness) -> None:
    listener = harness.backend.listen(["ready:nothing-happens-here"])
    listener.wake()
    await asyncio.wait_for(listener.wait(None), 5)
    listener.close()


@pytest.mark.feature("K6")
async def test_closing_a_listener_twice_is_fine_and_others_go_on(harness: Harness) -> None:
    first, second = harness.backend.listen([READY]), harness.backend.listen([READY])
    first.close()
    first.close()
    await harness.add("a")
    assert await heard(second, READY)
    second.close()


@pytest.mark.feature("K6", "J21")
async def test_a_worker_that_found_nothing_is_told_of_the_next_job_and_claims_it_once(
    harness: Harness,
) -> None:
    """Requests carry no time: then the store may offer the job to the worker before it claims again."""
    backend = harness.backend
    listener = backend.listen([READY, f"worker:{WORKER}"])

    async def claimed() -> list[JobRecord]:
        request = harness.claim_request(limit=5)
        request.idle = True
        return (await backend.execute(request)).jobs

    assert await claimed() == []
    for name in ("a", "b"):
        await backend.execute(rq.Add(jobs=[harness.new(name, request_id=name)]))
        assert await listener.wait(SOON)
        (job,) = await claimed()
        assert (job.id, job.worker, job.state, job.deliveries) == (name, WORKER, JobState.ACTIVE, 1)
        assert await claimed() == []
        ended = await backend.execute(rq.Settle(items=[settlement(job, Outcome.COMPLETE)]))
        assert ended.items == [Settled.OK]
    listener.close()
