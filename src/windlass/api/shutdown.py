"""Close workers, queues and apps when the process is asked to stop."""

from __future__ import annotations

import asyncio
import signal
from typing import Protocol


class Closable(Protocol):
    """A worker, a queue, an app or an event reader."""

    async def close(self) -> None: ...


async def graceful_shutdown(*components: Closable) -> None:
    """Wait for SIGTERM or SIGINT, then close ``components`` in the order given. Main thread only."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, asked.set)
    try:
        await asked.wait()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
    for component in components:
        await component.close()
