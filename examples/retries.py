"""Failures: retried with a backoff, steered by the handler, final when the budget is spent.

Prints::

    fetch: ok on attempt 3, after ConnectionError, ConnectionError
    poll: snoozed twice, attempts used: 0
    bad input: failed (unrecoverable) after 1 attempt
    hopeless: MaxRetriesError after 2 attempts, last TimeoutError: no answer
    retried by hand: waiting, attempts 0, errors kept 2
"""

from __future__ import annotations

import asyncio
import os

from windlass import Snooze, UnrecoverableError, Windlass, Worker, current_job
from windlass.errors import MaxRetriesError

app = Windlass(
    os.environ.get("WINDLASS_URL") or "memory://",
    backoff_strategies={"quick": lambda failures, error: 0.01 * failures},
)


@app.task(backoff="quick", max_attempts=5)
async def fetch() -> str:
    job = current_job()
    if job.attempt < 3:
        raise ConnectionError("the other side is restarting")
    return f"ok on attempt {job.attempt}"


@app.task
async def poll() -> str:
    """Wait for something without using up attempts."""
    deliveries = current_job().deliveries
    if deliveries < 3:
        raise Snooze(0.01)
    return f"snoozed {'twice' if deliveries == 3 else 'often'}"


@app.task(max_attempts=10)
async def check(value: int) -> int:
    if value < 0:
        raise UnrecoverableError("negative values never work")
    return value


@app.task(max_attempts=2, backoff=0)
async def hopeless() -> None:
    raise TimeoutError("no answer")


async def main() -> None:
    async with app:
        fetched, polled = await fetch.enqueue(), await poll.enqueue()
        bad, dead = await check.enqueue(-1), await hopeless.enqueue()
        worker = Worker("default", url_or_app=app)
        await worker.start()

        print(f"fetch: {await fetched.result()}, after {', '.join(e.error_class for e in fetched.errors)}")
        print(f"poll: {await polled.result()}, attempts used: {polled.attempts}")
        await bad.wait_until_finished()
        print(f"bad input: {bad.state} ({bad.reason}) after {bad.attempts} attempt")
        try:
            await dead.result()
        except MaxRetriesError as spent:
            last = f"{spent.error_class}: {spent.error_message}"
            print(f"hopeless: MaxRetriesError after {spent.attempts} attempts, last {last}")
        await worker.close()

        await dead.retry()  # a fresh budget; the old errors stay
        await dead.refresh()
        print(f"retried by hand: {dead.state}, attempts {dead.attempts}, errors kept {len(dead.errors)}")


if __name__ == "__main__":
    asyncio.run(main())
