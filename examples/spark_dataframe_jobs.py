"""A DataFrame becomes jobs, workers run them, and their results are a DataFrame again.

    python examples/spark_dataframe_jobs.py

Needs pip install 'windlass[spark]' and Java 17. Everything lives in a temporary folder.

Prints::

    large     213 orders charged
    small     287 orders charged
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from windlass import Windlass, Worker
from windlass.pipeline.session import session


def add_orders(spark: SparkSession, url: str, count: int) -> None:
    """Every row is a job, named by its ``order_id``: running this twice adds nothing."""
    orders = spark.range(count).select(
        F.col("id").alias("order_id"), (F.col("id") % 7 * 10).alias("amount"), F.lit("EUR").alias("currency")
    )
    sink = orders.write.format("windlass").option("url", url).option("queue", "pay").option("task", "charge")
    sink.option("keys", "order_id").mode("append").save()


async def work(app: Windlass) -> None:
    """Run the jobs until none is left."""
    async with app:
        await Worker("pay", url_or_app=app, concurrency=32, burst=True).run()


def results(spark: SparkSession, url: str) -> list[tuple[str, int]]:
    """The results that the jobs left, as columns."""
    jobs = spark.read.format("windlass").option("url", url).option("table", "jobs").load()
    done = jobs.where("state = 'completed'").select(
        F.from_json(F.col("result").cast("string"), "fee double, band string").alias("r")
    )
    return [(row.band, row["count"]) for row in done.groupBy("r.band").count().orderBy("band").collect()]


def main(count: int = 500) -> None:
    with tempfile.TemporaryDirectory() as folder, session() as spark:
        url = f"sqlite:///{Path(folder) / 'jobs.db'}"
        app = Windlass(url)

        @app.task(name="charge", queue="pay")
        async def charge(order_id: int, amount: float, currency: str) -> dict[str, object]:
            return {"fee": amount * 0.02, "band": "large" if amount >= 40 else "small"}

        add_orders(spark, url, count)
        add_orders(spark, url, count)  # the same rows again: no new jobs

        asyncio.run(work(app))
        for band, jobs in results(spark, url):
            print(f"{band:6} {jobs:6} orders charged")


if __name__ == "__main__":
    main()
