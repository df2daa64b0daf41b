"""A row and its job in one transaction: both are there, or neither.

Needs the sqlite store: the application's tables and the jobs share one file.

Prints::

    after the rollback: 0 orders, 0 jobs
    after the commit: 1 orders, 1 jobs
    shipped order 2
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from pathlib import Path

from windlass import Windlass, Worker


async def main(path: Path) -> None:
    async with Windlass(f"sqlite:///{path}") as app:

        @app.task(name="ship", queue="orders")
        async def ship(order: int) -> str:
            return f"shipped order {order}"

        queue = app.queue("orders")
        shop = sqlite3.connect(path, isolation_level=None)
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")

        async def count() -> str:
            (orders,) = shop.execute("SELECT count(*) FROM orders").fetchone()
            return f"{orders} orders, {await queue.count()} jobs"

        shop.execute("BEGIN IMMEDIATE")
        shop.execute("INSERT INTO orders VALUES (1)")
        queue.add_in_transaction(shop, "ship", {"order": 1})
        shop.execute("ROLLBACK")
        print(f"after the rollback: {await count()}")

        shop.execute("BEGIN IMMEDIATE")
        shop.execute("INSERT INTO orders VALUES (2)")
        job = queue.add_in_transaction(shop, "ship", {"order": 2})
        shop.execute("COMMIT")
        print(f"after the commit: {await count()}")
        shop.close()

        await Worker("orders", url_or_app=app).drain()
        print(await job.result())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory) / "shop.db"))
