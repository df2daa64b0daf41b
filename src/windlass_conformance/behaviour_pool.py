"""One pool, many queues: order, weights, caps, routing, and tasks without a handler."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from windlass import ConfigError, Job, JobState, QueueSpec, Worker
from windlass.core.probe import Probe
from windlass.testing.faults import probing
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import QUEUE, Gate, Stage, eventually


class Log:
    """A handler that records the jobs it runs."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.queues: list[str] = []

    async def __call__(self, job: Job[Any]) -> None:
        self.names.append(job.name)
        self.queues.append(job.queue_name)


class Crowd:
    """A handler that waits at a gate and counts the concurrent jobs of each queue."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, job: Job[Any]) -> None:
        for key in (job.queue_name, "all"):
            self.running[key] += 1
            self.most[key] = max(self.most[key], self.running[key])
        try:
            await self.gate.pass_through()
        finally:
            for key in (job.queue_name, "all"):
                self.running[key] -= 1


@needs("exact_priority")
@pytest.mark.feature("A9", "G1", "G2")
async def test_higher_priorities_run_first(harness: Harness) -> None:
    async with Stage(harness) as stage:
        for name, priority in (("low", -5), ("plain", 0), ("high", 5), ("plain too", 0)):
            await stage.queue.add(name, priority=priority)
        log = Log()
        await (await stage.work(log, concurrency=1)).drain()
        assert log.names == ["high", "plain", "plain too", "low"]


@pytest.mark.feature("J12", "J16", "J22")
async def test_one_worker_serves_many_queues(harness: Harness) -> None:
    async with Stage(harness) as stage:
        names = [f"q{n}" for n in range(20)]
        for name in names:
            await stage.app.queue(name).add("n")
        log = Log()
        await (await stage.work(log, names)).drain()
        assert sorted(log.queues) == sorted(names)


@pytest.mark.feature("G4", "J12")
async def test_weights_are_met_while_all_queues_have_work(harness: Harness) -> None:
    async with Stage(harness) as stage:
        for name in ("a", "b", "c"):
            await stage.app.queue(name).add_bulk([{"name": "n"} for _ in range(300)])
        log = Log()
        await (await stage.work(log, {"a": 6, "b": 3, "c": 1}, concurrency=10)).drain()
        counts = Counter(log.queues[:400])
        assert [round(counts[name] / 40) for name in ("a", "b", "c")] == [6, 3, 1]


@pytest.mark.feature("G4", "J16")
async def test_strict_order_empties_the_first_queue_first(harness: Harness) -> None:
    async with Stage(harness) as stage:
        for name in ("second", "first"):
            await stage.app.queue(name).add_bulk([{"name": "n"} for _ in range(20)])
        log = Log()
        await (await stage.work(log, ["first", "second"], order="strict", concurrency=3)).drain()
        assert log.queues == ["first"] * 20 + ["second"] * 20


@pytest.mark.feature("H1", "J1")
async def test_no_more_jobs_run_at_once_than_there_are_slots(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add_bulk([{"name": "n"} for _ in range(20)])
        crowd = Crowd()
        worker = await stage.work(crowd, concurrency=4)
        await eventually(lambda: crowd.running["all"] == 4)
        await stage.settle()
        assert (crowd.running["all"], worker.busy) == (4, 4)
        counts = await stage.queue.get_job_counts()
        assert (counts[JobState.ACTIVE], counts[JobState.WAITING]) == (4, 16)
        crowd.gate.open()
        await worker.drain()
        assert crowd.most["all"] == 4


@pytest.mark.feature("J12", "G4")
async def test_a_queues_cap_is_never_exceeded(harness: Harness) -> None:
    async with Stage(harness) as stage:
        for name in ("slow", "quick"):
            await stage.app.queue(name).add_bulk([{"name": "n"} for _ in range(20)])
        crowd = Crowd()
        worker = await stage.work(crowd, {"slow": QueueSpec(cap=2), "quick": QueueSpec()}, concurrency=10)
        await eventually(lambda: crowd.running["all"] == 10)
        assert crowd.running == {"slow": 2, "quick": 8, "all": 10}
        crowd.gate.open()
        await worker.drain()
        assert crowd.most["slow"] == 2


@pytest.mark.feature("J12", "G4")
async def test_reserved_slots_stay_free_for_their_queue(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.app.queue("big").add_bulk([{"name": "n"} for _ in range(20)])
        crowd = Crowd()
        worker = await stage.work(crowd, {"big": QueueSpec(), "urgent": QueueSpec(reserve=2)}, concurrency=6)
        await eventually(lambda: crowd.running["big"] == 4)
        await stage.settle()
        assert crowd.running["big"] == 4
        await stage.app.queue("urgent").add("n")
        await eventually(lambda: crowd.running["urgent"] == 1)
        crowd.gate.open()
        await worker.drain()


@pytest.mark.feature("J13", "J14")
async def test_handlers_are_found_by_queue_and_name_then_by_name(harness: Harness) -> None:
    async with Stage(harness) as stage:
        ran: list[tuple[str, str]] = []

        def handler(label: str) -> Any:
            async def run(job: Job[Any]) -> None:
                ran.append((label, job.queue_name))

            return run

        stage.app.register("clean", handler("everywhere"))
        stage.app.register("clean", handler("here"), queue="here")
        for name in ("here", "there"):
            await stage.app.queue(name).add("clean")
        await (await stage.work(queues=["here", "there"])).drain()
        assert sorted(ran) == [("everywhere", "there"), ("here", "here")]


@pytest.mark.feature("J13")
async def test_names_with_colons_are_never_mixed_up(harness: Harness) -> None:
    async with Stage(harness) as stage:
        ran: list[str] = []

        async def one(job: Job[Any]) -> None:
            ran.append("b:c of a")

        async def two(job: Job[Any]) -> None:
            ran.append("c of any")

        stage.app.register("b:c", one, queue="a")
        stage.app.register("c", two)
        await stage.app.queue("a").add("b:c")
        await stage.app.queue("a").add("c")
        await (await stage.work(queues="a", concurrency=1)).drain()
        assert ran == ["b:c of a", "c of any"]


@pytest.mark.feature("C17", "J13")
async def test_an_unknown_task_is_given_back_and_at_last_fails_with_its_reason(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work()
        job = await stage.queue.add("unknown-task", max_attempts=1)
        waits = []
        for delay in (5, 30, 120, 600):
            await stage.until_state(job, JobState.SCHEDULED)
            assert job.run_at_ms is not None
            waits.append(job.run_at_ms - stage.clock.now_ms())
            await stage.advance(delay)
            await stage.advance(0.1)
        assert waits[0] == 5_000
        assert await job.wait_until_finished() is JobState.FAILED
        assert (job.reason, job.attempts, job.record.misses) == ("unknown_task", 0, 4)


@pytest.mark.feature("C17", "J14")
async def test_a_handler_registered_late_is_seen_by_running_workers(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work()
        job = await stage.queue.add("new-task")
        await stage.until_state(job, JobState.SCHEDULED)

        async def handler(job: Job[Any]) -> str:
            return "known now"

        stage.app.register("new-task", handler)
        await stage.advance(5.1)
        assert await job.result() == "known now"


@pytest.mark.feature("J14")
async def test_a_queue_can_be_added_to_a_running_worker(harness: Harness) -> None:
    async with Stage(harness) as stage:
        log = Log()
        worker = await stage.work(log)
        job = await stage.app.queue("late").add("n")
        await stage.settle()
        assert log.queues == []
        worker.add_queue("late")
        await job.result()
        assert log.queues == ["late"]


@needs("limits")
@pytest.mark.feature("J14", "H12")
async def test_a_queue_that_is_added_to_a_running_worker_has_its_limits_from_the_first_job(
    harness: Harness,
) -> None:
    async with Stage(harness) as stage:
        starts: list[int] = []

        @stage.app.task(queue="late", name="report", rate=(2, 60))
        async def report(n: int) -> None:
            starts.append(n)

        worker = await stage.work(limiter=(3, 60), global_concurrency=5)
        await report.map(range(4))
        worker.add_queue("late")
        await stage.settle()
        late = stage.app.queue("late")
        rate = await late.get_global_rate_limit()
        assert rate is not None
        assert (rate.max, await late.get_global_concurrency(), len(starts)) == (3, 5, 2)
        await stage.advance(61)
        assert len(starts) == 4


@needs("limits")
@pytest.mark.feature("J14", "H12", "V2")
async def test_a_queue_that_is_added_while_a_worker_starts_has_its_limits_from_the_first_job(
    harness: Harness,
) -> None:
    async with Stage(harness) as stage:
        starts: list[str] = []
        added: list[str] = []
        worker = Worker(QUEUE, url_or_app=stage.app, poll=600, heartbeat=600, duties=False, limiter=(3, 60))
        stage.workers.append(worker)

        def add_queue(point: str, facts: dict[str, Any]) -> None:
            name = f"late-{len(added)}"
            stage.app.task(queue=name, name=name, rate=(2, 60))(_noted(starts, name))
            added.append(name)
            worker.add_queue(name)

        probe = Probe()
        probe.arm("worker.opened", add_queue, times=100)
        with probing(probe):
            await worker.start()
        await stage.settle()
        assert len(added) > 2
        for name in added:
            await stage.app.tasks[name].map(range(4))  # the arrival wakes the worker: it listens there, too
        await stage.settle()
        for name in added:
            rate = await stage.app.queue(name).get_global_rate_limit()
            assert rate is not None
            assert (name, rate.max, starts.count(name)) == (name, 3, 2)


def _noted(starts: list[str], name: str) -> Callable[[int], Awaitable[None]]:
    """A function of a task that notes each start of it."""

    async def noted(n: int) -> None:
        starts.append(name)

    return noted


@pytest.mark.feature("J14")
async def test_a_handler_registered_on_a_running_worker_brings_its_queue(harness: Harness) -> None:
    async with Stage(harness) as stage:
        worker = await stage.work()
        job = await stage.app.queue("late").add("n")
        await stage.settle()
        assert (worker.get_queues(), await job.is_waiting()) == ([QUEUE], True)

        async def handler(job: Job[Any]) -> str:
            return f"{job.name} of {job.queue_name}"

        worker.register("n", handler, queue="late")
        assert await job.result() == "n of late"
        assert worker.get_queues() == [QUEUE, "late"]
        assert worker.info().queues == (QUEUE, "late")
        second = await stage.app.queue("late").add("n")  # the arrival wakes it: it listens there, too
        assert await second.result() == "n of late"


@pytest.mark.feature("J14")
async def test_a_handler_of_a_queue_that_is_served_leaves_its_share_alone(harness: Harness) -> None:
    async with Stage(harness) as stage:
        worker = await stage.work(queues={"a": QueueSpec(cap=1), "b": 1}, concurrency=4)
        crowd = Crowd()
        worker.register("n", crowd, queue="a")
        worker.register("n", crowd)
        for name in ("a", "b"):
            await stage.app.queue(name).add_bulk([{"name": "n"} for _ in range(6)])
        await eventually(lambda: crowd.running["all"] == 4)
        assert (crowd.running["a"], worker.get_queues()) == (1, ["a", "b"])
        crowd.gate.open()
        await worker.drain()
        assert crowd.most["a"] == 1


@pytest.mark.feature("J23")
async def test_two_sets_of_queues_in_one_process_have_slots_of_their_own(harness: Harness) -> None:
    async with Stage(harness) as stage:
        slow, quick = Crowd(), Crowd()
        await stage.work(slow, ["reports", "exports"], concurrency=2)
        await stage.work(quick, {"mail": 1}, concurrency=3)
        for name in ("reports", "exports", "mail"):
            await stage.app.queue(name).add_bulk([{"name": "n"} for _ in range(4)])
        await eventually(lambda: (slow.running["all"], quick.running["all"]) == (2, 3))
        await stage.settle()
        assert (slow.running["all"], quick.running["all"]) == (2, 3)
        quick.gate.open()  # one set continues while the other is full
        await stage.workers[1].drain()
        slow.gate.open()
        await stage.workers[0].drain()
        assert (slow.most["all"], slow.most["mail"], quick.most["all"]) == (2, 0, 3)
        counts = [await stage.app.queue(name).get_job_counts() for name in ("reports", "exports", "mail")]
        assert [count[JobState.COMPLETED] for count in counts] == [4, 4, 4]


@pytest.mark.feature("H11")
async def test_a_pause_can_be_awaited_until_what_runs_has_ended_or_forced(harness: Harness) -> None:
    async with Stage(harness) as stage:
        crowd = Crowd()
        worker = await stage.work(crowd)
        job = await stage.queue.add("n")
        await crowd.gate.reached.wait()
        await worker.pause(force=True)
        assert (worker.is_paused, worker.busy) == (True, 1)
        paused = asyncio.ensure_future(worker.pause())
        await stage.settle()
        assert not paused.done()
        crowd.gate.open()
        await paused
        assert worker.busy == 0
        await job.result()
        await worker.pause()  # nothing runs: at once


@pytest.mark.feature("H11")
async def test_a_paused_worker_claims_nothing_and_finishes_what_it_has(harness: Harness) -> None:
    async with Stage(harness) as stage:
        crowd = Crowd()
        worker = await stage.work(crowd)
        first = await stage.queue.add("n")
        await crowd.gate.reached.wait()
        worker.pause()
        second = await stage.queue.add("n")
        crowd.gate.open()
        await first.result()
        await stage.settle()
        assert worker.is_paused and await second.is_waiting()
        worker.resume()
        await second.result()


@pytest.mark.feature("H10")
async def test_a_paused_queue_rests_on_every_worker_until_it_is_resumed(harness: Harness) -> None:
    async with Stage(harness) as stage:
        log = Log()
        await stage.work(log)
        await stage.queue.pause()
        job = await stage.queue.add("n")
        await stage.settle()
        assert await stage.queue.is_paused() and await job.is_waiting()
        await stage.queue.resume()
        await job.result()
        assert not await stage.queue.is_paused()


@pytest.mark.feature("C9")
async def test_a_rate_limited_worker_claims_nothing_for_that_time(harness: Harness) -> None:
    async with Stage(harness) as stage:
        log = Log()
        worker = await stage.work(log)
        await stage.settle()  # a claim that is under way may still bring a job
        worker.rate_limit(30)
        job = await stage.queue.add("n")
        await stage.advance(29)
        assert log.names == []
        await stage.advance(1.1)
        await job.result()


@pytest.mark.feature("J19")
async def test_drain_runs_everything_and_ends(harness: Harness) -> None:
    async with Stage(harness) as stage:
        jobs = await stage.queue.add_bulk([{"name": "n"} for _ in range(30)])
        log = Log()
        worker = Worker(QUEUE, log, url_or_app=stage.app, duties=False)
        await worker.drain()
        assert len(log.names) == len(jobs)
        assert not worker.is_running


@pytest.mark.feature("J15")
async def test_every_handler_gets_the_shared_context(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen: list[Any] = []

        async def handler(job: Job[Any]) -> None:
            seen.append(job.context)

        await stage.work(handler, context={"db": 1})
        await (await stage.queue.add("n")).result()
        assert seen == [{"db": 1}]


@pytest.mark.feature("J20", "R1", "R3")
async def test_a_worker_is_listed_while_it_runs(harness: Harness) -> None:
    async with Stage(harness) as stage:
        worker = await stage.work(Log(), ["mail", "news"], concurrency=7, tag="blue")
        await stage.settle()
        (info,) = await stage.queue.get_workers()
        assert (info.id, info.queues, info.concurrency, info.tag) == (worker.id, ("mail", "news"), 7, "blue")
        assert await stage.app.queue("other").get_workers() == []
        await worker.close()
        assert await stage.queue.get_workers() == []


@pytest.mark.feature("J1")
@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"order": "random"},
        {"concurency": 5},
        {"lease": 0.5},
        {"poll": 0},
        {"grace": -1},
    ],
)
async def test_a_worker_refuses_options_that_cannot_work(harness: Harness, wrong: dict[str, Any]) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(ConfigError):
            Worker(QUEUE, Log(), url_or_app=stage.app, **wrong)


@pytest.mark.feature("J22")
async def test_the_pool_can_grow_and_shrink_while_it_runs(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add_bulk([{"name": "n"} for _ in range(20)])
        crowd = Crowd()
        worker = await stage.work(crowd, concurrency=2)
        await eventually(lambda: crowd.running["all"] == 2)
        worker.resize(5)
        await eventually(lambda: crowd.running["all"] == 5)
        worker.resize(3)
        await stage.settle()
        assert (crowd.running["all"], worker.info().concurrency) == (5, 3), "running jobs continue"
        first, crowd.gate = crowd.gate, Gate()
        first.open()
        await eventually(lambda: crowd.running["all"] == 3 and crowd.gate.count == 3)
        await stage.settle()
        assert crowd.running["all"] == 3
        crowd.gate.open()
        await worker.drain()
        for wrong in (0, 10_001, True):
            with pytest.raises(ConfigError):
                worker.resize(wrong)


@pytest.mark.feature("J22", "Y6")
async def test_a_pool_that_grows_has_threads_for_all_its_slots(harness: Harness) -> None:
    async with Stage(harness) as stage:
        meeting = threading.Barrier(3, timeout=10)
        await stage.queue.add_bulk([{"name": "n"} for _ in range(3)])

        def meet(job: Job[Any]) -> int:
            return meeting.wait()

        worker = await stage.work(meet, concurrency=1)
        worker.resize(3)
        await worker.drain()
        assert (await stage.queue.get_job_counts())[JobState.COMPLETED] == 3


@pytest.mark.feature("J22")
async def test_a_pool_never_shrinks_below_what_is_reserved(harness: Harness) -> None:
    async with Stage(harness) as stage:
        worker = await stage.work(lambda job: None, {"a": QueueSpec(reserve=2), "b": 1}, concurrency=4)
        with pytest.raises(ConfigError, match="slots that queues reserve"):
            worker.resize(1)
        assert worker.concurrency == 4
