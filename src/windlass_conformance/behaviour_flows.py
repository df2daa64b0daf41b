"""Flows as users see them: trees, chains, groups, chords, graphs, dynamic children."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from windlass import (
    RESULT,
    ConfigError,
    FlowProducer,
    Job,
    JobFailedError,
    JobState,
    UnrecoverableError,
    WaitForChildren,
    chain,
    chord,
    current_job,
    group,
    step,
)
from windlass.backend import requests as rq
from windlass.errors import CycleError, DependencyError
from windlass.flows import EdgeStatus
from windlass.testing.kit import drain
from windlass_conformance import targets
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage

NEEDS = "flows"


class Runs:
    """A handler that remembers what ran and returns the job's data; data "bad" fails for good."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.values: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, dict[str, str]] = {}

    async def __call__(self, job: Job[Any]) -> Any:
        self.order.append(job.name)
        self.values[job.name] = await job.get_children_values()
        self.failed[job.name] = await job.get_failed_children()
        if job.data == "bad":
            raise UnrecoverableError("it is bad")
        return job.data


async def run_all(stage: Stage, runs: Any, *queues: str) -> None:
    worker = await stage.work(runs, list(queues or (QUEUE,)))
    await drain(worker)


@pytest.mark.feature("I1", "I2", "I3", "A16")
async def test_a_tree_runs_from_its_leaves_to_its_root(harness: Harness) -> None:
    async with Stage(harness) as stage:
        flow = FlowProducer(stage.app)
        tree = {
            "name": "album",
            "queue": QUEUE,
            "children": [
                {"name": "resize", "queue_name": "images", "data": "cat", "opts": {"priority": 1}},
                {
                    "name": "page",
                    "queue": QUEUE,
                    "data": "p1",
                    "children": [{"name": "resize2", "queue": "images", "data": "dog"}],
                },
            ],
        }
        node = await flow.add(tree)
        assert node.state is JobState.BLOCKED
        assert [child.job.name for child in node.children] == ["resize", "page"]
        runs = Runs()
        await run_all(stage, runs, QUEUE, "images")
        assert await node.job.get_state() is JobState.COMPLETED
        assert runs.order.index("resize2") < runs.order.index("page") < runs.order.index("album")
        page, cat = node.children[1], node.children[0]
        assert runs.values["album"] == {f"images:{cat.id}": "cat", f"{QUEUE}:{page.id}": "p1"}
        assert await node.job.get_children_values() == runs.values["album"]


@pytest.mark.feature("I1", "A16")
async def test_add_takes_children_and_followers_along(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add(
            "middle",
            2,
            children=[{"name": "first", "queue": QUEUE, "data": 1}],
            then=[step("last", 3, queue=QUEUE)],
        )
        assert job.state is JobState.BLOCKED
        runs = Runs()
        await run_all(stage, runs)
        assert runs.order == ["first", "middle", "last"]


@pytest.mark.feature("I1")
async def test_several_flows_are_added_in_one_step(harness: Harness) -> None:
    async with Stage(harness) as stage:
        flow = FlowProducer(stage.app)
        trees = [
            {"name": f"top{n}", "queue": QUEUE, "children": [{"name": "c", "queue": QUEUE}]} for n in range(3)
        ]
        nodes = await flow.add_bulk(trees)
        assert [node.job.name for node in nodes] == ["top0", "top1", "top2"]
        assert await stage.queue.count() == 6
        assert await flow.add_bulk([]) == []
        bad = [*trees, {"name": "x", "queue": QUEUE, "children": [{"queue": QUEUE}]}]
        with pytest.raises(ConfigError):
            await flow.add_bulk(bad)
        assert await stage.queue.count() == 6


@pytest.mark.feature("I5", "I7")
async def test_depends_on_takes_jobs_pairs_and_ids(harness: Harness) -> None:
    async with Stage(harness) as stage:
        first = await stage.queue.add("first", 1)
        other = await stage.app.queue("images").add("other", 2)
        third = await stage.queue.add("third", 3, job_id="third")
        last = await stage.queue.add("last", depends_on=[first, other.ref, third.id])
        assert (last.state, await last.is_blocked()) == (JobState.BLOCKED, True)
        assert await stage.queue.count() == 3
        runs = Runs()
        await run_all(stage, runs, QUEUE, "images")
        assert runs.order[-1] == "last"
        assert sorted(runs.values["last"].values()) == [1, 2, 3]
        assert [edge.status for edge in await last.get_dependencies()] == [EdgeStatus.DONE] * 3
        assert [edge.dependent for edge in await first.get_dependents()] == [last.ref]


@pytest.mark.feature("I5", "I8")
async def test_what_cannot_be_waited_for_is_refused(harness: Harness) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(DependencyError):
            await stage.queue.add("n", depends_on=["ghost"])
        with pytest.raises(ConfigError, match="on_failure"):
            await stage.queue.add("n", depends_on=["x"], on_failure="explode")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="depends_on"):
            await stage.queue.add("n", depends_on=[3])
        assert await stage.queue.count() == 0


@pytest.mark.feature("I4")
async def test_a_chain_of_tasks_hands_its_values_on(harness: Harness) -> None:
    async with Stage(harness) as stage:
        app = stage.app

        @app.task(name="start", queue=QUEUE)
        async def start(number: int) -> int:
            return number

        @app.task(name="double", queue="images")
        async def double() -> int:
            (value,) = (await current_job().get_children_values()).values()
            return int(value) * 2

        last = await chain(start.s(3), double.s(), double.options(priority=2).s()).enqueue()
        await drain(await stage.work(queues=[QUEUE, "images"]))
        assert await last.result() == 12


@pytest.mark.feature("I4")
async def test_a_group_runs_side_by_side(harness: Harness) -> None:
    async with Stage(harness) as stage:
        app = stage.app

        @app.task(name="square", queue=QUEUE)
        async def square(number: int) -> int:
            return number * number

        jobs = await group(*(square.s(n) for n in range(4))).enqueue()
        assert {job.state for job in jobs} == {JobState.WAITING}
        await drain(await stage.work())
        assert [await job.result() for job in jobs] == [0, 1, 4, 9]


@pytest.mark.feature("I4")
async def test_a_chord_runs_its_body_after_its_header(harness: Harness) -> None:
    async with Stage(harness) as stage:
        app = stage.app

        @app.task(name="square", queue="images")
        def square(number: int) -> int:
            return number * number

        @app.task(name="total", queue=QUEUE)
        def total() -> int:
            return sum(current_job().sync.get_children_values().values())

        last = await chord([square.s(n) for n in range(4)], total.s()).enqueue()
        await drain(await stage.work(queues=[QUEUE, "images"]))
        assert await last.result() == 14


@pytest.mark.feature("I4", "I6")
async def test_chains_and_groups_can_be_nested(harness: Harness) -> None:
    async with Stage(harness) as stage:
        parts = {name: step(name, name, queue=QUEUE) for name in "abcdef"}
        inner = chain(parts["c"], parts["d"])
        last = chain(parts["a"], group(parts["b"], inner), parts["e"])
        last.then(parts["f"])
        await FlowProducer(stage.app).add(last)
        runs = Runs()
        await run_all(stage, runs)
        place = {name: at for at, name in enumerate(runs.order)}
        assert place["a"] < place["b"] < place["e"] < place["f"]
        assert place["a"] < place["c"] < place["d"] < place["e"]
        assert sorted(runs.values["e"].values()) == ["b", "d"]


@pytest.mark.feature("I8")
async def test_a_graph_with_several_parents(harness: Harness) -> None:
    async with Stage(harness) as stage:
        tip = step("tip", queue=QUEUE)
        left, right = step("left", queue=QUEUE).after(tip), step("right", queue=QUEUE).after(tip)
        end = step("end", queue=QUEUE).after(left, right)
        node = await FlowProducer(stage.app).add(end)
        assert await stage.queue.count() == 4
        assert node.children[0].children[0] is node.children[1].children[0]
        runs = Runs()
        await run_all(stage, runs)
        assert runs.order == ["tip", "left", "right", "end"]


@pytest.mark.feature("I8")
async def test_steps_in_a_circle_are_refused(harness: Harness) -> None:
    async with Stage(harness) as stage:
        one, two = step("one", queue=QUEUE), step("two", queue=QUEUE)
        one.after(two.after(one))
        with pytest.raises(CycleError):
            await FlowProducer(stage.app).add(one)
        assert await stage.queue.count() == 0


@pytest.mark.feature("I6")
async def test_jobs_that_wait_for_their_parent(harness: Harness) -> None:
    async with Stage(harness) as stage:
        first = await stage.queue.add("analyse", "film")
        await stage.queue.add_bulk([{"name": f"cut{n}", "depends_on": [first]} for n in range(3)])
        runs = Runs()
        await run_all(stage, runs)
        assert runs.order == ["analyse", "cut0", "cut1", "cut2"]
        assert list(runs.values["cut1"].values()) == ["film"]


@pytest.mark.feature("I9")
@pytest.mark.parametrize(
    ("on_failure", "ran", "state"),
    [
        ("fail", False, JobState.FAILED),
        ("ignore", True, JobState.COMPLETED),
        ("continue", True, JobState.COMPLETED),
    ],
)
async def test_what_a_failed_child_does_is_a_choice(
    harness: Harness, on_failure: str, ran: bool, state: JobState
) -> None:
    async with Stage(harness) as stage:
        bad = {"name": "bad", "queue": QUEUE, "data": "bad", "on_failure": on_failure}
        good = {"name": "good", "queue": QUEUE, "data": "fine", "delay": 60}
        node = await FlowProducer(stage.app).add({"name": "top", "queue": QUEUE, "children": [bad, good]})
        runs = Runs()
        worker = await stage.work(runs)
        await drain(worker)
        before_good = "top" in runs.order
        await stage.advance(61)
        await drain(worker)
        assert before_good is (on_failure == "continue")
        assert ("top" in runs.order, await node.job.get_state()) == (ran, state)
        key = f"{QUEUE}:{node.children[0].id}"
        assert await node.job.get_failed_children() == {key: "unrecoverable: UnrecoverableError: it is bad"}
        if state is JobState.FAILED:
            with pytest.raises(JobFailedError, match="dependency_failed"):
                await node.job.result()
        if on_failure == "ignore":
            assert list(runs.values["top"].values()) == ["fine"]


class Splitter:
    """A handler that makes its children while it runs, and adds their values up."""

    def __init__(self, queue: str = "images") -> None:
        self.runs: Counter[str] = Counter()
        self._queue = queue

    async def __call__(self, job: Job[Any]) -> int:
        self.runs[job.name] += 1
        if job.name == "part":
            return int(job.data)
        values = await job.get_children_values()
        if not values:
            for n in range(1, 4):
                await job.add_child("part", n, queue=self._queue, job_id=f"{job.id}-{n}")
            raise WaitForChildren
        return int(sum(values.values()))


@pytest.mark.feature("I10", "A15")
async def test_a_running_parent_makes_children_and_waits_for_them(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("sum")
        runs = Splitter()
        await run_all(stage, runs, QUEUE, "images")
        assert await job.result() == 6
        assert (runs.runs, job.attempts, job.deliveries) == ({"sum": 2, "part": 3}, 0, 2)


@pytest.mark.feature("I2", "I10")
@pytest.mark.parametrize("named", ["mapping", "pair", "own queue"])
async def test_a_parent_is_named_by_its_queue_and_id(harness: Harness, named: str) -> None:
    async with Stage(harness) as stage:
        other = QUEUE if named == "own queue" else "parts"
        parent = await stage.queue.add("sum", delay=60)
        ref = {
            "mapping": {"queue": QUEUE, "id": parent.id},
            "pair": (QUEUE, parent.id),
            "own queue": {"id": parent.id},
        }
        child = await stage.app.queue(other).add("part", parent=ref[named])
        (edge,) = await parent.get_dependencies()
        assert (edge.child.queue, edge.child.id) == (other, child.id)
        assert await parent.is_blocked()
        with pytest.raises(ConfigError, match="a \\(queue, id\\) pair"):
            await stage.queue.add("part", parent={"queue": QUEUE, "name": parent.id})


@pytest.mark.feature("I10")
async def test_a_handler_that_waits_for_children_it_does_not_have_fails_in_the_end(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs = 0

        async def handler(job: Job[Any]) -> None:
            nonlocal runs
            runs += 1
            raise WaitForChildren

        job = await stage.queue.add(
            "sum", max_attempts=3, backoff={"type": "fixed", "delay": 10, "jitter": 0}
        )
        await stage.work(handler)
        await stage.settle()
        assert (await job.get_state(), runs) == (JobState.RETRYING, 2)
        await stage.advance(25)
        assert (await job.get_state(), job.attempts, runs) == (JobState.FAILED, 3, 4)
        assert job.failed_reason == "waits for children, but has none that are open"


@pytest.mark.feature("I10")
async def test_a_parent_that_is_killed_before_it_waits_makes_no_child_twice(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("sum")
        record = await harness.take(QUEUE)
        crashed: Job[Any] = Job(stage.queue, record, held=True)
        with pytest.raises(WaitForChildren):
            await Splitter()(crashed)
        await harness.backend.execute(_release(record))
        runs = Splitter()
        await run_all(stage, runs, QUEUE, "images")
        assert await job.result() == 6
        assert runs.runs["part"] == 3


def _release(record: Any) -> Any:
    from windlass.core.outcome import Outcome
    from windlass_conformance.harness import settlement

    return rq.Settle(items=[settlement(record, Outcome.RELEASE)])


@pytest.mark.feature("I12")
async def test_flows_are_listed_newest_first_page_by_page_while_others_are_added(harness: Harness) -> None:
    async with Stage(harness) as stage:
        producer = FlowProducer(stage.app)

        async def add_flow(name: str, *leaves: str) -> str:
            children = [{"name": leaf, "queue": QUEUE} for leaf in leaves]
            return (await producer.add({"name": name, "queue": QUEUE, "children": children})).id

        async def page(cursor: str | None, **how: Any) -> rq.Page:
            return await stage.app.store.execute(
                rq.ListJobs(queue=QUEUE, tops=True, cursor=cursor, limit=2, **how)
            )

        tops = [await add_flow(f"top{n}", "left", "right") for n in range(3)]
        tops.append(await add_flow("alone"))
        await stage.queue.add("no-flow")
        seen: list[str] = []
        cursor: str | None = None
        while True:
            found = await page(cursor)
            seen += [job.id for job in found.jobs]
            cursor = found.cursor
            if cursor is None:
                break
            await add_flow("later", "leaf")
        assert seen == tops[::-1]
        await run_all(stage, Runs())
        after = await page(None, newest_first=False, states=[JobState.COMPLETED])
        assert [job.id for job in after.jobs] == tops[:2]
        await stage.queue.remove_flow(tops[0])
        after = await page(None, newest_first=False)
        assert [job.id for job in after.jobs] == tops[1:3]


@pytest.mark.feature("I12")
async def test_a_flow_is_read_as_a_tree(harness: Harness) -> None:
    async with Stage(harness) as stage:
        leaf = {"name": "leaf", "queue": "images", "data": "x", "on_failure": "ignore"}
        middle = {"name": "middle", "queue": QUEUE, "children": [leaf]}
        node = await FlowProducer(stage.app).add({"name": "top", "queue": QUEUE, "children": [middle]})
        flow = await stage.queue.get_flow(node.id)
        assert [(one.job.name, one.state) for one in flow.walk()] == [
            ("top", JobState.BLOCKED),
            ("middle", JobState.BLOCKED),
            ("leaf", JobState.WAITING),
        ]
        edge = flow.children[0].children[0].edge
        assert edge is not None and edge.on_failure == "ignore"
        shallow = await stage.queue.get_flow(node.id, depth=1)
        assert [one.truncated for one in shallow.walk()] == [False, True]
        await run_all(stage, Runs(), QUEUE, "images")
        await flow.children[0].job.remove()
        after = await stage.queue.get_flow(node.id)
        assert [(one.gone, one.state) for one in after.walk()][:2] == [
            (False, JobState.COMPLETED),
            (True, JobState.COMPLETED),
        ]


@pytest.mark.feature("I12", "F1")
async def test_a_whole_flow_is_cancelled(harness: Harness) -> None:
    async with Stage(harness) as stage:
        leaves = [{"name": f"leaf{n}", "queue": "images"} for n in range(3)]
        middle = {"name": "middle", "queue": QUEUE, "children": leaves}
        node = await FlowProducer(stage.app).add({"name": "top", "queue": QUEUE, "children": [middle]})
        assert await stage.queue.cancel_flow(node.id, "enough") == 5
        flow = await stage.queue.get_flow(node.id)
        assert {(one.state, one.job.reason) for one in flow.walk()} == {(JobState.CANCELLED, "enough")}


@pytest.mark.feature("I12", "I8")
async def test_a_job_that_others_wait_for_outlives_a_cancelled_flow(harness: Harness) -> None:
    async with Stage(harness) as stage:
        shared = await stage.queue.add("shared")
        own = await stage.queue.add("own")
        top = await stage.queue.add("top", depends_on=[shared, own])
        other = await stage.queue.add("other", depends_on=[shared])
        assert await stage.queue.cancel_flow(top.id) == 2
        assert await shared.get_state() is JobState.WAITING
        assert await other.get_state() is JobState.BLOCKED
        assert await own.get_state() is JobState.CANCELLED


@pytest.mark.feature("I12")
async def test_a_whole_flow_is_removed(harness: Harness) -> None:
    async with Stage(harness) as stage:
        leaves = [{"name": f"leaf{n}", "queue": "images"} for n in range(2)]
        node = await FlowProducer(stage.app).add({"name": "top", "queue": QUEUE, "children": leaves})
        running = await harness.take("images")
        with pytest.raises(Exception, match="active"):
            await stage.queue.remove_flow(node.id)
        assert await stage.queue.remove_flow(node.id, force=True) == 3
        assert await harness.find(running.id, "images") is None
        assert await stage.queue.count() == 0


@pytest.mark.feature("I11")
@pytest.mark.parametrize("bad", [0, 1, 3])
async def test_a_batch_has_callbacks_on_success_completion_and_death(harness: Harness, bad: int) -> None:
    async with Stage(harness) as stage:
        called: list[tuple[str, int, int]] = []
        died: list[str] = []
        stage.app.on_death(lambda job, error: died.append(job.data))

        async def handler(job: Job[Any]) -> str:
            if job.name == "part":
                if job.data.startswith("bad"):
                    raise ValueError(job.data)
                return str(job.data)
            values, failed = await job.get_children_values(), await job.get_failed_children()
            called.append((job.name, len(values), len(failed)))
            return "called"

        names = [f"bad{n}" if n < bad else f"good{n}" for n in range(4)]
        parts = await stage.queue.add_bulk({"name": "part", "data": n, "max_attempts": 1} for n in names)
        success = await stage.queue.add("success", depends_on=parts)
        complete = await stage.queue.add("complete", depends_on=parts, on_failure="ignore")
        death = await stage.queue.add("first death", depends_on=parts, on_failure="continue")
        empty = await stage.queue.add("empty", depends_on=[])
        await stage.work(handler)
        for job in (success, complete, death, empty):
            await job.wait_until_finished()
        assert sorted(died) == names[:bad]
        assert ("complete", 4 - bad, bad) in called and ("empty", 0, 0) in called
        assert (("success", 4, 0) in called) is (bad == 0)
        assert success.state is (JobState.FAILED if bad else JobState.COMPLETED)
        assert {name for name, _, _ in called} >= {"complete", "first death", "empty"}
        assert [failed > 0 for name, _, failed in called if name == "first death"] == [bad > 0]


@pytest.mark.feature("I12")
async def test_a_flow_of_many_levels_is_read_cancelled_and_removed_to_its_leaves(harness: Harness) -> None:
    def tree(depth: int) -> dict[str, Any]:
        children = [tree(depth - 1) for _ in range(2)] if depth > 1 else []
        return {"name": f"level{depth}", "queue": f"q{depth % 2}", "children": children}

    async with Stage(harness) as stage:
        producer, queue = FlowProducer(stage.app), stage.app.queue("q1")
        whole = await producer.add(tree(5))
        flow = await queue.get_flow(whole.id)
        names = Counter(one.job.name for one in flow.walk())
        assert names == {f"level{depth}": 2 ** (5 - depth) for depth in range(1, 6)}
        assert await queue.remove_flow(whole.id) == 31
        for one in flow.walk():
            assert await harness.find(one.job.id, one.job.queue_name) is None
        other = await producer.add(tree(5))
        assert await queue.cancel_flow(other.id) == 31
        cancelled = [one.state for one in (await queue.get_flow(other.id)).walk()]
        assert cancelled == [JobState.CANCELLED] * 31


# --- a big one, with workers that die -------------------------------------------------------------

_QUEUES = [f"q{n}" for n in range(10)]


class Storm:
    """Counts the runs that ended and notes which parent saw what; the child "bad" fails for good."""

    def __init__(self) -> None:
        self.parents: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.done: set[str] = set()

    async def __call__(self, job: Job[Any]) -> Any:
        if job.name == "parent":
            values = await job.get_children_values()
            failed = await job.get_failed_children()
            self.parents.append((job.id, values, failed))
            return len(values)
        await asyncio.sleep(0)
        if job.data == "bad":
            raise UnrecoverableError("bad")
        self.done.add(job.id)
        return job.data


class Doomed:
    """The handler of a worker that dies: some of its jobs hang until it does."""

    def __init__(self, runs: Storm, dice: random.Random) -> None:
        self._runs = runs
        self._dice = dice
        self.hangs = asyncio.Event()

    async def __call__(self, job: Job[Any]) -> Any:
        if self._dice.random() < 0.1:
            self.hangs.set()
            await asyncio.Event().wait()
        return await self._runs(job)


async def _storm(stage: Stage, runs: Storm) -> None:
    """Workers that are torn down in the middle of their jobs, one after the other; then one that lives."""
    dice = random.Random(7)
    queues = [*_QUEUES, QUEUE]
    for _ in range(8):
        doomed = Doomed(runs, dice)
        victim = await stage.work(doomed, queues, concurrency=8)
        await doomed.hangs.wait()
        await victim.close(force=True)
    await drain(await stage.work(runs, queues, concurrency=8))


@pytest.mark.feature("I1", "I2", "I3", "Z14")
async def test_a_thousand_children_in_ten_queues_while_workers_die(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs = Storm()
        children = [{"name": "child", "queue": _QUEUES[n % 10], "data": n} for n in range(1_000)]
        node = await FlowProducer(stage.app).add({"name": "parent", "queue": QUEUE, "children": children})
        await _storm(stage, runs)
        assert await node.job.result() == 1_000
        ((_, values, failed),) = runs.parents
        assert (sorted(values.values()), failed) == (list(range(1_000)), {})
        assert len(runs.done) == 1_000
        assert node.job.deliveries == 1


@pytest.mark.feature("I9", "Z14")
@pytest.mark.parametrize("on_failure", ["fail", "ignore", "continue"])
async def test_one_of_many_children_fails_while_workers_die(harness: Harness, on_failure: str) -> None:
    async with Stage(harness) as stage:
        runs = Storm()
        children = [
            {
                "name": "child",
                "queue": _QUEUES[n % 10],
                "data": "bad" if n == 50 else n,
                "on_failure": on_failure,
            }
            for n in range(200)
        ]
        node = await FlowProducer(stage.app).add({"name": "parent", "queue": QUEUE, "children": children})
        await _storm(stage, runs)
        bad = f"{node.children[50].queue_name}:{node.children[50].id}"
        assert set(await node.job.get_failed_children()) == {bad}
        if on_failure == "fail":
            assert (await node.job.get_state(), runs.parents) == (JobState.FAILED, [])
            return
        assert await node.job.get_state() is JobState.COMPLETED
        ((_, values, failed),) = runs.parents
        assert set(failed) == {bad}
        expected = 199 if on_failure == "ignore" else len(values)
        assert len(values) == expected
        assert len(await node.job.get_children_values()) == 199


@pytest.mark.feature("I9", "I3")
async def test_a_retried_parent_gets_the_value_of_its_retried_child(harness: Harness) -> None:
    async with Stage(harness) as stage:
        child = await stage.queue.add("child", "part", max_attempts=1)
        parent = await stage.queue.add("parent", "whole", depends_on=[child])
        seen: dict[str, Any] = {}

        async def handler(job: Job[Any]) -> Any:
            seen[job.name] = await job.get_children_values()
            if job.name == "child" and job.deliveries == 1:
                raise ConnectionError("not now")
            return job.data

        await stage.work(handler)
        await stage.settle()
        assert (await child.get_state(), await parent.get_state()) == (JobState.FAILED, JobState.FAILED)
        await child.retry()
        await stage.settle()
        assert (await child.get_state(), await parent.get_state()) == (JobState.COMPLETED, JobState.FAILED)
        await parent.retry()
        await stage.settle()
        assert await parent.get_state() is JobState.COMPLETED
        assert seen["parent"] == {f"{QUEUE}:{child.id}": "part"}
        assert await parent.get_failed_children() == {}


# --- results as arguments -------------------------------------------------------------------------------


@pytest.mark.feature("I4")
async def test_a_step_takes_the_result_of_the_step_before_as_an_argument(harness: Harness) -> None:
    async with Stage(harness) as stage:
        app = stage.app

        @app.task(name="price", queue=QUEUE, result_ttl=0, keep_completed=False)
        async def price(item: str) -> Decimal:
            return Decimal(f"{len(item)}.50")

        @app.task(name="add-up", queue="images")
        def add_up(shipping: int, price: Decimal, *, tax: Decimal) -> Decimal:
            return shipping + price + tax

        last = await chain(price.s("lamp"), add_up.s(10, RESULT, tax=RESULT)).enqueue()
        assert (last.state, last.args, last.kwargs) == (JobState.BLOCKED, [10, None], {"tax": None})
        await drain(await stage.work(queues=[QUEUE, "images"]))
        assert await last.result() == Decimal("19.00")


@pytest.mark.feature("I4")
async def test_a_chain_can_pass_each_result_on_as_the_first_argument(harness: Harness) -> None:
    async with Stage(harness) as stage:
        app = stage.app

        @app.task(name="start", queue=QUEUE)
        async def start(number: int) -> int:
            return number

        @app.task(name="plus", queue=QUEUE)
        async def plus(number: int, more: int = 1) -> int:
            return number + more

        @app.task(name="total", queue=QUEUE)
        def total(numbers: list[int], start: int = 0) -> int:
            return sum(numbers) + start

        parts: list[Any] = [start.s(5), plus.s(10)]  # the first argument comes from the step before
        side = group(plus.s(), chain(plus.s(2), plus.s(3), pass_result=True))  # type: ignore[call-arg] # so
        last = await chain(*parts, side, total.s(start=100), pass_result=True).enqueue()  # type: ignore[call-arg]
        await drain(await stage.work())
        assert await last.result() == 100 + (15 + 1) + (15 + 2 + 3)


@pytest.mark.feature("I4")
@pytest.mark.parametrize("count", [0, 1, 12])
async def test_the_body_of_a_chord_takes_the_list_of_results_in_the_order_of_its_header(
    harness: Harness, count: int
) -> None:
    async with Stage(harness) as stage:
        app = stage.app

        @app.task(name="square", queue="images")
        async def square(number: int) -> int:
            return number * number

        @app.task(name="keep", queue=QUEUE)
        async def keep(numbers: list[int]) -> list[int]:
            return numbers

        last = await chord([square.options(priority=n).s(n) for n in range(count)], keep.s(RESULT)).enqueue()
        await drain(await stage.work(queues=[QUEUE, "images"], concurrency=1))
        assert await last.result() == [n * n for n in range(count)]


@pytest.mark.feature("I4")
async def test_a_handler_of_jobs_a_batch_and_a_child_process_take_results_too(harness: Harness) -> None:
    async with Stage(harness) as stage:
        app = stage.app

        @app.task(name="square", queue=QUEUE)
        async def square(number: int) -> int:
            return number * number

        @app.task(name="sums", queue=QUEUE, batch=10)
        async def sums(items: list[int]) -> list[int]:
            return [item + 1 for item in items]

        double = app.task(name="double", queue=QUEUE, isolation="process")(targets.double)
        in_batch = await chain(square.s(4), sums.s(RESULT)).enqueue()
        in_child = await chain(square.s(5), double.s(RESULT)).enqueue()
        by_name = step("seen", {"n": RESULT}, queue="other").after(square.s(6))
        node = await FlowProducer(app).add(by_name)
        await drain(await stage.work())
        assert (await in_batch.result(), await in_child.result()) == (17, 50)

        async def see(job: Job[Any]) -> Any:
            return job.data

        await drain(await stage.work(see, ["other"]))
        assert await node.job.result() == {"n": 36}


@pytest.mark.feature("I4")
async def test_a_step_that_is_retried_or_adds_children_takes_the_same_result_again(harness: Harness) -> None:
    async with Stage(harness) as stage:
        app = stage.app
        seen: list[int] = []

        @app.task(name="start", queue=QUEUE)
        async def start(number: int) -> int:
            return number

        @app.task(name="widen", queue=QUEUE, max_attempts=2, backoff=0)
        async def widen(number: int) -> int:
            job = current_job()
            seen.append(number)
            if len(seen) == 1:
                raise ValueError("once more")
            if len(seen) == 2:
                await job.add_child("start", {"number": 1})
                raise WaitForChildren
            return number + len(await job.get_children_values())

        last = await chain(start.s(7), widen.s(RESULT)).enqueue()
        worker = await stage.work()
        await drain(worker, ahead=60)
        assert (seen, await last.result()) == ([7, 7, 7], 9)


@pytest.mark.feature("I4", "I9")
async def test_a_step_whose_predecessor_failed_or_gave_too_much_does_not_run(harness: Harness) -> None:
    async with Stage(harness, max_payload_bytes=1_000) as stage:
        app = stage.app
        ran: list[Any] = []

        @app.task(name="bad", queue=QUEUE, max_attempts=1)
        async def bad() -> int:
            raise ValueError("no")

        @app.task(name="big", queue=QUEUE)
        async def big() -> str:
            return "x" * 2_000

        @app.task(name="see", queue=QUEUE)
        async def see(value: Any) -> None:
            ran.append(value)

        after_bad = await chain(bad.s(), see.s(RESULT)).enqueue()
        after_big = await chain(big.s(), see.s(RESULT)).enqueue()
        await drain(await stage.work())
        assert ran == []
        for job in (after_bad, after_big):
            assert (await job.get_state(), job.reason) == (JobState.FAILED, "dependency_failed")
        await after_bad.retry()  # what it waited for is forgiven, and has no result
        await drain(await stage.work())
        with pytest.raises(JobFailedError, match="has no result: retry it first"):
            await after_bad.result()
        assert ran == []


@pytest.mark.feature("I4")
async def test_a_result_that_does_not_fit_the_parameter_fails_the_step_by_name(harness: Harness) -> None:
    async with Stage(harness) as stage:
        app = stage.app

        @app.task(name="word", queue=QUEUE)
        async def word() -> str:
            return "seven"

        @app.task(name="count", queue=QUEUE, max_attempts=5)
        async def count(number: int) -> int:
            return number

        last = await chain(word.s(), count.s(RESULT)).enqueue()
        await drain(await stage.work())
        with pytest.raises(
            JobFailedError, match=r"argument 'number' of task 'count' must be int, got str 'seven'"
        ):
            await last.result()
        await last.refresh()
        assert (last.deliveries, last.reason) == (1, "unrecoverable")


@pytest.mark.feature("I4")
async def test_results_that_no_step_can_take_are_refused_and_nothing_is_added(harness: Harness) -> None:
    async with Stage(harness) as stage:
        app = stage.app

        @app.task(name="one", queue=QUEUE)
        async def one(number: int) -> int:
            return number

        @app.task(name="none", queue=QUEUE)
        async def none() -> None: ...

        with pytest.raises(ConfigError, match=r"comes after another one \('one' does not\)"):
            await one.s(RESULT).enqueue()
        with pytest.raises(ConfigError, match=r"RESULT is for steps"):
            await one.enqueue(RESULT)
        with pytest.raises(ConfigError, match=r"missing a required argument: 'number'"):
            await chain(one.s(1), one.s()).enqueue()  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match=r"'none' takes no further one .*RESULT"):
            chain(one.s(1), none.s(), pass_result=True)
        with pytest.raises(ConfigError, match="on_failure must be fail where a step takes RESULT"):
            await one.s(RESULT).after(one.s(1), on_failure="ignore").enqueue()
        with pytest.raises(ConfigError, match="unique must be a key of your own"):
            await chain(one.s(1), one.options(unique=True).s(RESULT)).enqueue()
        assert await stage.queue.count() == 0
