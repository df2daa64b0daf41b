"""What other processes do in the tests of the sqlite store: ``python -m ... COMMAND PATH [ARGUMENT]``.

A child prints a line when it has come to the point that its test waits for, and goes on when it reads one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.backends.sqlite.support import add, claim, ended, new, opened, settle
from windlass.backend import requests as rq
from windlass.core import probe
from windlass.core.job import NewJob
from windlass.testing.faults import ENVIRONMENT_VARIABLE, install_from_environment


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def wait() -> None:
    sys.stdin.readline()


async def open_it(path: Path, _: str) -> None:
    """Open the file at the same moment as others."""
    say("ready")
    wait()
    async with opened(path, timeout=20):
        say("open")


async def sweep_it(path: Path, faults: str) -> None:
    """Open an old file at the same moment as others, and work until all its tables are STRICT."""
    os.environ[ENVIRONMENT_VARIABLE] = faults
    install_from_environment()
    say("ready")
    wait()
    async with opened(path, timeout=20) as store:
        while store._open_store().session.sweep_due:
            await store.execute(rq.Recover())
    say("done")


async def add_one(path: Path, queue: str) -> None:
    """Add a job when asked to."""
    async with opened(path) as store:
        say("ready")
        wait()
        await add(store, new(queue))
        say("added")
        wait()


async def stop_inside(path: Path, point: str) -> None:
    """Freeze at a point inside a transaction; end normally when woken up."""
    async with opened(path) as store:
        points = probe.Probe()
        points.arm(point, lambda name, facts: _signal_self(signal.SIGSTOP))
        probe.install(points)
        say("freezing")
        await add(store, new(id="frozen"))
        say("added")


async def die_inside(path: Path, point: str) -> None:
    """Be killed at a point inside a transaction."""
    async with opened(path) as store:
        await add(store, new(id="before"))
        points = probe.Probe()
        points.arm(point, lambda name, facts: _signal_self(signal.SIGKILL))
        probe.install(points)
        await add(store, new(id="during"), new("other"))


async def drain(path: Path, worker: str) -> None:
    """Claim and complete jobs until there are none; print their ids."""
    async with opened(path, timeout=20) as store:
        say("ready")
        wait()
        while jobs := await claim(store, limit=3, worker=worker):
            await settle(store, *map(ended, jobs))
            say(*[job.id for job in jobs])
        say("end")


async def add_many(path: Path, prefix: str) -> None:
    """Add jobs one by one, beside other writers."""
    async with opened(path, timeout=20) as store:
        say("ready")
        wait()
        for number in range(50):
            await store.execute(
                rq.Add(jobs=[NewJob(queue="q", id=f"{prefix}{number}", task="t", payload=b"")])
            )
        say("end")


def _signal_self(number: int) -> None:
    # To this thread: one that is sent to the process may reach another, while this one goes on a little.
    signal.pthread_kill(threading.get_ident(), number)


COMMANDS: dict[str, Any] = {
    "open": open_it,
    "sweep": sweep_it,
    "add": add_one,
    "stop": stop_inside,
    "die": die_inside,
    "drain": drain,
    "add_many": add_many,
}

if __name__ == "__main__":
    command, path, argument = (*sys.argv[1:], "")[:3]
    asyncio.run(COMMANDS[command](Path(path), argument))
