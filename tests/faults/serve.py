"""A worker process for the tests of this folder: ``python -m tests.faults.serve '{"lease": 1, ...}'``."""

from __future__ import annotations

import asyncio
import json
import logging
import sys

from tests.faults.handlers import app
from windlass import QueueSpec, Worker
from windlass.testing.faults import install_from_environment


async def main(settings: str) -> None:
    options = json.loads(settings)
    queues = options.pop("queues", ["q"])
    if isinstance(queues, dict):
        queues = {name: QueueSpec(**spec) for name, spec in queues.items()}
    async with app:
        await Worker(queues, url_or_app=app, **options).run(handle_signals=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    install_from_environment()
    asyncio.run(main(sys.argv[1]))
