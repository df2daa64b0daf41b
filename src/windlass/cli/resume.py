"""``windlass resume``: starts jobs of a paused queue again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from windlass.cli.output import Out
from windlass.cli.store_commands import StoreOptions, find_queue, store_command


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(StoreOptions):
    """Which queues."""

    queues: tuple[str, ...]


async def run(options: ResumeOptions, out: Out) -> int:
    """Resume queues."""
    async with options.app() as app:
        for queue in [await find_queue(app, name) for name in options.queues]:
            await queue.resume()
    out.done(f"Resumed {', '.join(options.queues)}.", {"resumed": options.queues})
    return 0


@store_command(
    "resume",
    run,
    examples="""
windlass resume mail
windlass resume mail images
""",
)
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
def command(**values: Any) -> ResumeOptions:
    """Start jobs of a paused QUEUE again."""
    return ResumeOptions(**values)
