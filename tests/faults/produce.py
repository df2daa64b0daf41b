"""A producer process: adds jobs under chosen ids and writes down what was acknowledged."""

from __future__ import annotations

import asyncio
import os
import sys

from tests.faults.handlers import app, note
from windlass.testing.faults import install_from_environment


async def main(count: int) -> None:
    async with app:
        queue = app.queue("q")
        task = os.environ.get("STAGE_TASK", "tell")
        items = [{"name": task, "data": {"n": n}, "job_id": f"chosen-{n}"} for n in range(count)]
        for job in await queue.add_bulk(items):
            note("acknowledged", str(job.outcome))


if __name__ == "__main__":
    install_from_environment()
    asyncio.run(main(int(sys.argv[1])))
