"""Results of steps as arguments of the steps after them."""

from __future__ import annotations

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
    WaitForChildren,
    chain,
    chord,
    current_job,
    group,
    step,
)
from windlass.testing.kit import drain
from windlass_conformance import targets
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage

NEEDS = "flows"


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

        with pytest.raises(ConfigError, match="step 'one' takes RESULT, but it comes after no other step"):
            await one.s(RESULT).enqueue()
        with pytest.raises(ConfigError, match="is RESULT, which only a step of a flow can take"):
            await one.enqueue(RESULT)
        with pytest.raises(ConfigError, match=r"missing a required argument: 'number'"):
            await chain(one.s(1), one.s()).enqueue()  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match=r"step 'none' takes no further argument .*RESULT"):
            chain(one.s(1), none.s(), pass_result=True)
        with pytest.raises(ConfigError, match="on_failure must be fail where a step takes RESULT"):
            await one.s(RESULT).after(one.s(1), on_failure="ignore").enqueue()
        with pytest.raises(ConfigError, match="needs a unique key of its own"):
            await chain(one.s(1), one.options(unique=True).s(RESULT)).enqueue()
        assert await stage.queue.count() == 0
