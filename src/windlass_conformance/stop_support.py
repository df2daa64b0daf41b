"""Shared by the tests of stopping workers: settings, handlers that wait, and a check for leftovers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from windlass import Job, Worker
from windlass.errors import ClosedError
from windlass_conformance.stage import Gate, Stage, eventually

#: Options of a worker with a short timeout, and how long its stop may take on a busy machine.
HASTY: dict[str, Any] = {"grace": 0.3, "cancel_wait": 0.2, "heartbeat": 0.1, "poll": 0.1}
BOUND = 0.3 + 0.2 + 2


def gated(gate: Gate, ran: list[str] | None = None) -> Any:
    async def handler(job: Job[Any]) -> str:
        if ran is not None:
            ran.append(job.id)
        await gate.pass_through()
        return "done"

    return handler


def threads() -> set[threading.Thread]:
    """The threads of workers."""
    return {t for t in threading.enumerate() if t.name.startswith(("windlass-leases", "windlass-job"))}


#: Tasks of a worker; a client of a store may have some too.
TASKS = {
    "pump",
    "lane",
    "relay-now",
    "relay",
    "start",
    "close",
    "leases",
    "lease-watch",
    "heartbeat",
    "lead",
    "recover",
    "prune",
}


def tasks() -> list[str]:
    """The unfinished tasks of workers on this loop."""
    names = (task.get_name() for task in asyncio.all_tasks())
    return [name for name in names if name.removeprefix("windlass-") in TASKS]


async def check_gone(stage: Stage, worker: Worker, before: set[threading.Thread]) -> None:
    """Assert that nothing of the worker is left: no thread, no task, no heartbeat; it cannot be started."""
    await eventually(lambda: threads() <= before and not tasks())
    assert not worker.is_running
    assert await stage.app.workers() == []
    with pytest.raises(ClosedError):
        await worker.start()
    with pytest.raises(ClosedError):
        await worker.run()
    await worker.close()
    await worker.close(force=True)
