"""Thirty right and thirty wrong uses, for mypy (strict) and pyright. Each wrong one ends in ``# wrong``.

Both checkers must report exactly the lines so marked. Nothing here is run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, assert_type

from windlass import INJECTED, Depends, Job, Queue, Unique, Windlass, Worker, gather, step

app = Windlass("memory://")
queue = app.queue("mail")


async def pool() -> AsyncIterator[str]:
    yield "pool"


def size() -> Iterator[int]:
    yield 3


@app.task
async def send(to: str, subject: str = "") -> int:
    return len(to + subject)


@app.task(queue="sums", max_attempts=5, timeout=30)
def add(a: int, b: int) -> float:
    return a + b


@app.task
async def charge(order: int, db: str = Depends(pool)) -> bool:
    return bool(db)


@app.task
async def ship(order: int, db: Annotated[str, Depends(pool)] = INJECTED) -> bool:
    return bool(db)


async def right() -> None:
    await send.options(delay=5, max_attempts=3).enqueue("ada")  # 1
    await send.options(run_at=datetime.now(UTC), priority=-3).enqueue("ada")  # 2
    await send.options(delay=timedelta(minutes=5), tags=["a", "b"]).enqueue("ada")  # 3
    await send.options(unique=Unique(fields=("to",)), lifo=True).enqueue("ada")  # 4
    await send.options(backoff={"type": "fixed", "delay": 2}).options(timeout=None).enqueue("ada")  # 5
    await send.options(keep_completed=False, keep_failed=100, result_ttl=60).enqueue("ada")  # 6
    await queue.add("work", {"a": 1}, delay=5, group="acme", cost=3)  # 7
    await queue.add("work", children=[{"name": "first"}], on_failure="ignore")  # 8
    await queue.add_and_wait("work", timeout=5, priority=3)  # 9
    await queue.add_bulk([{"name": "work", "delay": 5}])  # 10
    app.sync.queue("mail").add("work", delay=5)  # 11
    send.sync.options(delay=5).enqueue("ada")  # 12
    step("work", queue="mail", delay=5, timeout=3)  # 13
    Worker("mail", url_or_app=app, concurrency=5, grace=timedelta(seconds=3), order="strict")  # 14
    Worker({"mail": 2}, url_or_app=app, burst=True, tag="blue", limiter={"max": 3, "duration": 1})  # 15
    pending: Coroutine[Any, Any, int] = send("ada")  # 16
    await pending
    assert_type(await send("ada"), int)  # 17
    assert_type(add(1, 2), float)  # 18
    assert_type(await send.map(["ada", "bob"]), list[Job[int]])  # 19
    assert_type(await send.map(["ada", "bob"], ["hi", "ho"]), list[Job[int]])  # 20
    assert_type(await add.options(delay=5).map([1], (2,)), list[Job[float]])  # 21
    assert_type(await charge.map(range(3)), list[Job[bool]])  # 22
    assert_type(await charge.enqueue(5), Job[bool])  # 23
    assert_type(await ship.enqueue(5), Job[bool])  # 24
    assert_type(await (await send.enqueue("ada", subject="hi")).result(), int)  # 25
    assert_type(await gather([await add.enqueue(1, 2)]), list[float])  # 26
    assert_type(await add.options(delay=1).call(1, b=2), float)  # 27
    assert_type(add.sync.call(1, 2), float)  # 28
    assert_type(Queue("mail", app), Queue)  # 29
    app.task(queue="mail", cron="* * * * *", isolation="process", memory_limit=10)  # 30


@app.task
async def mixed(order: int, db: int = Depends(pool)) -> None: ...  # wrong 1


@app.task
def sized(text: str, count: str = Depends(size)) -> None: ...  # wrong 2


@app.task(max_atempts=3)  # wrong 3
async def misspelt() -> None: ...


@app.task(timeout="30s")  # wrong 4
async def texted() -> None: ...


async def wrong() -> None:
    send.options(max_atempts=3)  # wrong 5
    send.options(delay="x")  # wrong 6
    send.options(countdown=5)  # wrong 7
    send.options(priority="high")  # wrong 8
    send.options(tags=[1])  # wrong 9
    send.options(delay=1).options(lease="30s")  # wrong 10
    send.sync.options(retries=3)  # wrong 11
    await queue.add("work", dealy=5)  # wrong 12
    await queue.add("work", max_attempts="3")  # wrong 13
    await queue.add_and_wait("work", prio=3)  # wrong 14
    app.sync.queue("mail").add("work", dealy=5)  # wrong 15
    step("work", delay="x")  # wrong 16
    Worker("mail", url_or_app=app, concurency=5)  # wrong 17
    Worker("mail", url_or_app=app, concurrency="5")  # wrong 18
    Worker("mail", url_or_app=app, order="random")  # wrong 19
    send(5)  # wrong 20
    add(1, "2")  # wrong 21
    await send.map([1, 2])  # wrong 22
    await send.map(["ada"], [3])  # wrong 23
    await add.map([1])  # wrong 24
    await add.options(delay=1).map([1], ["2"])  # wrong 25
    add.sync.map(["1"], [2])  # wrong 26
    await charge.enqueue("five")  # wrong 27
    assert_type(await charge.call(5), int)  # wrong 28
    text: str = await send.call("ada")  # wrong 29
    await send.enqueue(text)
    await send.enqueue("ada", delay=5)  # wrong 30
