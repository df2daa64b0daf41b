"""The tasks of the shop. ``windlass worker jobs:jobs`` runs them."""

from __future__ import annotations

from windlass import Windlass

jobs = Windlass()
outbox: list[str] = []


@jobs.task(queue="mail", max_attempts=5, timeout=30)
async def send_welcome(to: str) -> str:
    outbox.append(to)
    return f"welcome, {to}"
