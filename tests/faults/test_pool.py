"""One pool for many queues: everybody's arrivals are seen, shares are met, caps and reserves hold."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.kit import staged, store_url, until
from windlass import Job, JobState, QueueSpec, Windlass, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from windlass.worker.options import Order


@pytest.fixture(params=["memory", "sqlite", "file"])
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def app(backend_name: str, tmp_path: Path) -> AsyncIterator[Windlass]:
    async with Windlass(store_url(backend_name, tmp_path)) as app:
        yield app


async def fill(app: Windlass, **counts: int) -> None:
    """Add so many jobs to each queue."""
    for queue, count in counts.items():
        await app.queue(queue).add_bulk({"name": "t", "data": {"n": n}} for n in range(count))


class Watch:
    """A handler that knows who ran when and how many at once. Held back until ``let_go``."""

    def __init__(self, *, held: bool = False) -> None:
        self.order: list[str] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.most_at_once = 0
        self._gates: dict[str, asyncio.Event] = {}
        self._held = held

    async def __call__(self, job: Job[Any]) -> None:
        name = job.queue_name
        self.order.append(name)
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        self.most_at_once = max(self.most_at_once, self.running.total())
        await (self._gate(name).wait() if self._held else asyncio.sleep(0))
        self.running[name] -= 1

    def let_go(self, *queues: str) -> None:
        for name in queues:
            self._gate(name).set()

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())


# --- fifty queues ---------------------------------------------------------------------------------


FIFTY = [f"queue-{n}" for n in range(50)]


class TestFiftyQueues:
    backend_name = "sqlite"

    @pytest.mark.feature("J12", "J16")
    async def test_an_arrival_in_any_of_fifty_queues_starts_on_an_idle_worker(self, tmp_path: Path) -> None:
        """No queue is looked at in turn: one wait covers them all, in another process too."""
        async with staged(tmp_path) as stage:
            worker = stage.worker(queues=FIFTY, poll=2)
            await until(lambda: _is_up(stage.app), "the worker is idle")
            rng = random.Random(3)
            expected = []
            for n in range(100):
                name = rng.choice(FIFTY)
                await stage.app.queue(name).add("tell", {"n": n})
                expected.append(f"{n} {name} {worker.pid}")
            for n, name in enumerate(FIFTY, 100):  # and each of them for sure
                await stage.app.queue(name).add("tell", {"n": n})
                expected.append(f"{n} {name} {worker.pid}")
            await until(lambda: len(stage.lines("ran")) >= 150, "every job has started")
            assert sorted(stage.lines("ran")) == sorted(expected)
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0


async def _is_up(app: Windlass) -> bool:
    return bool(await app.workers())


# --- shares ---------------------------------------------------------------------------------------


async def run_until(worker: Worker, watch: Watch, starts: int) -> None:
    """Let the worker start so many jobs, then stop it."""
    await worker.start()
    await until(lambda: len(watch.order) >= starts, f"{starts} jobs have started")
    await worker.close()


@pytest.mark.feature("J12", "J16")
async def test_weights_of_6_3_1_are_met_within_10_percent_over_10000_jobs(app: Windlass) -> None:
    await fill(app, a=9_000, b=6_000, c=4_000)
    watch = Watch()
    worker = Worker({"a": 6, "b": 3, "c": 1}, watch, url_or_app=app)
    await run_until(worker, watch, 10_000)
    got = Counter(watch.order[:10_000])
    for name, wanted in {"a": 6_000, "b": 3_000, "c": 1_000}.items():
        assert abs(got[name] - wanted) <= wanted * 0.1, got
    left = [(await app.queue(name).get_job_counts())[JobState.WAITING] for name in "abc"]
    assert all(left), "all queues were backlogged to the end"


@pytest.mark.feature("J16")
async def test_shares_are_met_in_every_stretch_and_not_only_in_the_long_run(app: Windlass) -> None:
    await fill(app, a=900, b=600, c=400)
    watch = Watch()
    await run_until(Worker({"a": 6, "b": 3, "c": 1}, watch, url_or_app=app, concurrency=7), watch, 1_000)
    for start in range(0, 1_000, 100):
        got = Counter(watch.order[start : start + 100])
        assert abs(got["a"] - 60) <= 6
        assert abs(got["b"] - 30) <= 6
        assert abs(got["c"] - 10) <= 6


@pytest.mark.feature("J16")
async def test_later_queues_do_not_starve_behind_the_first(app: Windlass) -> None:
    names = [f"q{n}" for n in range(10)]
    await fill(app, **dict.fromkeys(names, 100))
    watch = Watch()
    await run_until(Worker(names, watch, url_or_app=app, concurrency=4), watch, 500)
    got = Counter(watch.order[:500])
    assert all(abs(got[name] - 50) <= 5 for name in names), got


@pytest.mark.feature("J16")
async def test_an_idle_queue_neither_saves_up_turns_nor_waits_when_it_wakes(app: Windlass) -> None:
    await fill(app, busy=2_000)
    watch = Watch()
    worker = Worker({"busy": 1, "quiet": 1}, watch, url_or_app=app, concurrency=4)
    await worker.start()
    await until(lambda: len(watch.order) >= 500, "the busy queue had the pool for itself")
    await fill(app, quiet=200)
    await until(lambda: watch.order.count("quiet") == 200, "the quiet one was served")
    await worker.close()
    first = watch.order.index("quiet")
    stretch = Counter(watch.order[first : first + 100])
    assert stretch["quiet"] <= 60, "it takes its share, not its arrears"
    assert stretch["quiet"] >= 40


@pytest.mark.feature("J16")
async def test_strict_order_takes_earlier_queues_first(app: Windlass) -> None:
    await fill(app, low=40, middle=40, high=40)
    watch = Watch()
    worker = Worker(["high", "middle", "low"], watch, url_or_app=app, order="strict", burst=True)
    await worker.run()
    assert watch.order == ["high"] * 40 + ["middle"] * 40 + ["low"] * 40


# --- caps and reserves --------------------------------------------------------------------------------


@pytest.mark.feature("J12", "J16")
@pytest.mark.parametrize("order", ["weighted", "strict"])
async def test_a_cap_is_never_exceeded_and_leaves_slots_to_others(app: Windlass, order: Order) -> None:
    await fill(app, slow=30, quick=300)
    watch = Watch(held=True)
    watch.let_go("quick")
    queues = {"slow": QueueSpec(weight=100, cap=3), "quick": QueueSpec()}
    worker = Worker(queues, watch, url_or_app=app, concurrency=8, order=order)
    await worker.start()
    await until(lambda: watch.order.count("quick") == 300, "the slow queue did not take every slot")
    assert watch.running["slow"] == 3
    watch.let_go("slow")
    await until(lambda: watch.order.count("slow") == 30, "the slow ones have run")
    await worker.close()
    assert watch.most["slow"] == 3
    assert watch.most_at_once <= 8


@pytest.mark.feature("J12", "J16")
async def test_a_cap_is_never_exceeded_under_load(app: Windlass) -> None:
    await fill(app, a=1_000, b=1_000, c=1_000)
    watch = Watch()
    queues = {"a": QueueSpec(cap=1), "b": QueueSpec(weight=9, cap=5), "c": QueueSpec()}
    await Worker(queues, watch, url_or_app=app, concurrency=10, burst=True).run()
    assert Counter(watch.order) == {"a": 1_000, "b": 1_000, "c": 1_000}
    assert watch.most["a"] == 1
    assert watch.most["b"] <= 5
    assert watch.most_at_once <= 10


@pytest.mark.feature("J12", "J16")
@pytest.mark.parametrize("order", ["weighted", "strict"])
async def test_reserved_slots_stay_free_for_their_queue(app: Windlass, order: Order) -> None:
    await fill(app, slow=50)
    watch = Watch(held=True)
    queues = {"slow": QueueSpec(), "urgent": QueueSpec(reserve=2)}
    worker = Worker(queues, watch, url_or_app=app, concurrency=6, order=order)
    await worker.start()
    await until(lambda: watch.running["slow"] == 4, "the slow queue took what is not reserved")
    await fill(app, urgent=5)
    await until(lambda: watch.running["urgent"] == 2, "the urgent ones start though the pool is busy")
    assert watch.running["slow"] == 4
    watch.let_go("urgent")
    await until(lambda: watch.order.count("urgent") == 5, "the urgent ones have run")
    watch.let_go("slow")
    await until(lambda: watch.order.count("slow") == 50, "the rest follows")
    await worker.close()
    assert watch.most["slow"] == 4
    assert watch.most_at_once <= 6


@pytest.mark.feature("J12", "J16")
@pytest.mark.parametrize("order", ["weighted", "strict"])
async def test_an_idle_queue_holds_back_nothing_but_its_reserve(app: Windlass, order: Order) -> None:
    await fill(app, slow=50)
    watch = Watch(held=True)
    queues = {"urgent": QueueSpec(weight=5, reserve=1), "other": QueueSpec(), "slow": QueueSpec()}
    worker = Worker(queues, watch, url_or_app=app, concurrency=6, order=order)
    await worker.start()
    await until(lambda: watch.running["slow"] == 5, "all slots but the reserved one are used", timeout=10)
    await worker.close(force=True)
    assert watch.most["slow"] == 5
