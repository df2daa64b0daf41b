"""``ReadEvents``: one event per change, dense ids, replay from any point that is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from windlass.backend import requests as rq
from windlass.core.job import ErrorInfo, Event, EventType, JobRef, NewJob
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, Harness

A = JobRef(QUEUE, "a")
ERROR = ErrorInfo(error_class="ValueError", message="bad")
DUE = START_MS + 50


async def _add(harness: Harness) -> None:
    await harness.add("a", task="t")


async def _schedule(harness: Harness) -> None:
    await harness.add("a", task="t", delay_ms=50)


async def _start(harness: Harness) -> None:
    await _add(harness)
    await harness.add("behind", task="t")  # so that the claim does not drain the queue
    await harness.take()


def _end(outcome: Outcome, delay_ms: int = 0, **fields: object) -> Callable[[Harness], Awaitable[object]]:
    async def step(harness: Harness) -> object:
        job = await harness.get("a")
        return await harness.settle(job, outcome, delay_ms=delay_ms, **fields)

    return step


async def _promote(harness: Harness) -> None:
    harness.now_ms = DUE
    await harness.do(rq.Promote())


async def _claim(harness: Harness) -> None:
    await harness.add("behind", task="t")
    await harness.take()


async def _recover(harness: Harness) -> None:
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())


async def _cancel(harness: Harness) -> None:
    await harness.do(rq.CancelJobs(refs=[A], reason="why"))


async def _remove(harness: Harness) -> None:
    await harness.do(rq.RemoveJobs(refs=[A], force=True))


async def _retry(harness: Harness) -> None:
    await harness.do(rq.RetryJobs(refs=[A]))


async def _put_off(harness: Harness) -> None:
    await harness.do(rq.ChangeJob(ref=A, delay_ms=50))


async def _raise_priority(harness: Harness) -> None:
    await harness.do(rq.ChangeJob(ref=A, priority=9))


async def _nothing(harness: Harness) -> None:
    pass


async def _failed(harness: Harness) -> None:
    await _start(harness)
    await _end(Outcome.FAIL)(harness)


async def _reconcile(harness: Harness) -> None:
    await harness.do(rq.Reconcile(worker="w1", held=[]))


Step = Callable[[Harness], Awaitable[object]]
#: A change -> the one event that it writes, and the data of the event.
CHANGES: dict[str, tuple[Step, Step, EventType, dict[str, str | int | None]]] = {
    "add": (_nothing, _add, EventType.ENQUEUED, {}),
    "add later": (_nothing, _schedule, EventType.SCHEDULED, {"run_at_ms": DUE}),
    "promote": (_schedule, _promote, EventType.PROMOTED, {}),
    "complete": (_start, _end(Outcome.COMPLETE), EventType.COMPLETED, {}),
    "fail": (
        _start,
        _end(Outcome.FAIL, error=ERROR, reason="attempts"),
        EventType.FAILED,
        {"reason": "attempts", "error_class": "ValueError", "message": "bad"},
    ),
    "retry later": (
        _start,
        _end(Outcome.RETRY, 50, error=ERROR),
        EventType.RETRYING,
        {"attempt": 1, "error_class": "ValueError", "message": "bad", "run_at_ms": DUE},
    ),
    "retry at once": (
        _start,
        _end(Outcome.RETRY, error=ERROR),
        EventType.RETRYING,
        {"attempt": 1, "error_class": "ValueError", "message": "bad", "run_at_ms": None},
    ),
    "snooze": (
        _start,
        _end(Outcome.SNOOZE, 50),
        EventType.SCHEDULED,
        {"reason": "snoozed", "run_at_ms": DUE},
    ),
    "snooze at once": (_start, _end(Outcome.SNOOZE), EventType.RELEASED, {"reason": "snoozed"}),
    "release": (
        _start,
        _end(Outcome.RELEASE, reason="shutdown"),
        EventType.RELEASED,
        {"reason": "shutdown", "run_at_ms": None},
    ),
    "release later": (
        _start,
        _end(Outcome.RELEASE, 50, reason="unknown_task", miss=True),
        EventType.RELEASED,
        {"reason": "unknown_task", "run_at_ms": DUE},
    ),
    "cancel by the handler": (
        _start,
        _end(Outcome.CANCEL, reason="why"),
        EventType.CANCELLED,
        {"reason": "why"},
    ),
    "cancel while waiting": (_add, _cancel, EventType.CANCELLED, {"reason": "why"}),
    "cancel while active": (_start, _cancel, EventType.CANCELLING, {"reason": "why"}),
    "recover": (_start, _recover, EventType.STALLED, {"worker": "w1", "stalls": 1, "run_at_ms": None}),
    "reconcile": (_start, _reconcile, EventType.RELEASED, {"reason": "reconciled", "run_at_ms": None}),
    "remove": (_add, _remove, EventType.REMOVED, {"state": "waiting"}),
    "remove while active": (_start, _remove, EventType.REMOVED, {"state": "active"}),
    "retry by hand": (_failed, _retry, EventType.ENQUEUED, {"reason": "retried"}),
    "put off": (_add, _put_off, EventType.SCHEDULED, {"run_at_ms": DUE}),
    "priority": (_add, _raise_priority, EventType.CHANGED, {"what": "priority", "priority": 9}),
}


@pytest.mark.feature("K1", "K3", "K5")
@pytest.mark.parametrize("change", list(CHANGES))
async def test_every_change_writes_exactly_one_event(harness: Harness, change: str) -> None:
    before, step, wanted, data = CHANGES[change]
    await before(harness)
    mark = await harness.mark()
    await step(harness)
    assert await harness.events(after=mark) == [
        Event(mark + 1, harness.now_ms, wanted, "a", "t", data),
    ]


@pytest.mark.feature("K1", "K2")
async def test_a_claim_tells_who_started_what(harness: Harness) -> None:
    await _add(harness)
    mark = await harness.mark()
    harness.pass_ms(3)
    await _claim(harness)
    started = [event for event in await harness.events(after=mark) if event.type is EventType.STARTED]
    assert [(event.at_ms, event.job_id, event.data) for event in started] == [
        (START_MS + 3, "a", {"attempt": 1, "worker": "w1"})
    ]


@pytest.mark.feature("K1")
async def test_a_claim_that_takes_the_last_job_says_that_the_queue_is_drained(harness: Harness) -> None:
    await harness.add_many("a", "b")
    mark = await harness.mark()
    await harness.take()
    await harness.take()
    await harness.claim()
    types = [event.type for event in await harness.events(after=mark)]
    assert types == [EventType.STARTED, EventType.STARTED, EventType.DRAINED]


@pytest.mark.feature("K1", "A35")
async def test_an_expired_job_writes_one_failed_event(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=5)
    mark = await harness.mark()
    harness.pass_ms(5)
    await harness.claim()
    (event,) = await harness.events(after=mark)
    assert (event.type, event.data) == (
        EventType.FAILED,
        {"reason": "expired", "error_class": "JobExpired"},
    )


@pytest.mark.feature("K1", "C18")
async def test_a_job_that_stalled_too_often_writes_one_failed_event(harness: Harness) -> None:
    await harness.start("a", options=StoredOptions(max_stalls=0))
    mark = await harness.mark()
    await _recover(harness)
    (event,) = await harness.events(after=mark)
    assert (event.type, event.data["reason"], event.data["error_class"]) == (
        EventType.FAILED,
        "stalled",
        "JobStalled",
    )


@pytest.mark.feature("K1", "C18")
async def test_the_event_of_a_stalled_job_that_rests_tells_when_it_is_due(harness: Harness) -> None:
    await harness.start("a", options=StoredOptions(stall_delay_ms=500))
    mark = await harness.mark()
    await _recover(harness)
    (event,) = await harness.events(after=mark)
    assert (event.type, event.data["run_at_ms"]) == (EventType.STALLED, harness.now_ms + 500)


@pytest.mark.feature("K1", "A2")
async def test_a_duplicate_writes_a_deduplicated_event(harness: Harness) -> None:
    await harness.add("a", options=StoredOptions(keep_id_ms=1_000))
    mark = await harness.mark()
    await harness.add("a")
    await _remove(harness)
    await harness.add("a")
    types = [event.type for event in await harness.events(after=mark)]
    assert types == [EventType.DEDUPLICATED, EventType.REMOVED, EventType.DEDUPLICATED]


@pytest.mark.feature("K1", "D2")
async def test_replacing_a_finished_job_tells_of_both(harness: Harness) -> None:
    await _failed(harness)
    mark = await harness.mark()
    await _add(harness)
    events = await harness.events(after=mark)
    assert [(event.type, event.job_id) for event in events] == [
        (EventType.REMOVED, "a"),
        (EventType.ENQUEUED, "a"),
    ]


@pytest.mark.feature("K1")
async def test_failed_is_told_only_once_and_at_the_end(harness: Harness) -> None:
    await harness.add("a")
    for outcome in (Outcome.RETRY, Outcome.RETRY, Outcome.FAIL):
        await harness.settle(await harness.take(), outcome, error=ERROR)
    types = [event.type for event in await harness.events()]
    assert types.count(EventType.FAILED) == 1
    assert types.count(EventType.RETRYING) == 2
    assert types[-1] is EventType.FAILED


@pytest.mark.feature("K1")
async def test_a_long_error_is_cut_in_the_event_but_not_in_the_record(harness: Harness) -> None:
    job = await harness.start("a")
    error = ErrorInfo(error_class="E", message="x" * 2_000)
    await harness.settle(job, Outcome.FAIL, error=error)
    assert (await harness.last_event()).data["message"] == "x" * 500
    assert (await harness.get("a")).errors[0].message == "x" * 2_000


@pytest.mark.feature("K1", "K7")
async def test_event_ids_begin_at_one_and_have_no_gaps(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    for job in await harness.claim(3):
        await harness.settle(job, Outcome.RETRY)
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    events = await harness.events()
    assert [event.id for event in events] == list(range(1, len(events) + 1))


@pytest.mark.feature("K1")
async def test_each_queue_numbers_its_own_events(harness: Harness) -> None:
    await harness.add_many("a", "b", queue="one")
    await harness.add("c", "two")
    assert [event.id for event in await harness.events("one")] == [1, 2]
    assert [event.id for event in await harness.events("two")] == [1]


@pytest.mark.feature("K7")
async def test_events_can_be_replayed_from_any_id_in_pages(harness: Harness) -> None:
    await harness.add_many(*(f"j{n}" for n in range(10)))
    page = await harness.do(rq.ReadEvents(queue=QUEUE, after=3, limit=4))
    assert [event.id for event in page.events] == [4, 5, 6, 7]
    assert (page.last_id, page.oldest_id) == (10, 1)
    rest = await harness.do(rq.ReadEvents(queue=QUEUE, after=7, limit=4))
    assert [event.job_id for event in rest.events] == ["j7", "j8", "j9"]


@pytest.mark.feature("K7")
async def test_reading_at_the_end_gives_nothing_until_something_happens(harness: Harness) -> None:
    await harness.add("a")
    last = await harness.mark()
    assert await harness.do(rq.ReadEvents(queue=QUEUE, after=last)) == rq.EventPage([], 1, 1)
    await harness.add("b")
    assert [event.id for event in await harness.events(after=last)] == [2]


@pytest.mark.feature("K7")
async def test_what_a_reader_changes_in_an_event_reaches_no_other_event(harness: Harness) -> None:
    await harness.add_many("a", "b")
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "b")], reason="no"))
    before = [dict(event.data) for event in await harness.events()]
    for event in await harness.events():
        event.data["mine"] = 1
    assert [event.data for event in await harness.events()] == before
    await harness.add("c")
    assert (await harness.last_event()).data == before[0]


@pytest.mark.feature("K7")
async def test_a_queue_without_events_answers_an_empty_log(harness: Harness) -> None:
    assert await harness.do(rq.ReadEvents(queue="nowhere")) == rq.EventPage([], 0, 1)


@pytest.mark.feature("K1", "J24")
async def test_what_changes_nothing_writes_no_event(harness: Harness) -> None:
    job = await harness.start("a")
    mark = await harness.mark()
    await harness.settle(job, Outcome.COMPLETE, token="stale")
    await harness.do(rq.Extend(leases=[rq.LeaseRef(QUEUE, "a", job.token or "", 5_000)]))
    await harness.do(rq.RemoveJobs(refs=[A]))
    await harness.do(rq.RetryJobs(refs=[A]))
    await harness.do(rq.Promote())
    await harness.do(rq.Recover())
    await harness.do(rq.Prune())
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=False))
    await harness.do(rq.Purge(queue=QUEUE, states=[JobState.FAILED]))
    await harness.claim(5)
    assert await harness.events(after=mark) == []


@pytest.mark.feature("K7")
async def test_events_survive_reopening(harness: Harness) -> None:
    await harness.add_many("a", "b")
    before = await harness.events()
    await harness.reopen()
    assert await harness.events() == before
    await harness.add("c")
    assert (await harness.last_event()).id == 3


# --- trimmed on demand ----------------------------------------------------------------------------


@pytest.mark.feature("K10")
async def test_trimming_keeps_the_newest_events_and_says_how_many_went(harness: Harness) -> None:
    for job in "abcde":
        await harness.add(job)
    assert await harness.do(rq.TrimEvents(queue=QUEUE, keep=5)) == 0
    assert await harness.do(rq.TrimEvents(queue=QUEUE, keep=2)) == 3
    assert await harness.do(rq.TrimEvents(queue=QUEUE, keep=2)) == 0
    page = await harness.do(rq.ReadEvents(queue=QUEUE))
    assert [event.job_id for event in page.events] == ["d", "e"]
    assert (page.oldest_id, page.last_id) == (4, 5)
    assert (await harness.counts())[JobState.WAITING] == 5


@pytest.mark.feature("K10")
async def test_trimming_cuts_through_events_that_were_made_in_one_step(harness: Harness) -> None:
    await harness.add("a")
    jobs = [NewJob(queue=QUEUE, id=f"b{n}", task="t", payload=b"{}") for n in range(9)]
    await harness.do(rq.Add(jobs=jobs))
    assert await harness.do(rq.TrimEvents(queue=QUEUE, keep=4)) == 6
    assert [event.job_id for event in await harness.events()] == ["b5", "b6", "b7", "b8"]


@pytest.mark.feature("K10")
async def test_events_that_are_made_while_others_are_trimmed_are_all_there(harness: Harness) -> None:
    await harness.add("first")
    adds = asyncio.gather(*(harness.add(f"a{n}") for n in range(40)))
    trim = asyncio.create_task(harness.do(rq.TrimEvents(queue=QUEUE, keep=2)))
    await adds
    gone = await trim
    page = await harness.do(rq.ReadEvents(queue=QUEUE))
    assert [event.id for event in page.events] == list(range(page.oldest_id, page.last_id + 1))
    assert (page.oldest_id, page.last_id) == (gone + 1, 41)


@pytest.mark.feature("K10")
async def test_after_all_events_were_trimmed_the_next_one_has_the_next_id(harness: Harness) -> None:
    await harness.add("a")
    last = await harness.mark()
    assert await harness.do(rq.TrimEvents(queue=QUEUE, keep=0)) == last
    assert await harness.events() == []
    assert await harness.mark() == last
    await harness.add("b")
    assert [(event.id, event.job_id) for event in await harness.events()] == [(last + 1, "b")]


@pytest.mark.feature("K10")
async def test_trimming_the_events_of_an_unknown_queue_does_not_make_it_known(harness: Harness) -> None:
    assert await harness.do(rq.TrimEvents(queue="nowhere", keep=0)) == 0
    assert "nowhere" not in [info.name for info in await harness.do(rq.ListQueues())]
