"""``windlass clear``: delete the waiting jobs of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from windlass.cli.output import Out
from windlass.cli.store_commands import StoreOptions, find_queue, store_command
from windlass.core.states import TIMED, JobState


@dataclass(frozen=True, kw_only=True)
class ClearOptions(StoreOptions):
    """Which queue. ``delayed``: also jobs that are due later."""

    queue: str
    delayed: bool = False


async def run(options: ClearOptions, out: Out) -> int:
    """Clear a queue."""
    async with options.app() as app:
        queue = await find_queue(app, options.queue)
        counts = await queue.get_job_counts()
        states = [
            JobState.WAITING,
            JobState.BLOCKED,
            JobState.PARKED,
            *(state for state in JobState if options.delayed and state in TIMED),
        ]
        there = {state.value: counts[state] for state in states if counts[state]}
        by_state = ", ".join(f"{count:,} {state}" for state, count in there.items())
        if there and not out.confirm(
            f"Delete {sum(there.values()):,} jobs of queue {options.queue} ({by_state})? They will not run."
        ):
            return 1
        with out.waiting("Deleting"):
            removed = await queue.clear(delayed=options.delayed) if there else 0
    out.done(f"Deleted {removed:,} waiting jobs of {options.queue}.", {"removed": removed})
    return 0


@store_command(
    "clear",
    run,
    asks=True,
    examples="""
windlass clear mail
windlass clear mail --delayed --yes                 scheduled and retrying ones too
windlass jobs mail --state waiting --export > saved.jsonl && windlass clear mail --yes
""",
)
@click.argument("queue")
@click.option(
    "--delayed", is_flag=True, help="Also delete jobs that are scheduled, suspended or waiting for a retry."
)
def command(**values: Any) -> ClearOptions:
    """Delete all waiting jobs of QUEUE. Running and finished ones stay."""
    return ClearOptions(**values)
