"""Whole flows: listed, read as a tree, cancelled, removed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from windlass import FlowProducer, JobState
from windlass.backend import requests as rq
from windlass_conformance.flow_runs import Runs, run_all
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage

NEEDS = "flows"


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
