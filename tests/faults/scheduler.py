"""A scheduler process under a driven clock: ``python -m tests.faults.scheduler tick goes``.

The arguments are the schedules that this version of the code declares.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from windlass import Schedule, Windlass, Worker
from windlass.testing import SharedClock
from windlass.testing.clock import START_MS
from windlass.testing.faults import install_from_environment

QUEUE = "ticks"
HOUR = 3_600
SCHEDULES = {
    "tick": Schedule(every=1, start=START_MS / 1000 + 1, end=START_MS / 1000 + HOUR, missed="all"),
    "goes": Schedule(every=60, missed="all"),
}


async def main(names: list[str]) -> None:
    clock = SharedClock(Path(os.environ["STAGE_DIRECTORY"]) / "clock", poll=0.01)
    app = Windlass(clock=clock, name="demo")
    for name in names:
        app.schedule(name, SCHEDULES[name], name, queue=QUEUE)
    async with app:  # it serves another queue: jobs stay where the schedule put them
        await Worker("idle", url_or_app=app, recover_every=600, poll=600).run(handle_signals=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    install_from_environment()
    asyncio.run(main(sys.argv[1:]))
