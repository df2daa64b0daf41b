"""Tasks for the browser tests: each does one thing that can be seen on a page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.browser.crowd import TASK
from windlass import Job, Windlass

#: Queues that the live worker works on; every test takes one of its own.
LANES = [f"lane-{number:02d}" for number in range(40)]
#: A queue that nobody works on: what is added there stays.
STILL = "still"


class PaymentRefused(Exception):
    """A failure with a name of its own."""


async def ok(job: Job[Any]) -> dict[str, Any]:
    """Works."""
    return {"echo": job.data}


async def broken(job: Job[Any]) -> None:
    """Fails, until the file that its arguments name is there."""
    mended = (job.data or {}).get("mended")
    if mended is None or not await asyncio.to_thread(Path(mended).exists):
        raise PaymentRefused(f"card of customer {(job.data or {}).get('customer', 7)} was refused")


async def wavering(job: Job[Any]) -> None:
    """Fails, with another text each time."""
    raise PaymentRefused(f"attempt {job.attempt} of wavering")


async def _appears(path: Path) -> None:
    while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110 - made by another process
        await asyncio.sleep(0.02)


async def gated(job: Job[Any]) -> str:
    """Writes lines and progress step by step: each step waits for its file in the folder ``gate``."""
    folder, steps = Path(job.data["gate"]), int(job.data["steps"])
    await job.log(f"begin: {steps} steps")
    for step in range(1, steps + 1):
        await _appears(folder / f"step-{step}")
        await job.log(f"step {step} is done")
        await job.update_progress({"current": step, "total": steps})
    await _appears(folder / "end")
    return "all steps done"


async def chatty(job: Job[Any]) -> None:
    """Reports progress, lines and output without a pause, until the folder ``gate`` has its end."""
    number = 0
    while not await asyncio.to_thread((Path(job.data["gate"]) / "end").exists):
        number += 1
        await job.update_progress({"current": number % 100, "total": 100})
        await job.stream(f"piece {number}")
        if number % 20 == 0:
            await job.log(f"round {number}")
        await asyncio.sleep(0.03)


HANDLERS: dict[str, Callable[[Job[Any]], Awaitable[Any]]] = {
    "ok": ok,
    "broken": broken,
    "wavering": wavering,
    "gated": gated,
    "chatty": chatty,
}
#: The same under names that look well on pictures.
HANDLERS |= dict.fromkeys(
    ("resize_image", "make_cover", "translate", "write_receipt", "send_album", "refresh"), ok
)
HANDLERS |= {"charge_card": broken, "render_film": gated}
#: And under long ones, for which pages must have room.
HANDLERS |= {TASK: ok, f"{TASK}.last": ok, f"{TASK}.broken": broken, f"{TASK}.gated": gated}


def app_at(url: str) -> Windlass:
    """An application on the store of a test."""
    return Windlass(url)
