"""What a type checker must see. Checked by mypy (strict): wrong calls are refused, types come through.

Every ``type: ignore`` below names the error that must be there; mypy complains about one that is not needed.
Nothing here is run.
"""

from __future__ import annotations

from typing import Any, assert_type

from starlette.requests import HTTPConnection

from windlass import (
    RESULT,
    Batch,
    Depends,
    FlowProducer,
    Job,
    JobState,
    Queue,
    Windlass,
    Worker,
    as_completed,
    chain,
    chord,
    gather,
    group,
)
from windlass.api.bulk import Cleaned
from windlass.api.queue import Page
from windlass.api.sync import SyncJob
from windlass.contrib.django import enqueue_on_commit
from windlass.contrib.fastapi import queue as fastapi_queue
from windlass.contrib.starlette import get_windlass, lifespan
from windlass.core.job import Event
from windlass.core.outcome import AddOutcome, CancelResult
from windlass.flows import FlowGroup, JobNode, Step

app = Windlass("memory://")


@app.task
async def send(to: str, subject: str = "") -> int:
    return len(to + subject)


@app.task(queue="sums", max_attempts=5)
def add(a: int, b: int) -> float:
    return a + b


@app.task(isolation="process", memory_limit=10_000_000)
async def nothing() -> None: ...


def pool() -> str:
    return "pool"


@app.task
async def charge(order: int, db: str = Depends(pool)) -> int:
    return order


@app.task(batch=10)
async def index(documents: list[str]) -> list[int]:
    return [len(text) for text in documents]


@app.task(batch=Batch(size=5, timeout=1), queue="store")
def store(numbers: list[int], db: str = Depends(pool)) -> None: ...


async def around() -> None:
    assert_type(await charge.enqueue(5), Job[int])
    assert_type(await index.enqueue("text"), Job[int])
    assert_type(await store.enqueue(5), Job[None])
    await index.enqueue(["text"])  # type: ignore[arg-type]
    await store.enqueue("five")  # type: ignore[arg-type]
    await charge.enqueue("five")  # type: ignore[arg-type]


async def tasks() -> None:
    job = await send.enqueue("ada", subject="hi")
    assert_type(job, Job[int])
    assert_type(await job.result(), int)
    assert_type(await send.call("ada"), int)
    assert_type(await add.enqueue(1, b=2), Job[float])
    assert_type(await add.call(1, 2), float)
    assert_type(await nothing.call(), None)
    assert_type(job.outcome, AddOutcome | None)
    assert_type(job.state, JobState)
    assert_type(await job.cancel(), CancelResult)
    assert_type(await job.wait_until_finished(), JobState)

    bound = add.options(delay=60, priority=3)
    assert_type(await bound.enqueue(1, 2), Job[float])
    assert_type(await bound.options(timeout=1).call(1, 2), float)
    assert_type(await bound.call_within(5, 1, 2), float)
    assert_type(await add.call_within(None, 1, b=2), float)


async def wrong_calls() -> None:
    await send.enqueue()  # type: ignore[call-arg]
    await send.enqueue(5)  # type: ignore[arg-type]
    await send.enqueue("ada", subjekt="hi")  # type: ignore[call-arg]
    await send.enqueue("ada", "hi", "more")  # type: ignore[call-arg]
    await add.enqueue(1, b="2")  # type: ignore[arg-type]
    await add.options(delay=1).enqueue("1", 2)  # type: ignore[arg-type]
    await add.options(delay=1).call(1)  # type: ignore[call-arg]
    await add.call_within(60, 1)  # type: ignore[call-arg]
    await add.call_within("60", 1, 2)  # type: ignore[arg-type]
    await nothing.enqueue(1)  # type: ignore[call-arg]
    add.sync.enqueue(1, "2")  # type: ignore[arg-type]
    app.task(queue=5)  # type: ignore[call-overload]
    app.task(isolation="fork")  # type: ignore[call-overload]


def without_a_loop() -> None:
    assert_type(add.sync.enqueue(1, 2), SyncJob[float])
    assert_type(add.sync.enqueue(1, 2).result(), float)
    assert_type(add.sync.call(1, 2), float)
    assert_type(add.sync.call_within(60, 1, b=2), float)
    assert_type(chain(send.s("ada"), add.s(RESULT, 2)).sync.enqueue(), SyncJob[Any])
    assert_type(group(add.s(1, 2)).sync.enqueue(), list[SyncJob[Any]])
    assert_type(FlowProducer(app).sync.add({"name": "work"}), JobNode)
    assert_type(app.sync.queue("a").add("work"), SyncJob[Any])
    assert_type(app.sync.queue("a").count(), int)
    app.sync.queue("a").get_status()  # type: ignore[call-arg]
    app.sync.queue("a").cancel(5)  # type: ignore[arg-type]


async def classes() -> None:
    queue = app.queue("mail")
    assert_type(queue, Queue)
    assert_type(await queue.add("work", {"a": 1}, priority=3), Job[Any])
    assert_type(await queue.add_bulk([{"name": "a"}]), list[Job[Any]])
    assert_type(await queue.get_job("x"), Job[Any] | None)
    assert_type(await queue.get_jobs("failed"), Page)
    assert_type(await queue.get_job_counts(), dict[JobState, int])
    assert_type(await queue.clean(), Cleaned)
    async for event in queue.events():
        assert_type(event, Event)
    worker = Worker({"mail": 3}, url_or_app=app, concurrency=4)
    assert_type(worker.busy, int)
    await queue.add(5)  # type: ignore[arg-type]
    Worker()  # type: ignore[call-arg]


async def flows() -> None:
    part = add.s(1, 2)
    assert_type(part, Step)
    assert_type(add.options(delay=5).s(1, b=2), Step)
    assert_type(group(part, send.s("ada")), FlowGroup)
    assert_type(chord(group(part, part), send.s("ada")), Step)
    assert_type(chain(part, send.s("ada")), Step)
    assert_type(chain(part, add.s(RESULT, b=RESULT), pass_result=True), Step)
    assert_type(await FlowProducer(app).add(part), JobNode)
    tree = await app.queue("sums").get_flow("x")
    assert_type(tree, JobNode)
    assert_type(tree.children, list[JobNode])
    assert_type(tree.state, JobState)
    add.s(1, "2")  # type: ignore[arg-type]
    send.s()  # type: ignore[call-arg]


async def many_results() -> None:
    jobs = [await add.enqueue(1, 2), await add.enqueue(3, 4)]
    assert_type(await gather(jobs), list[float])
    async for job in as_completed(jobs):
        assert_type(job, Job[float])


def integrations() -> None:
    assert_type(fastapi_queue("mail")(HTTPConnection({"type": "http"})), Queue)
    assert_type(get_windlass(HTTPConnection({"type": "http"})), Windlass)
    assert_type(enqueue_on_commit(add, 1, 2), str)
    enqueue_on_commit(add, 1, "2")  # type: ignore[arg-type]
    enqueue_on_commit(add.options(delay=1), 1)  # type: ignore[call-arg]
    lifespan("memory://")  # type: ignore[arg-type]
