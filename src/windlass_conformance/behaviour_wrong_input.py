"""Wrong input raises a typed error at once and changes nothing; callbacks that fail stop no worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from windlass import (
    ConfigError,
    FlowProducer,
    Job,
    JobState,
    QueueEvents,
    StorageError,
    WindlassError,
    Worker,
    current_job,
)
from windlass.core.backoff import Backoff
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.option_values import Keep
from windlass_conformance.harness import Harness
from windlass_conformance.live_worker import SURROGATE, Last, Live, raiser
from windlass_conformance.needs import needs


async def test_a_reason_that_is_no_text_is_refused_and_changes_nothing(harness: Harness) -> None:
    async with Live(harness) as live:
        job = await live.add("odd", delay=3_600)
        for reason in (None, 5, b"x", ValueError("x")):
            with pytest.raises(ConfigError, match="reason"):
                await job.cancel(reason)  # type: ignore[arg-type] # the point
            with pytest.raises(ConfigError, match="reason"):
                await live.queue.kill(job.id, reason)  # type: ignore[arg-type] # the point
            with pytest.raises(ConfigError, match="reason"):
                await live.queue.cancel_jobs(state="scheduled", reason=reason)  # type: ignore[arg-type]
        assert await job.get_state() is JobState.SCHEDULED
        await live.work(lambda job: "done")
        await live.check_honest()
        await job.cancel("\ud800" + "x" * 5_000_000)
        await job.refresh()
        assert (job.state, job.record.reason[:7]) == (JobState.CANCELLED, "\\ud800x")
        assert len(job.record.reason) <= 2_000


async def test_options_that_no_store_could_keep_are_refused_and_add_nothing(harness: Harness) -> None:
    odd: list[dict[str, Any]] = [
        {"tags": [SURROGATE]},
        {"tags": ["x" * 129]},
        {"tags": [5]},
        {"group": SURROGATE},
        {"group": "x" * 257},
        {"trace": {"a": SURROGATE}},
        {"trace": {"a": "x" * 100_000}},
        {"job_id": SURROGATE},
        {"unique": SURROGATE},
        {"unique": "x" * 257},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1e30},
        {"delay": 10**400},
        {"timeout": True},
        {"priority": True},
        {"priority": 10**30},
        {"max_attempts": 2.0},
        {"max_attempts": float("nan")},
        {"backoff": Backoff(delay_ms=-1)},
        {"backoff": Backoff(delay_ms=10**30)},
        {"backoff": Backoff(jitter=float("nan"))},
        {"backoff": {"delay": float("inf")}},
        {"keep_completed": Keep(age_ms="x")},  # type: ignore[arg-type] # the point
        {"cost": 1e30},
        {"run_at": float("nan")},
        {"expires_in": 1e300},
        {"lease": "x" * 5_000_000},
    ]
    async with Live(harness) as live:
        for options in odd:
            with pytest.raises(ConfigError) as caught:
                await live.queue.add("odd", **options)
            assert len(str(caught.value)) < 1_000, options
        with pytest.raises(ConfigError):
            await live.queue.add("odd", SURROGATE)
        with pytest.raises(ConfigError):
            await live.queue.add(SURROGATE)
        assert await live.queue.count() == 0


async def test_a_worker_with_an_odd_label_is_refused_and_workers_can_be_listed(harness: Harness) -> None:
    async with Live(harness) as live:
        wrong: Any
        for wrong in (5, None, SURROGATE, "x" * 257):
            with pytest.raises(ConfigError, match="tag"):
                Worker("mail", raiser(lambda: ValueError("x")), url_or_app=live.app, tag=wrong)
        for wrong in (5, "", SURROGATE, "x" * 257):
            with pytest.raises(ConfigError, match="id"):
                Worker("mail", raiser(lambda: ValueError("x")), url_or_app=live.app, id=wrong)
        await live.add("fine")
        worker = await live.work(lambda job: "done", tag="blue", heartbeat=0.05)
        await live.check_honest()
        async with asyncio.timeout(10):
            while not (found := await live.app.workers()):  # noqa: ASYNC110 - there is no event for a beat
                await asyncio.sleep(0.01)
        assert [(info.id, info.tag) for info in found] == [(worker.id, "blue")]


@needs("schedules")
async def test_a_schedule_whose_end_has_passed_is_refused_and_not_kept(harness: Harness) -> None:
    async with Live(harness) as live:
        past = SYSTEM_CLOCK.now_ms() / 1000 - 86_400
        with pytest.raises(ConfigError, match=r"end .* is in the past"):
            await live.queue.upsert_job_scheduler("late", {"every": 60, "end": past})
        assert await live.queue.get_job_schedulers() == []
        # Code that was right when it was written keeps starting.
        live.app.schedule("old", {"every": 60, "end": past}, "honest", queue="mail")
        await live.add("fine")
        await live.work(lambda job: "done")
        await live.check_honest()
        (old,) = await live.queue.get_job_schedulers()
        assert (old.name, old.next_run) == ("old", None)


async def test_a_worker_refuses_tasks_whose_backoff_strategy_it_does_not_have(harness: Harness) -> None:
    async with Live(harness, backoff_strategies={"gentle": lambda n, e: 0}) as live:

        @live.app.task(queue="mail", name="odd", backoff="gentel")
        async def odd() -> None: ...

        @live.app.task(queue="mail", name="mine", backoff="of_the_worker", max_attempts=2)
        async def mine() -> str:
            if current_job().attempt == 1:
                raise ValueError("once")
            return "done"

        theirs = {"of_the_worker": lambda n, e: 0}
        worker = Worker("mail", url_or_app=live.app, backoff_strategies=theirs)
        with pytest.raises(
            ConfigError, match=r"unknown backoff strategy .* of task 'odd' .*did you mean 'gentle'"
        ):
            await worker.start()
        also = {**theirs, "gentel": lambda n, e: 0}
        live.worker = Worker("mail", url_or_app=live.app, backoff_strategies=also)
        await live.worker.start()
        assert await (await mine.enqueue()).result(timeout=20) == "done"


#: Arguments that no verb accepts, or only a few.
ODD = (SURROGATE, None, b"x", "", object(), "x" * 1_000_000, float("nan"), -1, 10**30, True)


def verbs(live: Live, job: Job[Any], odd: Any) -> Iterator[Callable[[], Any]]:
    """Calls of the verbs that users have, each with an odd argument."""
    queue, app = live.queue, live.app
    for verb in ("get_job", "cancel", "kill", "remove", "retry", "get_job_logs"):
        yield partial(getattr(queue, verb), odd)
    for verb in ("get", "remove", "pause", "resume", "run"):
        yield partial(getattr(queue, f"{verb}_job_scheduler"), odd)
    for option in ("name", "state", "tag", "error", "cursor", "limit", "data"):
        yield partial(queue.search_jobs, **{option: odd})
    for option in ("states", "cursor", "limit"):
        yield partial(queue.get_jobs, **{option: odd})
    for option in ("start", "limit"):
        yield partial(queue.get_job_logs, job.id, **{option: odd})
    for option in ("depends_on", "parent"):
        yield partial(queue.add, "n", delay=3_600, **{option: odd})
    yield partial(queue.signal, job.id, odd)
    yield partial(queue.update_result_ttl, job.id, odd)
    yield partial(queue.clean, odd)
    yield partial(queue.clean, 3_600, odd)
    yield partial(job.change_priority, odd)
    yield partial(job.change_delay, odd)
    yield partial(job.log, odd)
    yield partial(queue.search_jobs, query=odd)
    yield partial(app.mark, odd)
    yield partial(app.command_worker, odd, "quiet")


@pytest.mark.parametrize("odd", ODD, ids=[f"{odd!r:.12}" for odd in ODD])
async def test_verbs_take_an_odd_argument_or_refuse_it_with_a_typed_error(harness: Harness, odd: Any) -> None:
    async with Live(harness) as live:
        job = await live.add("odd", delay=3_600)
        for call in verbs(live, job, odd):
            try:
                await call()
            except WindlassError as exc:  # an outage, which a caller would wait for, it is not
                assert not isinstance(exc, StorageError), (call, exc)
                assert len(str(exc)) < 1_000
        await live.work(lambda job: "done")
        await live.check_honest()


@needs("unique")
async def test_keys_that_no_job_can_hold_are_refused_and_so_are_pages_that_no_list_has(
    harness: Harness,
) -> None:
    async with Live(harness) as live:
        queue = live.queue
        await queue.add("send", unique="a\0b", delay=3_600)
        wrong: Any
        for wrong in (SURROGATE, "", "x" * 257, None, 5, ["a"]):
            with pytest.raises(ConfigError, match="key"):
                await queue.get_unique_holder(wrong)
            with pytest.raises(ConfigError, match="key"):
                await queue.free_unique_key(wrong)
        for wrong in (SURROGATE, 5, ["a"]):
            with pytest.raises(ConfigError, match="cursor"):
                await queue.list_unique_keys(wrong)
        for wrong in (-1, 0, 1_001, 2**63, True, None, "1", float("nan")):
            with pytest.raises(ConfigError, match="limit"):
                await queue.list_unique_keys(limit=wrong)
        assert [holder.key for holder in await queue.list_unique_keys("", 1)] == ["a\0b"]
        assert await queue.free_unique_key("a\0b")


@needs("revoked_tasks")
async def test_a_revocation_with_an_odd_flag_is_refused_and_other_limits_stay(harness: Harness) -> None:
    async with Live(harness) as live:
        await live.queue.set_global_concurrency(3)
        wrong: Any
        for wrong in (1, 0, None, "yes", []):
            with pytest.raises(ConfigError, match="once"):
                await live.queue.revoke_task("odd", once=wrong)
        await live.queue.pause()  # reads the limits that are stored
        assert await live.queue.get_global_concurrency() == 3
        assert await live.queue.revoked_tasks() == {}


async def test_events_after_what_is_no_event_id_are_refused_at_once(harness: Harness) -> None:
    async with Live(harness) as live:
        await live.queue.publish_event("custom")
        wrong: Any
        for wrong in (-1, True, "1", 1.0, float("nan"), float("inf"), 2**53 + 1, 2**63 - 1, 2**64, []):
            with pytest.raises(ConfigError, match="after"):
                live.queue.events(wrong)
            with pytest.raises(ConfigError, match="after"):
                QueueEvents("mail", live.app, after=wrong)
        async with aclosing(live.queue.events(0)) as events:
            assert (await anext(events)).type == "custom"


@needs("streams")
async def test_output_after_what_is_no_chunk_is_refused_at_once(harness: Harness) -> None:
    async with Live(harness) as live:
        job = await live.queue.add("odd")
        wrong: Any
        for wrong in (-1, None, True, "1", float("nan"), float("inf"), 2**53 + 1, 2**63 - 1, 2**64):
            with pytest.raises(ConfigError, match="after"):
                live.queue.read_stream(job.id, wrong)


@needs("metrics")
async def test_figures_of_a_task_that_no_job_can_have_are_refused(harness: Harness) -> None:
    async with Live(harness) as live:
        wrong: Any
        for wrong in (SURROGATE, 5, ["a"]):
            with pytest.raises(ConfigError, match="task"):
                await live.queue.stats_for_task(wrong)
            with pytest.raises(ConfigError, match="task"):
                await live.queue.get_rollups(task=wrong)
            with pytest.raises(ConfigError, match="task"):
                await live.queue.get_metrics("completed", task=wrong)
        assert (await live.queue.stats_for_task(None)).total == 0
        assert (await live.queue.stats_for_task("none")).total == 0


@needs("unique")
async def test_a_key_with_an_odd_flag_is_refused_and_adds_nothing(harness: Harness) -> None:
    async with Live(harness) as live:
        wrong: Any
        for wrong in (1, None, "yes", []):
            with pytest.raises(ConfigError, match="extend"):
                await live.queue.add("odd", unique={"key": "k", "ttl": 60, "extend": wrong})
        assert await live.queue.get_jobs() == []
        assert await live.queue.list_unique_keys() == []


@needs("schedules")
async def test_a_schedule_or_template_that_no_store_could_keep_is_refused(harness: Harness) -> None:
    async with Live(harness) as live:
        wrong: Any
        for wrong in (0, -1, 2.0, True, "1", 10**12 + 1, 2**64):
            with pytest.raises(ConfigError, match="limit"):
                await live.queue.upsert_job_scheduler("odd", {"every": 60, "limit": wrong})
        for wrong in ("x", b"x", [1], {"opts": "x"}, {"opts": [1]}, {1: 2}, {"opts": {1: 2}}):
            with pytest.raises(ConfigError):
                await live.queue.upsert_job_scheduler("odd", {"every": 60}, wrong)
        assert await live.queue.get_job_schedulers() == []
        await live.queue.upsert_job_scheduler("fine", {"every": 60, "limit": 10**12}, {"opts": None})


@needs("flows")
async def test_a_flow_with_an_odd_part_is_refused_and_adds_nothing(harness: Harness) -> None:
    deep: dict[str, Any] = {"name": "odd"}
    for _ in range(3_000):
        deep = {"name": "odd", "children": [deep]}
    odd: list[dict[str, Any]] = [
        {"opts": "x"},
        {"options": [1]},
        {"opts": {1: 2}},
        {"children": 5},
        {"children": "ab"},
        {"children": {"name": "child"}},
        {"then": 5},
        {"children": [deep]},
    ]
    async with Live(harness) as live:
        flows = FlowProducer(live.app)
        for part in odd:
            with pytest.raises(ConfigError):
                await flows.add({"name": "odd", "queue": "mail", **part})
        assert await live.queue.get_jobs() == []
        empty = {"opts": None, "options": None, "children": None, "then": None}
        await flows.add({"name": "fine", "queue": "mail", **empty})
        assert [job.name for job in await live.queue.get_jobs()] == ["fine"]


async def test_a_list_nested_without_end_is_refused_where_a_name_is_wanted(harness: Harness) -> None:
    endless: Any = []
    for _ in range(10_000):
        endless = [endless]
    async with Live(harness) as live:
        with pytest.raises(ConfigError, match="on_failure"):
            await live.queue.add("odd", depends_on=[("mail", "other")], on_failure=endless)
        with pytest.raises(ConfigError, match="timezone"):
            await live.queue.get_daily_totals(timezone=endless)
        with pytest.raises(ConfigError, match="search"):
            await live.queue.search_jobs(query=endless)


async def test_flags_are_true_or_false(harness: Harness) -> None:
    async with Live(harness) as live:
        job = await live.queue.add("odd", delay=3_600)
        wrong: Any
        for wrong in (SURROGATE, None, 1, "no", []):
            for delete in (partial(live.queue.remove, job.id), job.remove, live.queue.obliterate):
                with pytest.raises(ConfigError, match="force"):
                    await delete(force=wrong)
            for read in (live.queue.get_jobs, live.queue.search_jobs):
                with pytest.raises(ConfigError, match="newest_first"):
                    await read(newest_first=wrong)
        assert await job.get_state() is JobState.SCHEDULED


async def test_callbacks_that_raise_anything_stop_no_worker(harness: Harness) -> None:
    def leak(*facts: Any) -> None:
        raise asyncio.CancelledError

    def last(*facts: Any) -> None:
        raise Last("x")

    async with Live(harness) as live:
        odd = await live.add("odd")
        told = {"active": last, "completed": leak, "retrying": last, "failed": leak}
        await live.work(raiser(lambda: ValueError("x")), told)
        await live.ends(odd)
        more = await live.add("more")
        await live.ends(more)


async def test_callbacks_that_answer_with_anything_stop_no_worker(harness: Harness) -> None:
    class Odd:
        @property  # type: ignore[misc] # that is the point
        def __class__(self) -> Any:
            raise RuntimeError("no class")

    async def last() -> None:
        raise Last("x")

    async with Live(harness) as live:
        odd = await live.add("odd")
        events = ("ready", "active", "completed", "retrying", "failed", "drained")
        told = {event: lambda *facts: Odd() for event in events}
        worker = await live.work(raiser(lambda: ValueError("x")), told)
        worker.on("completed", lambda *facts: last())
        await live.ends(odd)
        more = await live.add("more")
        await live.ends(more)


async def test_context_that_cannot_travel_refuses_the_add(harness: Harness) -> None:
    locale: ContextVar[str] = ContextVar("locale")
    async with Live(harness) as live:
        live.app.carry(locale)
        for odd in (SURROGATE, "x" * 100_000):
            reset = locale.set(odd)
            with pytest.raises(ConfigError):
                await live.queue.add("odd")
            locale.reset(reset)
        assert await live.queue.count() == 0
        await live.add("fine")
        await live.work(lambda job: "done")
        await live.check_honest()
