"""``windlass retry``: run jobs again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.changes import Answers, each
from windlass.cli.output import Out
from windlass.cli.store import StoreOptions, store_command
from windlass.core.states import JobState

if TYPE_CHECKING:
    from windlass.queue import Queue

_STEP = 1_000


@dataclass(frozen=True, kw_only=True)
class Options(StoreOptions):
    """Which jobs: ``ids``, or all in ``state``."""

    queue: str
    ids: tuple[str, ...] = ()
    all: bool = False
    state: str = "failed"
    name: str | None = None


async def run(options: Options, out: Out) -> int:
    """Retry jobs."""
    async with options.app() as app:
        queue = app.queue(options.queue)
        if not options.all:
            answers = Answers("retried")
            await each(options.ids, queue.retry, answers, out)
            return answers.report(out)
        count = await _retry_all(queue, options, out)
    out.done(f"Retried {count:,} jobs of {options.queue}.", {"retried": count})
    return 0


async def _retry_all(queue: Queue, options: Options, out: Out) -> int:
    """Those that are in the state now: a job that fails again meanwhile is not retried twice."""
    total = (await queue.get_job_counts())[JobState(options.state)]
    done = 0
    with out.progress(f"Retrying {options.state} jobs", total) as advance:
        while done < total:
            step = min(_STEP, total - done)
            count = await queue.retry_jobs(state=options.state, name=options.name, count=step)
            done += count
            advance(count)
            if count < step:
                break
    return done


@store_command(
    "retry",
    run,
    examples="""
windlass retry mail 0197b7c2d5f47a3c9d0c8f5b6f0a1c2d
windlass retry mail --all                           all failed jobs
windlass retry mail --all --name 'send_*'
windlass retry mail --all --state retrying          do not wait for the backoff
""",
)
@click.argument("queue")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", is_flag=True, help="Every job in the state.")
@click.option(
    "--state",
    type=click.Choice(["failed", "cancelled", "completed", "retrying"]),
    default="failed",
    show_default=True,
    help="With --all: which jobs.",
)
@click.option("--name", "-n", metavar="GLOB", help="With --all: only tasks whose name matches.")
def command(**values: Any) -> Options:
    """Run finished jobs again with a fresh number of attempts.

    A job that waits for its next attempt ('retrying') is made ready at once.
    """
    if bool(values["ids"]) == values["all"]:
        raise click.UsageError("Name the jobs, or pass --all.")
    return Options(**values)
