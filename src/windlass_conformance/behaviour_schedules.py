"""Schedules as applications use them: rules, deploys, missed slots, clock changes, pauses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from windlass import ConfigError, Job, Schedule, Windlass
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend.store import Store
from windlass.core.schedule_rules import SCHEDULES_PER_STEP
from windlass.errors import ScheduleNotFoundError
from windlass.testing.clock import START_MS
from windlass.worker.duty import all_steps
from windlass.worker.scheduler import LEADER_HEAD_START_MS, Scheduler
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import QUEUE, Gate, Stage

NEEDS = "schedules"

START = datetime.fromtimestamp(START_MS / 1000, UTC)


class Times:
    """A handler that records when it ran, in seconds after the start of the test."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.seen: list[float] = []

    async def __call__(self, job: Job[Any]) -> None:
        self.seen.append((self._stage.clock.now_ms() - START_MS) / 1000)


async def serve(stage: Stage, handler: Any = None, **options: Any) -> Any:
    """A worker that also fires schedules."""
    return await stage.work(handler, duties=True, **options)


def second_app(stage: Stage, harness: Harness, name: str | None = None) -> Windlass:
    """The application's code after a change, on the same store."""
    app = Windlass("memory://", clock=stage.clock, name=name or stage.app.name)
    app.store = Store(harness.connect(harness.namespace), stage.clock)
    return app


# --- rules ------------------------------------------------------------------------------------------


@pytest.mark.feature("B8", "B12", "B3", "A17")
async def test_an_interval_makes_one_job_per_slot_without_drift(harness: Harness) -> None:
    async with Stage(harness) as stage:
        times = Times(stage)
        await serve(stage, times)
        await stage.queue.upsert_job_scheduler("tick", {"every": 10}, {"data": {"n": 1}})
        await stage.advance(35.5)
        assert times.seen == [10, 20, 30]
        info = await stage.queue.get_job_scheduler("tick")
        assert info is not None
        assert (info.fired, info.next_run, info.last_run) == (
            3,
            START + timedelta(seconds=40),
            START + timedelta(seconds=30),
        )
        job = await stage.queue.get_job(info.last_job_id or "")
        assert job is not None
        assert (job.name, job.data) == ("tick", {"n": 1})
        assert (job.schedule_name, job.slot_ms) == ("tick", START_MS + 30_000)


@pytest.mark.feature("B8")
@pytest.mark.parametrize(
    ("rule", "seen"),
    [
        ({"every": 10}, [0, 10, 20, 30]),
        ({"every": 10, "start": START_MS / 1000 - 3}, [0, 7, 17, 27]),
        ({"every": 10, "start": START_MS / 1000 + 5}, [5, 15, 25, 35]),
        ({"cron": "* * * * *"}, [0, 20]),  # the clock begins 20 s before a minute
        ({"every": 10, "limit": 1}, [0]),
    ],
)
async def test_a_schedule_can_also_run_at_its_start(
    harness: Harness, rule: dict[str, Any], seen: list[float]
) -> None:
    async with Stage(harness) as stage:
        times = Times(stage)
        await serve(stage, times)
        await stage.queue.upsert_job_scheduler("tick", {**rule, "at_start": True})
        await stage.advance(0.5)
        first = [at for at in seen if at <= 0.5]
        assert times.seen == first
        await stage.queue.upsert_job_scheduler("tick", {**rule, "immediately": True})  # as it was: no start
        await stage.advance(35)
        assert times.seen == seen


@pytest.mark.feature("B8")
async def test_a_worker_that_becomes_leader_fires_at_once_what_it_left_to_the_leader(
    harness: Harness,
) -> None:
    async with Stage(harness) as stage:
        times, elected = Times(stage), asyncio.Event()
        stage.faults.delay(rq.Elect, until=elected)
        await serve(stage, times)
        await stage.queue.upsert_job_scheduler("tick", {"every": 10, "at_start": True})
        await stage.advance(0.5)
        assert times.seen == []  # no worker leads yet
        elected.set()
        await stage.settle()
        assert times.seen == [0.5]


@pytest.mark.feature("B8", "B10")
async def test_a_cron_rule_runs_by_the_clock_of_its_time_zone(harness: Harness) -> None:
    async with Stage(harness) as stage:
        times = Times(stage)
        await serve(stage, times)
        rule = {"pattern": "38,39 20 * * *", "tz": "Asia/Kolkata"}  # 15:08, 15:09 UTC; it is 15:06:40
        await stage.queue.upsert_job_scheduler("evening", rule, {"name": "report"})
        await stage.advance(240)
        slots = [datetime(2025, 6, 15, 20, minute, tzinfo=ZoneInfo("Asia/Kolkata")) for minute in (38, 39)]
        assert times.seen == [(slot - START).total_seconds() for slot in slots]
        info = await stage.queue.get_job_scheduler("evening")
        assert info is not None
        assert info.next_run == slots[0] + timedelta(days=1)


@pytest.mark.feature("B8", "B10")
@pytest.mark.parametrize("hours", ["*", "0-23"])
async def test_a_cron_rule_of_every_hour_runs_by_the_minutes_of_its_time_zone(
    harness: Harness, hours: str
) -> None:
    async with Stage(harness) as stage:
        times = Times(stage)
        await serve(stage, times)
        rule = {
            "cron": f"38 {hours} * * *",
            "timezone": "Asia/Kolkata",
        }  # half an hour ahead of UTC's minutes
        await stage.queue.upsert_job_scheduler("hourly", rule, {"name": "report"})
        await stage.advance(120)
        slot = datetime(2025, 6, 15, 20, 38, tzinfo=ZoneInfo("Asia/Kolkata"))
        assert times.seen == [(slot - START).total_seconds()]
        info = await stage.queue.get_job_scheduler("hourly")
        assert info is not None
        assert info.next_run == slot + timedelta(hours=1)


@pytest.mark.feature("B8")
async def test_upserting_the_same_rule_changes_no_slot(harness: Harness) -> None:
    async with Stage(harness) as stage:
        times = Times(stage)
        await serve(stage, times)
        for _ in range(5):
            await stage.queue.upsert_job_scheduler("tick", {"every": 10})
            await stage.advance(4)
        assert times.seen == [10, 20]
        assert len(await stage.queue.get_job_schedulers()) == 1


@pytest.mark.feature("B8")
async def test_a_new_rule_is_followed_at_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        times = Times(stage)
        await serve(stage, times)
        await stage.queue.upsert_job_scheduler("tick", {"every": 3_600})
        await stage.advance(5)
        await stage.queue.upsert_job_scheduler("tick", {"every": 2})
        await stage.advance(5)
        assert times.seen == [7, 9]


@pytest.mark.feature("B10")
async def test_a_schedule_keeps_within_its_bounds(harness: Harness) -> None:
    async with Stage(harness) as stage:
        times = Times(stage)
        await serve(stage, times)
        start, end = START + timedelta(seconds=7), START + timedelta(seconds=30)
        await stage.queue.upsert_job_scheduler("a", {"every": 10, "start_date": start, "end_date": end})
        await stage.advance(60)
        assert times.seen == [7, 17, 27]
        times.seen.clear()
        await stage.queue.upsert_job_scheduler("b", Schedule(every=1, limit=4))
        await stage.advance(60)
        assert times.seen == [61, 62, 63, 64]
        info = await stage.queue.get_job_scheduler("b")
        assert info is not None
        assert (info.next_run, info.fired) == (None, 4)


@pytest.mark.feature("B10")
async def test_an_application_can_have_rules_of_its_own(harness: Harness) -> None:
    def doubling(after: datetime) -> datetime | None:
        """1, 2, 4, 8 seconds after the start of the test, and no more."""
        slots = [START + timedelta(seconds=2**n) for n in range(4)]
        return next((slot for slot in slots if slot > after), None)

    async with Stage(harness, schedule_strategies={"doubling": doubling}) as stage:
        times = Times(stage)
        await serve(stage, times)
        await stage.queue.upsert_job_scheduler("s", Schedule(strategy="doubling"))
        await stage.advance(60)
        assert times.seen == [1, 2, 4, 8]
        with pytest.raises(ConfigError):
            await stage.queue.upsert_job_scheduler("s", Schedule(strategy="unknown"))


@pytest.mark.feature("B13")
async def test_a_local_time_that_never_was_fires_at_the_jump_and_one_that_comes_twice_once(
    harness: Harness,
) -> None:
    async with Stage(harness) as stage:
        zone = ZoneInfo("Europe/Berlin")
        ran: list[datetime] = []

        async def handler(job: Job[Any]) -> None:
            ran.append(stage.clock.now().astimezone(zone))

        rule = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
        stage.clock.set(datetime(2025, 3, 30, 0, 59, tzinfo=UTC))
        await serve(stage, handler)
        await stage.queue.upsert_job_scheduler("s", rule)
        await stage.advance(90)
        assert ran == [datetime(2025, 3, 30, 3, 0, tzinfo=zone)]
        info = await stage.queue.get_job_scheduler("s")
        assert info is not None
        assert info.next_run == datetime(2025, 3, 31, 2, 30, tzinfo=zone)
        ran.clear()
        await stage.queue.remove_job_scheduler("s")
        stage.clock.set(datetime(2025, 10, 26, 0, 29, tzinfo=UTC))
        await stage.queue.upsert_job_scheduler("s", rule)
        await stage.advance(90)
        stage.clock.set(datetime(2025, 10, 26, 1, 29, tzinfo=UTC))
        await stage.advance(90)
        assert ran == [datetime(2025, 10, 26, 2, 30, tzinfo=zone)]
        info = await stage.queue.get_job_scheduler("s")
        assert info is not None
        assert info.next_run == datetime(2025, 10, 27, 2, 30, tzinfo=zone)


@pytest.mark.feature("B8")
@pytest.mark.parametrize(
    ("schedule", "template"),
    [
        ({"pattern": "61 * * * *"}, {}),
        ({"pattern": "* * *"}, {}),
        ({"cron": "* * * * *", "every": 5}, {}),
        ({}, {}),
        ({"every": 0}, {}),
        ({"every": 5, "limit": 0}, {}),
        ({"every": 5, "missed": "maybe"}, {}),
        ({"every": 5, "overlap": "maybe"}, {}),
        ({"cron": "* * * * *", "timezone": "Atlantis/Town"}, {}),
        ({"every": 5, "untill": 7}, {}),
        ({"every": 5}, {"opts": {"job_id": "mine"}}),
        ({"every": 5}, {"opts": {"run_at": 1_800_000_000}}),
        ({"every": 5}, {"opts": {"prio": 3}}),
    ],
)
async def test_a_schedule_that_cannot_work_is_refused_and_nothing_is_stored(
    harness: Harness, schedule: dict[str, Any], template: dict[str, Any]
) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(ConfigError):
            await stage.queue.upsert_job_scheduler("s", schedule, template)
        assert await stage.queue.get_job_schedulers() == []


# --- missed slots -----------------------------------------------------------------------------------------


@pytest.mark.feature("B13")
@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", [3_600]),  # the slot at 3,600 is late by 30 s, not missed
        ("once", [600]),
        ("all", [600, 1_200, 1_800, 2_400, 3_000, 3_600]),
    ],
)
async def test_slots_that_nobody_fired_follow_the_missed_rule(
    harness: Harness, missed: Any, expected: list[int]
) -> None:
    async with Stage(harness) as stage:
        await stage.queue.upsert_job_scheduler("s", Schedule(every=600, missed=missed))
        await stage.advance(3_630)  # an hour without any worker
        scheduler = Scheduler(stage.app.store)
        assert await all_steps(scheduler) == len(expected)
        jobs = await stage.queue.get_jobs(newest_first=False)
        assert [job.id for job in jobs] == [f"s.{START_MS + slot * 1_000}" for slot in expected]
        info = await stage.queue.get_job_scheduler("s")
        assert info is not None
        assert info.next_run == START + timedelta(seconds=4_200)
        assert await all_steps(scheduler) == 0


@pytest.mark.feature("B13", "B12")
async def test_a_thousand_missed_slots_are_made_up_for(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.upsert_job_scheduler("s", Schedule(every=1, missed="all"))
        await stage.advance(1_000)
        assert await all_steps(Scheduler(stage.app.store)) == 1_000
        assert await stage.queue.count() == 1_000


@pytest.mark.feature("B12")
async def test_schedules_whose_rules_are_damaged_leave_the_others_on_time(harness: Harness) -> None:
    def raises(after: datetime) -> datetime | None:
        raise RuntimeError("no slot")

    async with Stage(harness, schedule_strategies={"raises": raises}) as stage:
        times = Times(stage)
        await serve(stage, times)
        info = await stage.queue.upsert_job_scheduler("tick", {"every": 5})
        damaged: list[dict[str, Any]] = [
            {"every_ms": 0},
            {"every_ms": -5},
            {"every_ms": None, "cron": "*/0 * * * *"},
            {"every_ms": None, "strategy": "raises"},
        ]
        for number, change in enumerate(damaged):
            rule = msgspec.structs.replace(info.record.rule, **change)
            bad = msgspec.structs.replace(info.record, name=f"bad{number}", rule=rule)
            await stage.app.store.execute(sq.PutSchedule(schedule=bad))
        await stage.advance(21)
        assert times.seen == [5, 10, 15, 20]


@pytest.mark.feature("B12")
async def test_many_schedules_that_a_worker_cannot_compute_leave_the_others_on_time(harness: Harness) -> None:
    async with Stage(harness) as stage:
        info = await stage.queue.upsert_job_scheduler("tick", {"every": 5})
        rule = msgspec.structs.replace(info.record.rule, every_ms=None, strategy="of-another-app")
        for number in range(SCHEDULES_PER_STEP + 1):
            stuck = msgspec.structs.replace(info.record, name=f"stuck{number}", rule=rule, next_ms=START_MS)
            await stage.app.store.execute(sq.PutSchedule(schedule=stuck))
        await stage.advance(6)
        scheduler = Scheduler(stage.app.store)
        for _ in range(2):
            await scheduler.step()
        assert await stage.queue.count() == 1


# --- several nodes ------------------------------------------------------------------------------------------


@pytest.mark.feature("B12")
async def test_any_number_of_workers_fire_each_slot_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        slots: list[int | None] = []

        async def handler(job: Job[Any]) -> None:
            slots.append(job.slot_ms)

        for _ in range(4):
            await serve(stage, handler)
        await stage.queue.upsert_job_scheduler("tick", {"every": 1})
        await stage.advance(60.5)
        assert slots == [START_MS + n * 1_000 for n in range(1, 61)]


@pytest.mark.feature("B12")
async def test_without_a_leader_the_others_fire_a_second_later(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.upsert_job_scheduler("tick", {"every": 5})
        follower = Scheduler(stage.app.store, leads=lambda: False)
        await stage.advance(5)
        assert await all_steps(follower) == 0
        assert follower.every_ms == LEADER_HEAD_START_MS
        await stage.advance(ms=LEADER_HEAD_START_MS)
        assert await all_steps(follower) == 1


@pytest.mark.feature("B12", "B3")
async def test_a_worker_that_starts_and_stops_leaves_the_others_on_time(harness: Harness) -> None:
    async with Stage(harness) as stage:
        times = Times(stage)
        leader = await serve(stage, times)
        await stage.settle()
        await serve(stage, times)
        await stage.queue.upsert_job_scheduler("tick", {"every": 10})
        await stage.advance(25)
        await leader.close()
        await stage.advance(20)
        assert len(times.seen) == 4
        assert times.seen[:2] == [10, 20]
        assert all(0 <= seen - slot <= 1.1 for seen, slot in zip(times.seen[2:], (30, 40), strict=True))


# --- overlap, pause, run now ------------------------------------------------------------------------------


@pytest.mark.feature("B11")
async def test_without_overlap_the_next_job_waits_for_the_one_before(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> None:
            await gate.pass_through()

        await serve(stage, handler)
        await stage.queue.upsert_job_scheduler("s", Schedule(every=10, overlap="skip"))
        await stage.advance(45)
        assert gate.count == 1
        gate.open()
        await stage.advance(10)
        assert gate.count == 2
        info = await stage.queue.get_job_scheduler("s")
        assert info is not None
        assert (info.fired, info.skipped) == (2, 3)


@pytest.mark.feature("B14")
async def test_a_paused_schedule_is_silent_and_makes_up_for_nothing(harness: Harness) -> None:
    async with Stage(harness) as stage:
        times = Times(stage)
        await serve(stage, times)
        await stage.queue.upsert_job_scheduler("tick", Schedule(every=10, missed="all"))
        await stage.advance(15)
        await stage.queue.pause_job_scheduler("tick")
        await stage.advance(100)
        info = await stage.queue.get_job_scheduler("tick")
        assert info is not None
        assert info.paused
        await stage.queue.resume_job_scheduler("tick")
        await stage.advance(10)
        assert times.seen == [10, 120]


@pytest.mark.feature("B14")
async def test_a_schedule_can_be_run_now(harness: Harness) -> None:
    async with Stage(harness) as stage:
        times = Times(stage)
        await serve(stage, times)
        await stage.queue.upsert_job_scheduler("tick", {"every": 10}, {"name": "beat", "data": [1, 2]})
        await stage.advance(3)
        job = await stage.queue.run_job_scheduler("tick")
        assert (job.name, job.data) == ("beat", [1, 2])
        await stage.advance(17)
        assert times.seen == [3, 10, 20]
        info = await stage.queue.get_job_scheduler("tick")
        assert info is not None
        assert (info.fired, info.last_run) == (2, START + timedelta(seconds=20))


@needs("unique")
@pytest.mark.feature("B14", "D5")
async def test_running_a_schedule_whose_unique_key_is_held_returns_the_holder(harness: Harness) -> None:
    async with Stage(harness) as stage:
        template = {"name": "beat", "opts": {"unique": "k"}}
        await stage.queue.upsert_job_scheduler("tick", {"every": 10}, template)
        holder = await stage.queue.add("beat", unique="k")
        assert (await stage.queue.run_job_scheduler("tick")).id == holder.id
        assert await stage.queue.count() == 1


@pytest.mark.feature("B9", "B14")
async def test_a_schedule_that_is_not_there_is_told_so(harness: Harness) -> None:
    async with Stage(harness) as stage:
        queue = stage.queue
        assert await queue.get_job_scheduler("none") is None
        assert await queue.remove_job_scheduler("none") is False
        for change in (queue.pause_job_scheduler, queue.resume_job_scheduler, queue.run_job_scheduler):
            with pytest.raises(ScheduleNotFoundError):
                await change("none")


# --- schedules in the code ----------------------------------------------------------------------------------


@pytest.mark.feature("B8", "B9")
@needs("priority")
async def test_a_task_with_a_cron_rule_runs_by_itself(harness: Harness) -> None:
    async with Stage(harness) as stage:
        ran: list[str] = []

        @stage.app.task(name="report", queue=QUEUE, cron="*/10 * * * *", priority=5)
        async def report(kind: str = "short") -> None:
            ran.append(kind)

        stage.app.schedule("long report", {"cron": "0 * * * *"}, report, kind="long")
        stage.clock.set(datetime(2025, 6, 15, 15, 49, 30, tzinfo=UTC))
        await serve(stage)
        await stage.advance(700)
        assert sorted(ran) == ["long", "short", "short"]
        infos = await stage.app.schedules()
        assert [(info.name, info.task, info.source) for info in infos] == [
            ("long report", "report", stage.app.name),
            ("report", "report", stage.app.name),
        ]


@pytest.mark.feature("B8", "B9")
async def test_a_deploy_removes_what_the_code_no_longer_has_and_nothing_else(harness: Harness) -> None:
    async with Stage(harness) as stage:
        for name in ("stays", "goes"):
            stage.app.schedule(name, {"every": 60}, "n", queue=QUEUE)
        await stage.queue.upsert_job_scheduler("by-hand", {"every": 60})
        stranger = second_app(stage, harness, name="bank")
        stranger.schedule("other", {"every": 60}, "n", queue=QUEUE)
        await stranger.deploy_schedules()
        await serve(stage, None)
        assert {info.name for info in await stage.app.schedules()} == {"stays", "goes", "by-hand", "other"}

        deployed = second_app(stage, harness)
        deployed.schedule("stays", {"every": 60}, "n", queue=QUEUE)
        await stage.advance(30)
        await deployed.deploy_schedules()
        infos = {info.name: info for info in await stage.app.schedules()}
        assert set(infos) == {"stays", "by-hand", "other"}
        assert infos["stays"].next_run == START + timedelta(seconds=60)

        emptied = second_app(stage, harness)
        await emptied.deploy_schedules()
        assert {info.name for info in await stage.app.schedules()} == {"by-hand", "other"}
        for app in (stranger, deployed, emptied):
            await app.close()


@pytest.mark.feature("B8")
async def test_a_worker_that_starts_without_its_store_deploys_as_soon_as_it_can(harness: Harness) -> None:
    async with Stage(harness) as stage:
        stage.app.schedule("tick", {"every": 60}, "n", queue=QUEUE)
        stage.faults.refuse(sq.PutSchedule, times=2)
        await serve(stage)
        assert await stage.app.schedules() == []
        await stage.advance(30)
        assert [info.name for info in await stage.app.schedules()] == ["tick"]


@pytest.mark.feature("B8")
async def test_the_code_cannot_declare_a_schedule_that_cannot_work(harness: Harness) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(ConfigError):

            @stage.app.task(queue=QUEUE, cron="nonsense")
            async def never() -> None: ...

        @stage.app.task(name="needs-more", queue=QUEUE)
        async def needs_more(amount: int) -> None: ...

        with pytest.raises(ConfigError):
            stage.app.schedule("s", {"every": 5}, needs_more)
        with pytest.raises(ConfigError):
            stage.app.schedule("s", {"every": 5}, "by-name")
        stage.app.schedule("s", {"every": 5}, needs_more, 3)
        with pytest.raises(ConfigError):
            stage.app.schedule("s", {"every": 5}, "other", queue=QUEUE)


@pytest.mark.feature("B8")
async def test_a_second_schedule_of_a_name_does_not_replace_the_first(harness: Harness) -> None:
    async with Stage(harness) as stage:
        stage.app.schedule("sync", {"every": 60}, "sync", "ada", queue=QUEUE)
        await stage.app.deploy_schedules()
        for every, who in ((60, "bob"), (30, "ada")):
            with pytest.raises(ConfigError, match=r"already has a schedule 'sync'.*choose another name"):
                stage.app.schedule("sync", {"every": every}, "sync", who, queue=QUEUE)
        stage.app.schedule("sync", {"every": 60}, "sync", "ada", queue=QUEUE)  # the same one again
        assert [info.every for info in await stage.app.schedules()] == [60]
