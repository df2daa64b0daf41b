"""``windlass clean``: delete jobs that finished long ago."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from windlass.cli.output import Out
from windlass.cli.store_commands import StoreOptions, find_queue, store_command
from windlass.cli.values import DURATION, show_span
from windlass.core.states import JobState

_STEP = 1_000


@dataclass(frozen=True, kw_only=True)
class CleanOptions(StoreOptions):
    """Jobs of ``queue`` that have been in ``states`` for more than ``grace`` seconds, at most ``limit``."""

    queue: str
    states: tuple[str, ...] = ("completed",)
    grace: float = 0
    limit: int | None = None


async def run(options: CleanOptions, out: Out) -> int:
    """Clean a queue."""
    states = " and ".join(options.states)
    older = f" older than {show_span(options.grace * 1000)}" if options.grace else ""
    if not out.confirm(f"Delete {states} jobs of {options.queue}{older}?"):
        return 1
    async with options.app() as app:
        queue = await find_queue(app, options.queue)
        counts = await queue.get_job_counts()
        there = sum(counts[JobState(state)] for state in options.states)
        wanted = there if options.limit is None else min(options.limit, there)
        removed = 0
        with out.progress("Deleting", wanted) as advance:
            while removed < wanted:
                step = min(_STEP, wanted - removed)
                count = (await queue.clean(options.grace, step, options.states)).count
                removed += count
                advance(count)
                if count < step:
                    break
    out.done(f"Deleted {removed:,} {states} jobs of {options.queue}.", {"removed": removed})
    return 0


@store_command(
    "clean",
    run,
    asks=True,
    examples="""
windlass clean mail --grace 1h                      completed more than an hour ago
windlass clean mail --state failed --grace 30d --yes
windlass clean mail --state completed --state cancelled
""",
)
@click.argument("queue")
@click.option(
    "--state",
    "-s",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in JobState if state is not JobState.ACTIVE]),
    default=["completed"],
    show_default=True,
    help="Delete jobs in this state (repeatable).",
)
@click.option(
    "--grace",
    "-g",
    type=DURATION,
    default="0s",
    show_default=True,
    help="Keep jobs that ended less than this ago.",
)
@click.option("--limit", "-l", type=click.IntRange(1), help="Delete at most this many, oldest first.")
def command(**values: Any) -> CleanOptions:
    """Delete finished jobs of QUEUE.

    Workers delete finished jobs by themselves after the retention time. Use this command to do it now.
    """
    return CleanOptions(**values)
