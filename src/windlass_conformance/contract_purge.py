"""``Purge``: removing many jobs of a queue by state and age, and removing the queue."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import EventType
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, Harness


@pytest.mark.feature("A32")
async def test_purge_removes_the_named_states_only(harness: Harness) -> None:
    await harness.finish("done")
    await harness.add_many("w1", "w2")
    await harness.add("s", delay_ms=60_000)
    purged = await harness.do(rq.Purge(queue=QUEUE, states=[JobState.WAITING]))
    assert purged == rq.Purged(2, ["w1", "w2"])
    assert await harness.counts() == {JobState.SCHEDULED: 1, JobState.COMPLETED: 1}


@pytest.mark.feature("A32")
async def test_purge_leaves_other_queues_alone(harness: Harness) -> None:
    await harness.add("a")
    await harness.add("a", "other")
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState)))
    assert await harness.counts("other") == {JobState.WAITING: 1}


@pytest.mark.feature("A31")
async def test_purge_spares_what_finished_within_the_grace(harness: Harness) -> None:
    await harness.finish("old")
    harness.pass_ms(100)
    await harness.finish("young")
    harness.pass_ms(100)
    purge = rq.Purge(queue=QUEUE, states=[JobState.COMPLETED], grace_ms=150)
    assert await harness.do(purge) == rq.Purged(1, ["old"])


@pytest.mark.feature("A31")
async def test_the_grace_ends_exactly(harness: Harness) -> None:
    await harness.finish("a")
    harness.pass_ms(99)
    states = [JobState.COMPLETED]
    assert (await harness.do(rq.Purge(queue=QUEUE, states=states, grace_ms=100))).count == 0
    harness.pass_ms(1)
    assert (await harness.do(rq.Purge(queue=QUEUE, states=states, grace_ms=100))).count == 1


@pytest.mark.feature("A31", "A32")
async def test_the_grace_of_a_waiting_job_counts_from_its_add(harness: Harness) -> None:
    await harness.add("old")
    harness.pass_ms(100)
    await harness.add("young")
    purged = await harness.do(rq.Purge(queue=QUEUE, states=[JobState.WAITING], grace_ms=50))
    assert purged.ids == ["old"]


@pytest.mark.feature("A31")
async def test_purge_takes_the_oldest_first_up_to_its_limit(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    for job in reversed(await harness.claim(3)):
        await harness.settle(job, Outcome.COMPLETE)
        harness.pass_ms(1)
    states = [JobState.COMPLETED]
    assert await harness.do(rq.Purge(queue=QUEUE, states=states, limit=2)) == rq.Purged(2, ["c", "b"])
    assert await harness.do(rq.Purge(queue=QUEUE, states=states, limit=2)) == rq.Purged(1, ["a"])


@pytest.mark.feature("A32")
async def test_purge_spares_active_jobs_unless_forced(harness: Harness) -> None:
    await harness.start("a")
    assert (await harness.do(rq.Purge(queue=QUEUE, states=list(JobState)))).count == 0
    forced = rq.Purge(queue=QUEUE, states=list(JobState), force=True)
    assert await harness.do(forced) == rq.Purged(1, ["a"])
    assert await harness.counts() == {}


@pytest.mark.feature("A32")
async def test_purged_jobs_leave_an_event_each_and_their_end_in_history(harness: Harness) -> None:
    await harness.add_many("a", "b")
    mark = await harness.mark()
    await harness.do(rq.Purge(queue=QUEUE, states=[JobState.WAITING]))
    events = await harness.events(after=mark)
    assert [(event.type, event.job_id) for event in events] == [
        (EventType.REMOVED, "a"),
        (EventType.REMOVED, "b"),
    ]
    assert [(row.job_id, row.attempt) for row in await harness.history()] == [("a", 0), ("b", 0)]


@pytest.mark.feature("A32")
async def test_a_forgotten_queue_is_no_longer_listed_nor_paused(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState), force=True, forget=True))
    assert await harness.do(rq.ListQueues()) == []
    await harness.add("b")
    assert (await harness.take()).id == "b"


@pytest.mark.feature("A32")
async def test_a_queue_that_still_has_jobs_is_not_forgotten(harness: Harness) -> None:
    await harness.start("a")
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState), forget=True))
    (info,) = await harness.do(rq.ListQueues())
    assert (info.name, info.paused) == (QUEUE, True)


@pytest.mark.feature("A32")
async def test_a_forgotten_queue_that_is_paused_again_is_listed_again(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState), forget=True))
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    assert [(info.name, info.paused) for info in await harness.do(rq.ListQueues())] == [(QUEUE, True)]


@pytest.mark.feature("A32", "K7")
async def test_the_events_of_a_forgotten_queue_are_gone_but_their_ids_never_return(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState)))
    last = await harness.mark()
    await harness.do(rq.Purge(queue=QUEUE, states=[], forget=True))
    assert await harness.events() == []
    await harness.add("b")
    assert [event.id for event in await harness.events()] == [last + 1]


@pytest.mark.feature("A32")
async def test_purging_an_unknown_queue_does_not_make_it_known(harness: Harness) -> None:
    assert await harness.do(rq.Purge(queue="nowhere", states=list(JobState))) == rq.Purged(0, [])
    assert await harness.do(rq.ListQueues()) == []
