"""Last week's failed payments, chosen by SQL and run again.

    python examples/spark_replay_payments.py

First a bad day: a payment service that is down for some customers. Its history goes into a lake, with the
arguments of the jobs; a query finds the jobs that failed for that reason only; ``replay`` puts exactly those
back into the queue, where a snapshot of the store sees them.

Prints::

    failed: ConnectionError 30
    failed: ValueError 12
    14 of them of customers below 100
    30 payments run again, 0 already pruned
    alive: pay waiting 30
    288 completed, 12 failed
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from windlass import JobState, Windlass, Worker
from windlass.pipeline.gold import Gold
from windlass.pipeline.replay import replay, select_failed
from windlass.pipeline.run import Pipeline, RunOptions
from windlass.pipeline.session import session
from windlass.pipeline.sqlquery import query

WHERE = "queue = 'pay' AND error_class LIKE '%ConnectionError' AND date >= current_date - 7"
BELOW_100 = "(args->>'customer')::INTEGER < 100"
state = {"service_is_down": True}


async def drain(app: Windlass) -> None:
    """Work until nothing is left."""
    await Worker("pay", url_or_app=app, concurrency=32, burst=True).run()


def copy_history(url: str, lake: str) -> None:
    with session() as spark:
        pipeline = Pipeline(spark, RunOptions(url=url, lake=lake, payloads=True))
        pipeline.open()
        pipeline.run_once()
        pipeline.take_snapshot()


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
                await charge.enqueue(customer=customer)
            await drain(app)

    asyncio.run(bad_day())
    copy_history(url, lake)
    for row in query(lake, "SELECT error_class, sum(failed) FROM errors GROUP BY 1 ORDER BY 1").rows:
        print("failed:", *row)
    ((count,),) = query(lake, f"SELECT count(*) FROM jobs WHERE outcome = 'failed' AND {BELOW_100}").rows
    print(count, "of them of customers below 100")

    state["service_is_down"] = False
    result = replay(url, select_failed(lake, WHERE))
    print(len(result.retried), "payments run again,", len(result.pruned), "already pruned")
    copy_history(url, lake)
    for row in Gold(lake).alive():
        print("alive:", row["queue"], row["state"], row["jobs"])

    async def good_day() -> None:
        async with app:
            await drain(app)
            counts = await app.queue("pay").get_job_counts()
            print(f"{counts[JobState.COMPLETED]} completed, {counts[JobState.FAILED]} failed")

    asyncio.run(good_day())


if __name__ == "__main__":
    main()
