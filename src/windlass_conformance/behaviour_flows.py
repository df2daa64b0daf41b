"""Flows as users build them: trees, chains, groups, chords, graphs, batches."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import (
    ConfigError,
    FlowProducer,
    Job,
    JobFailedError,
    JobState,
    chain,
    chord,
    current_job,
    group,
    step,
)
from windlass.errors import CycleError, DependencyError
from windlass.flows import EdgeStatus
from windlass.testing.kit import drain
from windlass_conformance.flow_runs import Runs, run_all
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage

NEEDS = "flows"


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
