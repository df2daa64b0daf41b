"""Last week's failed payments, chosen by SQL and run again.

    python examples/spark_replay_payments.py

First a bad day: a payment service that is down for some customers. Its history goes into a lake; a query
finds the jobs that failed for that reason only; ``replay`` puts exactly those back into the queue.

Prints::

    failed: ConnectionError 30
    failed: ValueError 12
    30 payments run again, 0 already pruned
    288 completed, 12 failed
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from windlass import JobState, Windlass, Worker
from windlass.pipeline.replay import replay, select_failed
from windlass.pipeline.run import Pipeline, RunOptions
from windlass.pipeline.session import session
from windlass.pipeline.sqlquery import query

WHERE = "queue = 'pay' AND error_class LIKE '%ConnectionError' AND date >= current_date - 7"
state = {"service_is_down": True}


async def drain(app: Windlass) -> None:
    """Work until nothing is left."""
    await Worker("pay", url_or_app=app, concurrency=32, burst=True).run()


def copy_history(url: str, lake: str) -> None:
    with session() as spark:
        pipeline = Pipeline(spark, RunOptions(url=url, lake=lake))
        pipeline.open()
        pipeline.run_once()


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="windlass-replay-"))
    url, lake = f"sqlite:///{folder / 'jobs.db'}", str(folder / "lake")
    app = Windlass(url)

    @app.task(queue="pay", max_attempts=1)
    async def charge(customer: int) -> str:
        if customer % 10 == 0 and state["service_is_down"]:
            raise ConnectionError("the payment service did not answer")
        if customer % 25 == 3:
            raise ValueError("card refused")
        return "paid"

    async def bad_day() -> None:
        async with app:
            for customer in range(300):
                await charge.enqueue(customer)
            await drain(app)

    asyncio.run(bad_day())
    copy_history(url, lake)
    for row in query(lake, "SELECT error_class, sum(failed) FROM errors GROUP BY 1 ORDER BY 1").rows:
        print("failed:", *row)

    state["service_is_down"] = False
    result = replay(url, select_failed(lake, WHERE))
    print(len(result.retried), "payments run again,", len(result.pruned), "already pruned")

    async def good_day() -> None:
        async with app:
            await drain(app)
            counts = await app.queue("pay").get_job_counts()
            print(f"{counts[JobState.COMPLETED]} completed, {counts[JobState.FAILED]} failed")

    asyncio.run(good_day())


if __name__ == "__main__":
    main()
