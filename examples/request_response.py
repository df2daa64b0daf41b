"""Call a task in a worker and wait for the answer; share one run among callers; answer from the cache.

Prints::

    call: 42
    shared by 5 callers: [30, 30, 30, 30, 30], runs: 1
    cached: 30, runs: 1
    too slow: the job continues as waiting
"""

from __future__ import annotations

import asyncio
import os

from windlass import WaitTimeoutError, Windlass, Worker

app = Windlass(os.environ.get("WINDLASS_URL") or "memory://")
runs = 0


@app.task(queue="maths")
async def double(value: int) -> int:
    return 2 * value


@app.task(queue="maths")
async def slow_sum(values: list[int]) -> int:
    global runs
    runs += 1
    await asyncio.sleep(0.05)
    return sum(values)


async def main() -> None:
    async with app:
        worker = Worker("maths", url_or_app=app)
        await worker.start()

        print(f"call: {await double.call(21)}")

        shared = slow_sum.options(job_id="sum-of-july")
        answers = await asyncio.gather(*(shared.call([10, 20]) for _ in range(5)))
        print(f"shared by 5 callers: {answers}, runs: {runs}")
        print(f"cached: {await shared.call([10, 20])}, runs: {runs}")

        await worker.close()
        try:
            await double.options(job_id="later").call_within(0.05, 1)
        except WaitTimeoutError:
            job = await app.queue("maths").get_job("later")
            assert job is not None
            print(f"too slow: the job continues as {job.state}")


if __name__ == "__main__":
    asyncio.run(main())
