"""The verbs for schedules: put, list, due, fire, pause, remove."""

from __future__ import annotations

import asyncio
import random
from copy import copy
from typing import Any

import pytest

from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backends.memory import MemoryBackend
from windlass.core.job import EventType, JobRef, NewJob
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.core.schedule_rules import Rule, ScheduleRecord, slot_job, slot_job_id
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, START_MS, Harness
from windlass_conformance.needs import needs

NEEDS = "schedules"

EVERY = Rule(every_ms=1_000)


def make(name: str = "tick", queue: str = QUEUE, **fields: Any) -> ScheduleRecord:
    """A schedule whose first slot comes one second after the start."""
    template = NewJob(queue=queue, id="", task="beat", payload=b'{"args":[7]}', priority=3)
    template.options = StoredOptions(max_attempts=7, tags=("clock",))
    defaults: dict[str, Any] = {"rule": EVERY, "next_ms": START_MS + 1_000}
    return ScheduleRecord(queue=queue, name=name, template=template, **(defaults | fields))


async def put(harness: Harness, name: str = "tick", queue: str = QUEUE, **fields: Any) -> ScheduleRecord:
    return await harness.do(sq.PutSchedule(schedule=make(name, queue, **fields)))


async def find(harness: Harness, name: str = "tick", queue: str = QUEUE) -> ScheduleRecord | None:
    page = await harness.do(sq.ListSchedules(queue=queue, name=name))
    return page.schedules[0] if page.schedules else None


async def get(harness: Harness, name: str = "tick", queue: str = QUEUE) -> ScheduleRecord:
    record = await find(harness, name, queue)
    assert record is not None
    return record


def firing(record: ScheduleRecord, *slots: int, next_ms: int | None = -1) -> sq.FireSchedule:
    """The request that a scheduler sends for due slots of a schedule; the next slot is a second later."""
    assert record.next_ms is not None
    fired = list(slots) or [record.next_ms]
    return sq.FireSchedule(
        queue=record.queue,
        name=record.name,
        slot_ms=record.next_ms,
        jobs=[slot_job(record, slot) for slot in fired],
        slots=fired,
        next_ms=fired[-1] + 1_000 if next_ms == -1 else next_ms,
    )


async def fire(harness: Harness, name: str = "tick", *slots: int, next_ms: int | None = -1) -> sq.Fired:
    return await harness.do(firing(await get(harness, name), *slots, next_ms=next_ms))


async def due(harness: Harness, limit: int = 100) -> sq.Due:
    return await harness.do(sq.DueSchedules(limit=limit))


# --- put, list, remove ----------------------------------------------------------------------------


@pytest.mark.feature("B8")
async def test_a_schedule_is_stored_as_it_was_put(harness: Harness) -> None:
    rule = Rule(cron="*/5 * * * *", timezone="Europe/Berlin", start_ms=START_MS + 5)
    fields: dict[str, Any] = {
        "rule": rule,
        "end_ms": START_MS + 99_999,
        "limit": 9,
        "missed": "all",
        "overlap": "skip",
    }
    stored = await put(harness, source="shop", **fields)
    assert stored == make(source="shop", **fields)
    assert await get(harness) == stored


@pytest.mark.feature("B8", "B12")
async def test_putting_the_same_rule_again_keeps_its_next_slot_and_its_counts(harness: Harness) -> None:
    await put(harness)
    harness.pass_ms(1_000)
    await fire(harness)
    before = await get(harness)
    again = await put(harness, next_ms=START_MS + 77_777, limit=50, missed="all")
    assert (again.next_ms, again.fired, again.last_ms) == (START_MS + 2_000, 1, START_MS + 1_000)
    assert (again.last_job_id, again.limit, again.missed) == (before.last_job_id, 50, "all")


@pytest.mark.feature("B8")
async def test_a_new_rule_begins_at_its_own_first_slot(harness: Harness) -> None:
    await put(harness)
    harness.pass_ms(1_000)
    await fire(harness)
    again = await put(harness, rule=Rule(every_ms=5_000), next_ms=START_MS + 6_000)
    assert (again.next_ms, again.fired) == (START_MS + 6_000, 0)
    assert again.last_job_id == slot_job_id("tick", START_MS + 1_000)


@pytest.mark.feature("B8")
async def test_a_changed_template_counts_from_the_next_slot_on(harness: Harness) -> None:
    await put(harness)
    record = make()
    record.template.task = "other"
    await harness.do(sq.PutSchedule(schedule=record))
    harness.pass_ms(1_000)
    await fire(harness)
    assert (await harness.get(slot_job_id("tick", START_MS + 1_000))).task == "other"


@pytest.mark.feature("B9")
async def test_schedules_are_listed_by_queue_and_name_page_by_page(harness: Harness) -> None:
    for queue, name in (("b", "x"), ("a", "y"), ("a", "x"), ("c", "z.1"), ("a", "x y")):
        await put(harness, name, queue)
    found: list[tuple[str, str]] = []
    cursor: str | None = None
    for _ in range(10):
        page = await harness.do(sq.ListSchedules(cursor=cursor, limit=2))
        assert len(page.schedules) <= 2
        assert page.now_ms == START_MS
        found += [(record.queue, record.name) for record in page.schedules]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == [("a", "x"), ("a", "x y"), ("a", "y"), ("b", "x"), ("c", "z.1")]


@pytest.mark.feature("B9")
async def test_schedules_are_found_by_queue_name_and_source(harness: Harness) -> None:
    await put(harness, "one", source="shop")
    await put(harness, "two", source="bank")
    await put(harness, "one", "other", source="shop")

    async def names(**fields: Any) -> list[tuple[str, str]]:
        page = await harness.do(sq.ListSchedules(**fields))
        return [(record.queue, record.name) for record in page.schedules]

    assert await names(queue=QUEUE) == [(QUEUE, "one"), (QUEUE, "two")]
    assert await names(source="shop") == [(QUEUE, "one"), ("other", "one")]
    assert await names(queue=QUEUE, name="two") == [(QUEUE, "two")]
    assert await names(queue="none") == await names(name="none") == await names(source="none") == []


@pytest.mark.feature("B9")
async def test_a_removed_schedule_is_gone_and_its_jobs_stay(harness: Harness) -> None:
    await put(harness)
    harness.pass_ms(1_000)
    await fire(harness)
    assert await harness.do(sq.RemoveSchedule(queue=QUEUE, name="tick")) is True
    assert await harness.do(sq.RemoveSchedule(queue=QUEUE, name="tick")) is False
    assert await find(harness) is None
    harness.pass_ms(60_000)
    assert (await due(harness)).schedules == []
    assert await harness.counts() == {JobState.WAITING: 1}


@pytest.mark.feature("B9")
async def test_a_schedule_of_another_source_is_not_removed(harness: Harness) -> None:
    await put(harness, source="bank")
    assert await harness.do(sq.RemoveSchedule(queue=QUEUE, name="tick", source="shop")) is False
    assert await find(harness) is not None
    assert await harness.do(sq.RemoveSchedule(queue=QUEUE, name="tick", source="bank")) is True


@pytest.mark.feature("B9", "A32")
async def test_a_queue_that_is_forgotten_takes_its_schedules_along(harness: Harness) -> None:
    await put(harness)
    await put(harness, "tick", "other")
    assert [info.name for info in await harness.do(rq.ListQueues())] == [QUEUE, "other"]
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState), forget=True))
    assert await find(harness) is None
    assert await find(harness, queue="other") is not None


@pytest.mark.feature("B8", "L1")
async def test_schedules_survive_reopening(harness: Harness) -> None:
    stored = await put(harness, rule=Rule(cron="0 3 * * *", timezone="Asia/Tokyo"), paused=False)
    await harness.reopen()
    assert await get(harness) == stored


@pytest.mark.feature("B9")
async def test_schedules_of_another_namespace_are_not_seen(harness: Harness) -> None:
    await put(harness)
    stranger = await harness.stranger()
    assert (await stranger.execute(sq.ListSchedules(now_ms=harness.now_ms))).schedules == []


# --- due ----------------------------------------------------------------------------------------------


@pytest.mark.feature("B8", "B3")
async def test_due_are_those_whose_slot_has_come_earliest_first(harness: Harness) -> None:
    await put(harness, "late", next_ms=START_MS + 3_000)
    await put(harness, "early", next_ms=START_MS + 1_000)
    await put(harness, "early", "other", next_ms=START_MS + 2_000)
    await put(harness, "never", next_ms=None)
    answer = await due(harness)
    assert (answer.schedules, answer.now_ms, answer.next_in_ms) == ([], START_MS, 1_000)
    harness.pass_ms(2_000)
    answer = await due(harness)
    assert [record.next_ms for record in answer.schedules] == [START_MS + 1_000, START_MS + 2_000]
    assert (answer.now_ms, answer.next_in_ms) == (START_MS + 2_000, 1_000)


@pytest.mark.feature("B8")
async def test_no_more_than_so_many_are_due_at_once(harness: Harness) -> None:
    for number in range(5):
        await put(harness, f"s{number}", next_ms=START_MS + number)
    harness.pass_ms(10)
    answer = await due(harness, limit=2)
    assert [record.name for record in answer.schedules] == ["s0", "s1"]
    assert answer.next_in_ms == 0


@pytest.mark.feature("B8")
async def test_without_schedules_nothing_is_due(harness: Harness) -> None:
    assert await due(harness) == sq.Due([], START_MS, None)


# --- fire ---------------------------------------------------------------------------------------------


@pytest.mark.feature("B8", "B12", "A17")
async def test_a_slot_adds_its_job_and_moves_on_in_one_step(harness: Harness) -> None:
    await put(harness)
    harness.pass_ms(1_003)
    assert await fire(harness) == sq.Fired(True, 1)
    record = await get(harness)
    job = await harness.get(slot_job_id("tick", START_MS + 1_000))
    assert (job.task, job.payload, job.priority, job.options.max_attempts) == ("beat", b'{"args":[7]}', 3, 7)
    assert (job.state, job.enqueued_ms) == (JobState.WAITING, START_MS + 1_003)
    assert (job.options.schedule, job.options.slot_ms) == ("tick", START_MS + 1_000)
    assert (record.next_ms, record.last_ms) == (START_MS + 2_000, START_MS + 1_000)
    assert (record.last_job_id, record.fired, record.skipped) == (job.id, 1, 0)
    assert (await harness.last_event()).type is EventType.ENQUEUED


@pytest.mark.feature("B12")
async def test_the_same_slot_is_fired_once(harness: Harness) -> None:
    await put(harness)
    harness.pass_ms(1_000)
    request = firing(await get(harness))
    assert (await harness.do(request)).ok is True
    again = firing(make())
    assert await harness.do(again) == sq.Fired(False)
    assert await harness.counts() == {JobState.WAITING: 1}
    assert (await get(harness)).fired == 1


@pytest.mark.feature("B12")
async def test_of_many_who_fire_a_slot_at_once_one_wins(harness: Harness) -> None:
    await put(harness)
    harness.pass_ms(1_000)
    clients = [await harness.clone() for _ in range(4)]
    requests = [firing(make()) for _ in clients]
    for request in requests:
        request.now_ms = harness.now_ms
    answers = await asyncio.gather(
        *(client.execute(request) for client, request in zip(clients, requests, strict=True))
    )
    assert sorted(answer.ok for answer in answers) == [False, False, False, True]
    assert await harness.counts() == {JobState.WAITING: 1}


@pytest.mark.feature("B13")
async def test_several_slots_are_fired_in_one_step(harness: Harness) -> None:
    await put(harness)
    harness.pass_ms(3_500)
    slots = [START_MS + n * 1_000 for n in (1, 2, 3)]
    assert await fire(harness, "tick", *slots) == sq.Fired(True, 3)
    record = await get(harness)
    assert (record.next_ms, record.last_ms, record.fired) == (START_MS + 4_000, slots[-1], 3)
    assert await harness.order() == [slot_job_id("tick", slot) for slot in slots]


@pytest.mark.feature("B13")
async def test_a_slot_can_be_passed_over(harness: Harness) -> None:
    await put(harness)
    harness.pass_ms(100_000)
    record = await get(harness)
    request = sq.FireSchedule(
        queue=QUEUE, name="tick", slot_ms=record.next_ms, jobs=[], next_ms=START_MS + 101_000
    )
    assert await harness.do(request) == sq.Fired(True, 0)
    record = await get(harness)
    assert (record.next_ms, record.last_ms, record.fired) == (START_MS + 101_000, None, 0)


@pytest.mark.feature("B12")
async def test_a_schedule_that_is_gone_fires_nothing(harness: Harness) -> None:
    assert await harness.do(firing(make())) == sq.Fired(False)
    assert await harness.counts() == {}


@pytest.mark.feature("B10")
async def test_no_slot_comes_after_the_end(harness: Harness) -> None:
    await put(harness, end_ms=START_MS + 2_500)
    harness.pass_ms(1_000)
    await fire(harness)
    assert (await get(harness)).next_ms == START_MS + 2_000
    harness.pass_ms(1_000)
    assert await fire(harness) == sq.Fired(True, 1)
    assert (await get(harness)).next_ms is None
    assert await due(harness) == sq.Due([], START_MS + 2_000, None)


@pytest.mark.feature("B10")
async def test_the_limit_is_never_exceeded(harness: Harness) -> None:
    await put(harness, limit=2)
    harness.pass_ms(3_500)
    slots = [START_MS + n * 1_000 for n in (1, 2, 3)]
    assert await fire(harness, "tick", *slots) == sq.Fired(True, 2)
    record = await get(harness)
    assert (record.next_ms, record.fired, record.last_ms) == (None, 2, slots[1])
    assert await harness.counts() == {JobState.WAITING: 2}
    again = await put(harness, limit=2)
    assert (again.next_ms, again.fired) == (None, 2)
    more = await put(harness, limit=3, next_ms=START_MS + 9_000)
    assert (more.next_ms, more.fired) == (START_MS + 9_000, 2)


@pytest.mark.feature("B11")
async def test_without_overlap_a_slot_is_left_out_while_the_last_job_is_unfinished(harness: Harness) -> None:
    await put(harness, overlap="skip")
    harness.pass_ms(1_000)
    assert (await fire(harness)).added == 1
    harness.pass_ms(1_000)
    assert await fire(harness) == sq.Fired(True, 0)
    running = await harness.take()
    harness.pass_ms(1_000)
    assert (await fire(harness)).added == 0
    await harness.settle(running, Outcome.COMPLETE)
    harness.pass_ms(1_000)
    assert (await fire(harness)).added == 1
    record = await get(harness)
    assert (record.fired, record.skipped) == (2, 2)
    assert (record.last_ms, record.next_ms) == (START_MS + 4_000, START_MS + 5_000)


@pytest.mark.feature("B11")
async def test_without_overlap_several_missed_slots_make_one_job(harness: Harness) -> None:
    await put(harness, overlap="skip")
    harness.pass_ms(3_000)
    slots = [START_MS + n * 1_000 for n in (1, 2, 3)]
    assert await fire(harness, "tick", *slots) == sq.Fired(True, 1)
    record = await get(harness)
    assert (record.last_ms, record.fired, record.skipped) == (slots[0], 1, 2)


@pytest.mark.feature("B11")
async def test_a_last_job_whose_record_is_gone_blocks_nothing(harness: Harness) -> None:
    await put(harness, overlap="skip")
    harness.pass_ms(1_000)
    await fire(harness)
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, slot_job_id("tick", START_MS + 1_000))]))
    harness.pass_ms(1_000)
    assert (await fire(harness)).added == 1


@needs("unique")
@pytest.mark.feature("B11", "D5")
@pytest.mark.parametrize("mode", [UniqueMode.UNTIL_DONE, UniqueMode.KEEP_LAST])
async def test_slots_whose_unique_key_is_held_count_as_skipped_and_not_for_the_limit(
    harness: Harness, mode: UniqueMode
) -> None:
    schedule = make(limit=2)
    schedule.template.options = StoredOptions(unique=StoredUnique(key="k", mode=mode))
    await harness.do(sq.PutSchedule(schedule=schedule))
    await fire(harness)
    first = slot_job_id("tick", START_MS + 1_000)
    slots = [START_MS + 2_000, START_MS + 3_000]
    assert await fire(harness, "tick", *slots) == sq.Fired(True, 0)
    record = await get(harness)
    assert (record.fired, record.skipped, record.next_ms) == (1, 2, START_MS + 4_000)
    assert (record.last_ms, record.last_job_id) == (START_MS + 1_000, first)
    by_hand = sq.FireSchedule(queue=QUEUE, name="tick", slot_ms=None, jobs=[slot_job(record, "by-hand")])
    assert await harness.do(by_hand) == sq.Fired(True, 0)
    assert (await get(harness)).last_job_id == first
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    assert (await fire(harness)).added == 1
    record = await get(harness)
    assert (record.fired, record.skipped, record.next_ms, record.last_ms) == (2, 2, None, START_MS + 4_000)


@pytest.mark.feature("B14")
async def test_running_by_hand_adds_a_job_and_leaves_the_slots_alone(harness: Harness) -> None:
    await put(harness, limit=1, overlap="skip")
    harness.pass_ms(300)
    job = slot_job(make(), "by-hand")
    request = sq.FireSchedule(queue=QUEUE, name="tick", slot_ms=None, jobs=[job])
    assert await harness.do(request) == sq.Fired(True, 1)
    again = sq.FireSchedule(queue=QUEUE, name="tick", slot_ms=None, jobs=[job])
    assert (await harness.do(again)).ok is True
    record = await get(harness)
    assert (record.next_ms, record.fired) == (START_MS + 1_000, 0)
    assert (record.last_ms, record.last_job_id) == (START_MS + 300, job.id)
    assert await harness.counts() == {JobState.WAITING: 1}


# --- pause --------------------------------------------------------------------------------------------


async def pause(harness: Harness, paused: bool, next_ms: int | None = None) -> bool:
    request = sq.PauseSchedule(queue=QUEUE, name="tick", paused=paused, next_ms=next_ms)
    return await harness.do(request)


@pytest.mark.feature("B14")
async def test_a_paused_schedule_is_neither_due_nor_fired(harness: Harness) -> None:
    await put(harness)
    assert await pause(harness, True) is True
    harness.pass_ms(5_000)
    assert await due(harness) == sq.Due([], START_MS + 5_000, None)
    assert await fire(harness) == sq.Fired(False)
    assert (await get(harness)).paused is True
    assert await harness.counts() == {}


@pytest.mark.feature("B14")
async def test_a_resumed_schedule_goes_on_where_it_is_told_to(harness: Harness) -> None:
    await put(harness)
    await pause(harness, True)
    harness.pass_ms(5_500)
    assert await pause(harness, False, START_MS + 6_000) is True
    record = await get(harness)
    assert (record.paused, record.next_ms) == (False, START_MS + 6_000)
    assert (await due(harness)).next_in_ms == 500
    assert await pause(harness, False, START_MS + 99_000) is True
    assert (await get(harness)).next_ms == START_MS + 6_000


@pytest.mark.feature("B14")
async def test_a_deploy_does_not_resume_a_paused_schedule(harness: Harness) -> None:
    await put(harness)
    await pause(harness, True)
    assert (await put(harness)).paused is True
    assert (await put(harness, rule=Rule(every_ms=7_000))).paused is True


@pytest.mark.feature("B14")
async def test_what_is_not_there_cannot_be_paused(harness: Harness) -> None:
    assert await pause(harness, True) is False
    assert await pause(harness, False, START_MS) is False


@pytest.mark.feature("B8")
async def test_putting_and_resuming_give_a_hint(harness: Harness) -> None:
    listener = harness.backend.listen(["schedules"])
    try:
        await put(harness)
        assert "schedules" in await listener.wait(5_000)
        await pause(harness, True)
        await pause(harness, False, START_MS + 2_000)
        assert "schedules" in await listener.wait(5_000)
    finally:
        listener.close()


# --- all of it ----------------------------------------------------------------------------------------


@pytest.mark.feature("B8", "B12")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_random_life_of_schedules_is_that_of_the_reference(harness: Harness, seed: int) -> None:
    rng, twin = random.Random(seed), MemoryBackend()

    async def both(request: rq.Request[Any]) -> Any:
        request.now_ms = harness.now_ms
        answer, wanted = await harness.backend.execute(copy(request)), await twin.execute(copy(request))
        assert answer == wanted, f"{request} at {harness.now_ms}"
        return answer

    for _ in range(150):
        harness.pass_ms(rng.choice([0, 0, 300, 1_000, 5_000]))
        queue, name = rng.choice(["a", "b"]), rng.choice(["x", "y", "z z"])
        await both(_random_request(rng, harness.now_ms, queue, name))
        answer = await both(sq.DueSchedules(limit=rng.choice([1, 2, 100])))
        for record in answer.schedules:
            slots = [record.next_ms + n * 1_000 for n in range(rng.choice([0, 1, 1, 3]))]
            next_ms = rng.choice([None, harness.now_ms + 700, record.next_ms + 1_000])
            for _ in range(rng.choice([1, 2])):
                jobs = [slot_job(record, slot) for slot in slots]
                fields = {"slot_ms": record.next_ms, "jobs": jobs, "slots": slots, "next_ms": next_ms}
                await both(sq.FireSchedule(queue=record.queue, name=record.name, **fields))
        await both(sq.ListSchedules(queue=rng.choice([None, "a"]), limit=rng.choice([1, 2, 100])))
        await both(rq.CountJobs(queue=queue))


def _random_request(rng: random.Random, now_ms: int, queue: str, name: str) -> rq.Request[Any]:
    later_ms = now_ms + rng.randrange(3_000)
    match rng.randrange(8):
        case 0:
            return sq.RemoveSchedule(queue=queue, name=name, source=rng.choice([None, "shop"]))
        case 1 | 2:
            return sq.PauseSchedule(queue=queue, name=name, paused=rng.random() < 0.5, next_ms=later_ms)
        case 3:
            return rq.Purge(queue=queue, states=list(JobState), forget=rng.random() < 0.2)
    fields: dict[str, Any] = {
        "rule": Rule(every_ms=rng.choice([1_000, 2_000])),
        "next_ms": later_ms,
        "limit": rng.choice([None, None, 2]),
        "end_ms": rng.choice([None, None, now_ms + 4_000]),
        "overlap": rng.choice(["allow", "skip"]),
        "source": rng.choice(["", "shop"]),
    }
    return sq.PutSchedule(schedule=make(name, queue, **fields))


@pytest.mark.feature("B8")
async def test_a_name_is_all_of_its_text_also_after_a_nul(harness: Harness) -> None:
    await put(harness, "a\0b")
    harness.pass_ms(1_000)
    assert (await fire(harness, "a\0b")).ok
    assert (await put(harness, "a\0b")).fired == 1
    assert (await get(harness, "a\0b")).fired == 1
