"""An add that is answered ``replaced``: the job that holds the key takes data and options of the new add.

A job that has run before does not take options that it has used already; the answer names these.
"""

from __future__ import annotations

from typing import Any

import pytest

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.backoff import Backoff
from windlass.core.edges import Dependency
from windlass.core.job import JobRecord
from windlass.core.limit_rules import GroupInfo, GroupLimits
from windlass.core.option_values import Keep, StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, START_MS, Harness

NEEDS = "unique"


def keyed(mode: str = "keep_last", ttl_ms: int | None = None, **options: Any) -> StoredOptions:
    """Options with the unique key of these tests."""
    return StoredOptions(unique=StoredUnique(key="k", mode=UniqueMode(mode), ttl_ms=ttl_ms), **options)


async def replace(harness: Harness, options: StoredOptions, **fields: Any) -> tuple[rq.Added, JobRecord]:
    """Add again with the key that job ``a`` holds; return the answer and the job after it."""
    answer = await harness.add("b", options=options, **fields)
    assert answer.outcome is AddOutcome.REPLACED
    assert await harness.find("b") is None
    job = await harness.get("a")
    assert answer.record == job
    return answer, job


async def limit(harness: Harness, group: str, **limits: Any) -> None:
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group=group, limits=GroupLimits(**limits)))


async def groups(harness: Harness) -> list[GroupInfo]:
    return (await harness.do(lrq.ListGroups(queue=QUEUE))).groups


# --- what a job that never ran takes ------------------------------------------------------------------


@pytest.mark.feature("D5", "D8")
async def test_a_replaced_job_takes_the_options_of_the_new_add(harness: Harness) -> None:
    await harness.add("a", options=keyed(tags=("old",), keep_id_ms=9_000))
    options = keyed(
        tags=("red", "blue"),
        max_attempts=7,
        backoff=Backoff(type="fixed", delay_ms=100),
        timeout_ms=5_000,
        lease_ms=1_000,
        stall_delay_ms=70,
        result_ttl_ms=60,
        keep_completed=Keep(10, 1),
        keep_failed=Keep(20, 2),
        trace={"a": "b"},
    )
    answer, job = await replace(harness, options, task="other", payload=b"[2]", priority=3)
    assert answer.not_taken == ()
    assert job.options == options
    assert (job.task, job.payload, job.priority) == ("other", b"[2]", 3)


@pytest.mark.feature("D5", "D8")
async def test_a_replaced_job_takes_delay_and_time(harness: Harness) -> None:
    await harness.add("a", options=keyed())
    answer, job = await replace(harness, keyed(), delay_ms=500)
    assert (answer.state, answer.due_ms) == (JobState.SCHEDULED, START_MS + 500)
    answer, job = await replace(harness, keyed(), run_at_ms=START_MS + 80)
    assert (job.state, job.due_ms) == (JobState.SCHEDULED, START_MS + 80)
    assert await harness.claim() == []
    answer, job = await replace(harness, keyed())  # without any: it is ready now
    assert (job.state, job.due_ms, answer.not_taken) == (JobState.WAITING, None, ())
    assert (await harness.take()).id == "a"


@pytest.mark.feature("D5", "D8")
async def test_a_replaced_job_that_waits_keeps_its_place_unless_the_new_add_says_otherwise(
    harness: Harness,
) -> None:
    await harness.add("first")
    await harness.add("a", options=keyed())
    await harness.add("last")
    await replace(harness, keyed(tags=("red",)))
    assert [job.id for job in await harness.claim(2)] == ["first", "a"]


@pytest.mark.feature("D5", "D8")
async def test_a_replaced_job_goes_to_the_front_when_the_new_add_is_lifo(harness: Harness) -> None:
    await harness.add("first")
    await harness.add("a", options=keyed())
    await replace(harness, keyed(lifo=True))
    assert [job.id for job in await harness.claim(2)] == ["a", "first"]


@pytest.mark.feature("D5", "D8")
async def test_a_replaced_job_expires_as_the_new_add_says(harness: Harness) -> None:
    await harness.add("a", options=keyed(), expires_in_ms=100)
    harness.pass_ms(50)
    _, job = await replace(harness, keyed(), expires_in_ms=300)
    assert job.expires_ms == START_MS + 350
    _, job = await replace(harness, keyed())
    assert job.expires_ms is None
    _, job = await replace(harness, keyed(expires_total_ms=700))
    assert job.expires_ms == START_MS + 750
    assert (await harness.take()).expires_ms == START_MS + 750


@pytest.mark.feature("D8")
async def test_a_blocked_job_that_is_replaced_keeps_the_new_delay_for_later(harness: Harness) -> None:
    await harness.add("runs", options=keyed())
    running = await harness.take()
    await harness.add("a", options=keyed())
    _, job = await replace(harness, keyed(), delay_ms=200)
    assert (job.state, job.due_ms) == (JobState.BLOCKED, START_MS + 200)
    await harness.settle(running, Outcome.COMPLETE)
    assert await harness.state("a") is JobState.SCHEDULED
    _, job = await replace(harness, keyed())
    assert job.state is JobState.WAITING


@pytest.mark.feature("D5", "D8")
async def test_the_key_is_held_as_long_as_the_new_add_says(harness: Harness) -> None:
    await harness.add("a", options=keyed(ttl_ms=100))
    harness.pass_ms(60)
    await replace(harness, keyed(ttl_ms=100))
    harness.pass_ms(60)
    assert (await harness.add("c", options=keyed(ttl_ms=100))).outcome is AddOutcome.REPLACED
    await replace(harness, keyed("debounce", 500))
    found = await harness.do(lrq.GetUniqueKey(queue=QUEUE, key="k"))
    assert found is not None
    assert (found.job_id, found.until_ms) == ("a", None)


# --- groups -----------------------------------------------------------------------------------------------


@pytest.mark.feature("D8", "H6")
async def test_a_replaced_job_moves_to_the_group_of_the_new_add(harness: Harness) -> None:
    await limit(harness, "g", concurrency=1)
    await harness.add("a", options=keyed(group="g"))
    await harness.add("next", options=StoredOptions(group="g"))
    assert await harness.state("next") is JobState.PARKED
    answer, job = await replace(harness, keyed(group="h", cost=2))
    assert (job.options.group, job.options.cost, answer.not_taken) == ("h", 2, ())
    assert await harness.state("next") is JobState.WAITING  # its group has room now
    assert [(info.name, info.size, info.waiting) for info in await groups(harness)] == [
        ("g", 1, 1),
        ("h", 1, 1),
    ]
    _, job = await replace(harness, keyed())
    assert job.options.group is None
    assert [info.name for info in await groups(harness)] == ["g"]
    assert {one.id for one in await harness.claim(5)} == {"a", "next"}


@pytest.mark.feature("D8", "H6")
async def test_a_parked_job_that_is_replaced_is_let_into_the_line_of_its_new_group(harness: Harness) -> None:
    await limit(harness, "g", concurrency=1)
    await limit(harness, "full", concurrency=1)
    await harness.add("runs", options=StoredOptions(group="g"))
    await harness.add("other", options=StoredOptions(group="full"))
    await harness.add("a", options=keyed(group="g"))
    assert await harness.state("a") is JobState.PARKED
    _, job = await replace(harness, keyed(group="full"))
    assert job.state is JobState.PARKED
    _, job = await replace(harness, keyed(group="free"))
    assert job.state is JobState.WAITING
    assert [(info.name, info.parked) for info in await groups(harness)] == [
        ("free", 0),
        ("full", 0),
        ("g", 0),
    ]


@pytest.mark.feature("D8")
async def test_a_full_group_is_not_taken_and_the_answer_says_so(harness: Harness) -> None:
    await limit(harness, "full", max_size=1)
    await harness.add("other", options=StoredOptions(group="full"))
    await harness.add("a", options=keyed(group="g"))
    answer, job = await replace(harness, keyed(group="full", cost=3, tags=("red",)))
    assert answer.not_taken == ("group",)
    assert (job.options.group, job.options.cost, job.options.tags) == ("g", 1, ("red",))


@pytest.mark.feature("D8", "H5")
async def test_a_job_with_a_priority_is_not_moved_to_an_ordered_group(harness: Harness) -> None:
    await limit(harness, "ordered", ordered=True)
    await harness.add("a", options=keyed(group="g"), priority=5)
    before = await harness.get("a")
    refused = await harness.add("b", options=keyed(group="ordered"), priority=5)
    assert refused.outcome is AddOutcome.OUT_OF_ORDER
    assert await harness.get("a") == before
    _, job = await replace(harness, keyed(group="ordered"))
    assert (job.options.group, job.priority) == ("ordered", 0)


# --- what was used already --------------------------------------------------------------------------------


@pytest.mark.feature("D8")
async def test_a_job_that_ran_does_not_take_what_it_has_used_already(harness: Harness) -> None:
    await harness.add("a", options=keyed(group="g"))
    await harness.settle(await harness.take(), Outcome.RETRY, delay_ms=500)
    options = keyed(group="h", max_attempts=9, expires_total_ms=900)
    answer, job = await replace(harness, options, delay_ms=80, expires_in_ms=60, payload=b"[2]")
    assert answer.not_taken == ("group", "delay", "expires_in")
    assert (job.state, job.due_ms, job.options.group) == (JobState.RETRYING, START_MS + 500, "g")
    assert (job.payload, job.options.max_attempts) == (b"[2]", 9)
    assert job.expires_ms == START_MS + 900
    answer, job = await replace(harness, keyed(group="g"), run_at_ms=START_MS + 5)
    assert (answer.not_taken, job.due_ms) == (("run_at",), START_MS + 500)
    answer, _ = await replace(harness, keyed(group="g"))
    assert answer.not_taken == ()


@pytest.mark.feature("D8")
async def test_new_dependencies_are_not_taken(harness: Harness) -> None:
    await harness.add("a", options=keyed())
    await harness.add("child", delay_ms=1_000)
    answer, job = await replace(harness, keyed(), depends_on=[Dependency(QUEUE, "child")])
    assert (answer.not_taken, job.state) == (("depends_on",), JobState.WAITING)


@pytest.mark.feature("D8")
async def test_repeating_an_add_that_was_not_taken_whole_answers_as_the_first_time(harness: Harness) -> None:
    await harness.add("a", options=keyed(group="g"))
    await harness.settle(await harness.take(), Outcome.RETRY, delay_ms=500)
    wanted: dict[str, Any] = {"options": keyed(group="h"), "delay_ms": 80, "request_id": "r2"}
    first = await harness.add("b", **wanted)
    assert first.not_taken == ("group", "delay")
    mark = await harness.mark()
    assert await harness.add("b", **wanted) == first
    assert await harness.events(after=mark) == []


@pytest.mark.feature("D8")
async def test_dependencies_and_a_group_that_are_not_taken_are_named_again_when_an_add_is_repeated(
    harness: Harness,
) -> None:
    await harness.add("child", delay_ms=1_000)
    await harness.add("a", options=keyed(group="g"))
    await harness.settle(await harness.take(), Outcome.RETRY, delay_ms=500)
    wanted: dict[str, Any] = {"options": keyed(group="h"), "request_id": "r2"}
    first = await harness.add("b", **wanted, depends_on=[Dependency(QUEUE, "child")])
    assert first.not_taken == ("depends_on", "group")
    assert (await harness.get("a")).options.group == "g"
    again = await harness.add("b", **wanted)
    assert again.not_taken == first.not_taken, "one request has one answer, whatever its repetition says"


@pytest.mark.feature("D8")
async def test_a_repeated_add_does_not_count_what_its_job_used_since(harness: Harness) -> None:
    await harness.add("a", options=keyed())
    wanted: dict[str, Any] = {"options": keyed(), "delay_ms": 80, "request_id": "r2"}
    assert (await harness.add("b", **wanted)).not_taken == ()
    harness.pass_ms(80)
    await harness.settle(await harness.take(), Outcome.RETRY, delay_ms=500)
    assert (await harness.add("b", **wanted)).not_taken == ()
