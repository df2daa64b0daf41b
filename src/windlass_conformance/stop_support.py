"""What the tests of stopping workers share: settings, handlers that wait, and what is left behind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from windlass import Job, Worker
from windlass.errors import ClosedError
from windlass_conformance.stage import Gate, Stage, eventually

#: A worker that has little time, and how long its stop may take on a busy machine.
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
    """What workers have under way on this loop."""
    names = (task.get_name() for task in asyncio.all_tasks())
    return [name for name in names if name.removeprefix("windlass-") in TASKS]


async def check_gone(stage: Stage, worker: Worker, before: set[threading.Thread]) -> None:
    """Nothing of the worker is left: no thread, no task, no heartbeat, no way to start it."""
    await eventually(lambda: threads() <= before and not tasks())
    assert not worker.is_running
    assert await stage.app.workers() == []
    with pytest.raises(ClosedError):
        await worker.start()
    with pytest.raises(ClosedError):
        await worker.run()
    await worker.close()
    await worker.close(force=True)
