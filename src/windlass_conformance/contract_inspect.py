"""Reading jobs and queues: by id, by page, counts."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.backend import requests as rq
from windlass.core.job import ErrorInfo, JobRef
from windlass.core.options import StoredOptions
from windlass.core.order import Sort
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass.errors import ConfigError
from windlass_conformance.harness import QUEUE, START_MS, Harness
from windlass_conformance.needs import needs


async def listed(harness: Harness, **fields: Any) -> list[str]:
    """The ids of every page, in order."""
    ids: list[str] = []
    cursor: str | None = None
    for _ in range(100):
        page = await harness.do(rq.ListJobs(queue=QUEUE, cursor=cursor, **fields))
        ids += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            return ids
    raise AssertionError("the listing never ends")


@pytest.mark.feature("A28", "L3")
async def test_records_are_found_by_reference_in_order_with_gaps(harness: Harness) -> None:
    await harness.add_many("a", "b")
    refs = [JobRef(QUEUE, "b"), JobRef(QUEUE, "no-such-job"), JobRef(QUEUE, "a"), JobRef("nowhere", "a")]
    found = await harness.do(rq.GetJobs(refs=refs))
    assert [job.id if job else None for job in found] == ["b", None, "a", None]


@pytest.mark.feature("A28", "L3")
async def test_asking_for_no_record_answers_nothing(harness: Harness) -> None:
    assert await harness.do(rq.GetJobs(refs=[])) == []


@pytest.mark.feature("A28")
async def test_what_a_caller_does_with_a_record_does_not_reach_the_store(harness: Harness) -> None:
    job = await harness.start("a")
    job.state = JobState.FAILED
    job.errors.append(ErrorInfo())
    found = await harness.get("a")
    assert (found.state, found.errors) == (JobState.ACTIVE, [])


@pytest.mark.feature("A28")
async def test_jobs_are_listed_newest_first_unless_told_otherwise(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    assert await listed(harness) == ["c", "b", "a"]
    assert await listed(harness, newest_first=False) == ["a", "b", "c"]


@pytest.mark.feature("A28")
async def test_the_order_of_a_listing_is_that_of_adding_whatever_happened_since(harness: Harness) -> None:
    await harness.add("a", priority=-5, delay_ms=1)
    await harness.add("b", priority=5)
    await harness.add("c")
    await harness.settle(await harness.take(), Outcome.RETRY)
    harness.pass_ms(1)
    await harness.do(rq.Promote())
    assert await listed(harness, newest_first=False) == ["a", "b", "c"]


@pytest.mark.feature("A28")
@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("limit", [1, 3, 7, 25])
async def test_pages_join_to_the_whole_without_gaps_or_repeats(
    harness: Harness, newest_first: bool, limit: int
) -> None:
    ids = [f"j{n}" for n in range(25)]
    await harness.add_many(*ids)
    wanted = ids[::-1] if newest_first else ids
    assert await listed(harness, limit=limit, newest_first=newest_first) == wanted


@pytest.mark.feature("A28")
async def test_no_page_is_longer_than_its_limit(harness: Harness) -> None:
    await harness.add_many(*(f"j{n}" for n in range(10)))
    page = await harness.do(rq.ListJobs(queue=QUEUE, limit=4))
    assert len(page.jobs) <= 4 and page.cursor is not None


@pytest.mark.feature("A28")
async def test_pages_stay_right_while_jobs_come_and_go(harness: Harness) -> None:
    await harness.add_many("a", "b", "c", "d")
    first = await harness.do(rq.ListJobs(queue=QUEUE, limit=2))
    assert [job.id for job in first.jobs] == ["d", "c"]
    await harness.add("e")
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "c"), JobRef(QUEUE, "d")]))
    second = await harness.do(rq.ListJobs(queue=QUEUE, limit=2, cursor=first.cursor))
    assert [job.id for job in second.jobs] == ["b", "a"]


@pytest.mark.feature("A28")
@pytest.mark.parametrize("states", [[], [JobState.WAITING]], ids=["all", "waiting"])
async def test_a_cursor_beyond_either_end_of_a_queue_is_a_place_like_any(
    harness: Harness, states: list[JobState]
) -> None:
    await harness.add_many("a", "b")
    for cursor, newest_first, expected in [
        ("0", True, []),
        ("0", False, ["a", "b"]),
        (str(2**63 - 1), True, ["b", "a"]),
        (str(2**63 - 1), False, []),
    ]:
        request = rq.ListJobs(queue=QUEUE, states=states, cursor=cursor, newest_first=newest_first)
        page = await harness.do(request)
        assert [job.id for job in page.jobs] == expected, (cursor, newest_first)


@pytest.mark.feature("A28", "C6", "B7")
async def test_a_listing_can_be_limited_to_states(harness: Harness) -> None:
    job = await harness.start("retrying")
    await harness.settle(job, Outcome.RETRY, delay_ms=60_000)
    await harness.finish("failed", Outcome.FAIL)
    await harness.finish("completed")
    await harness.start("active")
    await harness.add("scheduled", delay_ms=60_000)
    await harness.add("waiting")
    for state in ("retrying", "failed", "completed", "active", "scheduled", "waiting"):
        assert await listed(harness, states=[JobState(state)]) == [state]
    both = [JobState.FAILED, JobState.ACTIVE]
    assert await listed(harness, states=both) == ["active", "failed"]
    assert await listed(harness, states=[JobState.BLOCKED]) == []


@pytest.mark.feature("A30")
@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("send", ["send"]),
        ("send*", ["send", "send.mail", "sender"]),
        ("*mail", ["send.mail"]),
        ("s?nd", ["send"]),
        ("s*d*", ["send", "send.mail", "sender"]),
        ("*n*d?*?l", ["send.mail"]),
        ("*d*n*", []),
        ("*end*end*", []),
        ("se*end", []),
        ("**", ["send", "send.mail", "sender", "SEND", "100%"]),
        ("*", ["send", "send.mail", "sender", "SEND", "100%"]),
        ("100%", ["100%"]),
        ("%", []),
        ("send_", []),
        ("send\0*", []),
        ("nothing", []),
    ],
)
async def test_a_listing_can_be_limited_to_tasks_by_a_pattern(
    harness: Harness, pattern: str, wanted: list[str]
) -> None:
    for n, task in enumerate(["send", "send.mail", "sender", "SEND", "100%"]):
        await harness.add(f"j{n}", task=task)
    jobs = (await harness.do(rq.ListJobs(queue=QUEUE, task=pattern, newest_first=False))).jobs
    assert [job.task for job in jobs] == wanted


@pytest.mark.feature("A30")
async def test_only_star_and_question_mark_are_special_in_a_pattern(harness: Harness) -> None:
    await harness.add("a", task="run[fast]")
    await harness.add("b", task="runf")
    assert await listed(harness, task="run[fast]") == ["a"]


@pytest.mark.feature("A30")
@pytest.mark.parametrize("pattern", ["*?" * 30 + "j", "*e" * 12 + "*j", "*" * 200 + "j"])
async def test_many_wildcards_in_a_pattern_take_no_longer(harness: Harness, pattern: str) -> None:
    """Trying all combinations would take hours, in which a server answers no other request."""
    await harness.add("a", task="jobs." + "see_the_peerless_" * 12)
    await harness.add("b", task="jobs." + "see_the_peerless_" * 12 + "j")
    assert await listed(harness, task=pattern) == ["b"]


@pytest.mark.feature("A30")
@pytest.mark.parametrize("pattern", ["*a" * 10_000, "a*" * 257, "a" * 20_000])
async def test_a_pattern_that_is_longer_than_any_task_fits_none(harness: Harness, pattern: str) -> None:
    await harness.add("a", task="a" * 256)
    assert await listed(harness, task=pattern) == []
    assert await listed(harness, task="*" * 20_000 + "a*" * 256) == ["a"]


@pytest.mark.feature("A18", "A30")
async def test_a_listing_can_be_limited_to_a_tag(harness: Harness) -> None:
    await harness.add("a", options=StoredOptions(tags=("red", "blue")))
    await harness.add("b", options=StoredOptions(tags=("blue",)))
    await harness.add("c")
    assert await listed(harness, tag="blue") == ["b", "a"]
    assert await listed(harness, tag="red") == ["a"]
    assert await listed(harness, tag="re") == []


@pytest.mark.feature("A30", "C12")
async def test_a_listing_can_be_limited_to_the_class_of_the_last_error(harness: Harness) -> None:
    await harness.add("a")
    for name in ("First", "Last"):
        await harness.settle(await harness.take(), Outcome.RETRY, error=ErrorInfo(error_class=name))
    await harness.add("b")
    assert await listed(harness, error_class="Last") == ["a"]
    assert await listed(harness, error_class="First") == []


async def _fail(harness: Harness, job_id: str, error: ErrorInfo, **how: Any) -> None:
    job = await harness.start(job_id, **how)
    await harness.settle(job, Outcome.FAIL, error=error, reason="attempts")


@pytest.mark.feature("A30")
async def test_a_listing_can_be_limited_to_the_fingerprint_of_the_last_error(harness: Harness) -> None:
    await _fail(harness, "a", ErrorInfo(error_class="E", fingerprint="f1"))
    await _fail(harness, "b", ErrorInfo(error_class="E", fingerprint="f2"))
    await harness.add("c")
    assert await listed(harness, fingerprint="f1") == ["a"]
    assert await listed(harness, fingerprint="f2", error_class="E", limit=1) == ["b"]
    assert await listed(harness, fingerprint="f2", error_class="Other") == []
    assert await listed(harness, fingerprint="f") == []
    assert await listed(harness, fingerprint="f1", sort=Sort.FINISHED) == ["a"]


@pytest.mark.feature("A30")
@pytest.mark.parametrize("limit", [1, 100])
async def test_a_listing_by_the_last_error_finds_jobs_whatever_became_of_them(
    harness: Harness, limit: int
) -> None:
    error = ErrorInfo(error_class="E", fingerprint="f", message="Card 77 is empty")
    for name, outcome in (("over", Outcome.FAIL), ("due", Outcome.RETRY), ("late", Outcome.RETRY)):
        await harness.settle(await harness.start(name), outcome, error=error, delay_ms=60_000)
    await harness.settle(await harness.start("done"), Outcome.RETRY, error=error)
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    await harness.settle(await harness.start("runs"), Outcome.RETRY, error=error)
    await harness.take()
    await harness.settle(await harness.start("waits"), Outcome.RETRY, error=error)
    await harness.add("new")
    wanted = ["waits", "runs", "done", "late", "due", "over"]
    assert await listed(harness, fingerprint="f", limit=limit) == wanted
    assert await listed(harness, error_class="E", newest_first=False, limit=limit) == wanted[::-1]
    by_text = await listed(harness, hints=[rq.Hint("error", "card 77")], limit=limit)
    assert [name for name in by_text if name != "new"] == wanted
    assert await listed(harness, fingerprint="f", states=[JobState.COMPLETED], limit=limit) == ["done"]


@pytest.mark.feature("A30")
async def test_a_removed_job_takes_its_errors_with_it_also_from_a_search(harness: Harness) -> None:
    error = ErrorInfo(error_class="E", fingerprint="f")
    await _fail(harness, "a", error)
    await _fail(harness, "b", error)
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "b")]))
    assert await listed(harness, fingerprint="f") == ["a"]
    await harness.add("b")
    assert await listed(harness, fingerprint="f") == ["a"]


@pytest.mark.feature("A30")
async def test_a_listing_can_be_limited_to_the_worker_that_ran_a_job(harness: Harness) -> None:
    await harness.add("a")
    first = await harness.take()
    await harness.settle(first, Outcome.COMPLETE)
    await harness.add("b")
    assert await listed(harness, worker=first.worker) == ["a"]
    assert await listed(harness, worker="no-such-worker") == []


@needs("groups")
@pytest.mark.feature("A30")
async def test_a_listing_can_be_limited_to_a_group(harness: Harness) -> None:
    await harness.add("a", options=StoredOptions(group="red"))
    await harness.add("b", options=StoredOptions(group="reddish"))
    await harness.add("c")
    assert await listed(harness, group="red") == ["a"]
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    assert await listed(harness, group="red") == ["a"]


@pytest.mark.feature("A30")
@pytest.mark.parametrize("limit", [1, 100])
async def test_a_listing_can_be_limited_to_the_time_of_the_end(harness: Harness, limit: int) -> None:
    for name in ("a", "b", "c"):
        await harness.settle(await harness.start(name), Outcome.COMPLETE)
        harness.pass_ms(1_000)
    await harness.add("waits")
    from_ms = START_MS + 1_000

    async def within(**bounds: int) -> list[str]:
        return await listed(harness, limit=limit, **bounds)

    assert await within(finished_from_ms=from_ms) == ["c", "b"]
    assert await within(finished_to_ms=from_ms) == ["a"]
    assert await within(finished_from_ms=from_ms, finished_to_ms=from_ms + 1_000) == ["b"]
    assert await within(finished_from_ms=from_ms + 5_000) == []


@pytest.mark.feature("A30")
@pytest.mark.parametrize(
    ("hint", "wanted"),
    [
        (rq.Hint("error", "card 77"), {"failed"}),
        (rq.Hint("error", "paymentdeclined"), {"failed"}),
        (rq.Hint("payload", "kim"), {"waits", "packed"}),
        (rq.Hint("any", "kim"), {"waits", "packed"}),
        (rq.Hint("any", "declined"), {"failed", "packed"}),
        (rq.Hint("any", "vip"), {"tagged", "packed"}),
        (rq.Hint("any", "attempt"), {"failed", "packed"}),
        (rq.Hint("any", "100%_"), {"odd", "packed"}),
    ],
)
async def test_a_hint_never_leaves_out_a_job_that_holds_its_text(
    harness: Harness, hint: rq.Hint, wanted: set[str]
) -> None:
    error = ErrorInfo(error_class="PaymentDeclined", message="Card 77 is empty")
    await _fail(harness, "failed", error)
    await harness.add("waits", payload=b'{"kwargs":{"name":"Kim"}}')
    await harness.add("packed", payload=b"no one knows", codec="other")
    await harness.add("tagged", options=StoredOptions(tags=("VIP",)))
    await harness.add("odd", payload=b'{"args":["100%_"]}')
    assert wanted <= set(await listed(harness, hints=[hint])) | {"packed"}
    assert wanted - {"packed"} <= set(await listed(harness, hints=[hint], limit=1))


@pytest.mark.feature("A30")
async def test_filters_work_together_and_across_pages(harness: Harness) -> None:
    tags = StoredOptions(tags=("odd",))
    for n in range(20):
        await harness.add(f"j{n}", task=f"t{n % 2}", options=tags if n % 2 else StoredOptions())
    await harness.claim(10)
    wanted = [f"j{n}" for n in range(19, 9, -1) if n % 2]
    assert await listed(harness, states=[JobState.WAITING], task="t*", tag="odd", limit=2) == wanted


@pytest.mark.feature("A28")
async def test_an_unknown_queue_lists_nothing(harness: Harness) -> None:
    assert await harness.do(rq.ListJobs(queue="nowhere")) == rq.Page([], None)


@pytest.mark.feature("A28", "E5", "L4")
async def test_a_listing_does_not_show_results_past_their_time(harness: Harness) -> None:
    job = await harness.start("a", options=StoredOptions(result_ttl_ms=10))
    await harness.settle(job, Outcome.COMPLETE, result=b"1")
    assert (await harness.do(rq.ListJobs(queue=QUEUE))).jobs[0].result == b"1"
    harness.pass_ms(10)
    assert (await harness.do(rq.ListJobs(queue=QUEUE))).jobs[0].result is None


@pytest.mark.feature("A28")
async def test_counts_name_every_state(harness: Harness) -> None:
    await harness.start("active")
    await harness.add_many("w1", "w2")
    await harness.add("s", delay_ms=60_000)
    counts = await harness.do(rq.CountJobs(queue=QUEUE))
    wanted = dict.fromkeys(JobState, 0)
    wanted |= {JobState.ACTIVE: 1, JobState.WAITING: 2, JobState.SCHEDULED: 1}
    assert counts == wanted


@pytest.mark.feature("A28")
async def test_an_unknown_queue_counts_nothing(harness: Harness) -> None:
    assert await harness.do(rq.CountJobs(queue="nowhere")) == dict.fromkeys(JobState, 0)


@pytest.mark.feature("A28", "J12")
async def test_queues_are_listed_by_name_with_their_counts(harness: Harness) -> None:
    await harness.add_many("a", "b", queue="zebra")
    await harness.start("c", "ant")
    await harness.do(rq.PauseQueue(queue="zebra", paused=True))
    infos = await harness.do(rq.ListQueues())
    assert [(info.name, info.paused) for info in infos] == [("ant", False), ("zebra", True)]
    assert {state: n for state, n in infos[1].counts.items() if n} == {"waiting": 2}
    assert set(infos[0].counts) == {state.value for state in JobState}


@pytest.mark.feature("Q7")
async def test_a_queue_tells_since_when_its_oldest_job_is_ready(harness: Harness) -> None:
    await harness.add("first", delay_ms=10)
    harness.pass_ms(20)
    await harness.add("second", priority=5)
    (info,) = await harness.do(rq.ListQueues())
    assert info.oldest_ready_ms == START_MS + 20
    await harness.do(rq.Promote())
    (info,) = await harness.do(rq.ListQueues())
    assert info.oldest_ready_ms == START_MS + 10
    await harness.claim(2)
    (info,) = await harness.do(rq.ListQueues())
    assert info.oldest_ready_ms is None


@pytest.mark.feature("A28")
async def test_a_queue_whose_jobs_are_all_gone_stays_known(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    assert [info.name for info in await harness.do(rq.ListQueues())] == [QUEUE]


@pytest.mark.feature("A28")
async def test_looking_changes_nothing(harness: Harness) -> None:
    await harness.start("a")
    await harness.add("b", delay_ms=1)
    before = [await harness.get("a"), await harness.get("b")]
    mark = await harness.mark()
    harness.pass_ms(100_000)
    await listed(harness)
    looks: list[rq.AnyRequest] = [
        rq.CountJobs(queue=QUEUE),
        rq.ListQueues(),
        rq.ReadCounters(),
        rq.ListWorkers(),
    ]
    for look in looks:
        await harness.do(look)
    assert [await harness.get("a"), await harness.get("b")] == before
    assert await harness.mark() == mark


@pytest.mark.feature("A28")
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_scheduled_and_retrying_jobs_are_listed_by_the_time_when_they_are_due(
    harness: Harness, limit: int
) -> None:
    await harness.add("late", delay_ms=60_000)
    await harness.add("soon", delay_ms=10_000)
    await harness.add("soon too", delay_ms=10_000)
    await harness.settle(await harness.start("again"), Outcome.RETRY, delay_ms=30_000)
    await harness.add("waits")
    order = ["soon", "soon too", "again", "late"]
    assert await listed(harness, sort=Sort.DUE, newest_first=False, limit=limit) == order
    assert await listed(harness, sort=Sort.DUE, limit=limit) == order[::-1]
    retrying = [JobState.RETRYING]
    assert await listed(harness, sort=Sort.DUE, states=retrying, limit=limit) == ["again"]


@pytest.mark.feature("A28")
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_finished_jobs_are_listed_by_the_time_of_their_end(harness: Harness, limit: int) -> None:
    await harness.add_many("first added", "second added", "cancelled")
    first, second = await harness.claim(2)
    harness.pass_ms(5)
    await harness.settle(second, Outcome.FAIL)
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "cancelled")]))
    harness.pass_ms(5)
    await harness.settle(first, Outcome.COMPLETE)
    await harness.add("waits")
    both = [JobState.FAILED, JobState.COMPLETED]
    assert await listed(harness, sort=Sort.FINISHED, states=both, limit=limit) == [
        "first added",
        "second added",
    ]
    assert await listed(harness, sort=Sort.FINISHED, states=both, limit=limit, newest_first=False) == [
        "second added",
        "first added",
    ]
    assert await listed(harness, sort=Sort.FINISHED, states=[JobState.FAILED]) == ["second added"]


@pytest.mark.feature("A28")
@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_listing_by_time_finds_what_stands_behind_many_others(harness: Harness, limit: int) -> None:
    for at in range(30):
        await harness.add(f"{at}", task="rare" if at in (4, 17, 29) else "usual", delay_ms=1_000 + at // 2)
    assert await listed(harness, sort=Sort.DUE, task="rare", limit=limit) == ["29", "17", "4"]
    assert await listed(harness, sort=Sort.DUE, task="rare", limit=limit, newest_first=False) == [
        "4",
        "17",
        "29",
    ]


@pytest.mark.feature("A28")
async def test_pages_by_time_continue_after_a_job_that_left_the_list(harness: Harness) -> None:
    for at, name in enumerate(("a", "b", "c", "d"), 1):
        await harness.add(name, delay_ms=at * 10_000)
    request = rq.ListJobs(queue=QUEUE, sort=Sort.DUE, newest_first=False, limit=2)
    first = await harness.do(request)
    assert [job.id for job in first.jobs] == ["a", "b"]
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "b")]))
    request.cursor = first.cursor
    assert [job.id for job in (await harness.do(request)).jobs] == ["c", "d"]


@pytest.mark.parametrize(
    ("sort", "state"), [(Sort.DUE, JobState.WAITING), (Sort.FINISHED, JobState.SCHEDULED)]
)
async def test_a_listing_by_a_time_that_the_states_do_not_have_is_refused(
    harness: Harness, sort: Sort, state: JobState
) -> None:
    with pytest.raises(ConfigError, match="sort"):
        await harness.do(rq.ListJobs(queue=QUEUE, sort=sort, states=[state]))
