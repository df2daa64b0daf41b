"""``windlass retry``: runs jobs again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.api.bulk import retry_in_steps
from windlass.cli.job_changes import Answers, each
from windlass.cli.output import Out
from windlass.cli.selecting import Selection, check_selection, selects
from windlass.cli.store_commands import find_queue, store_command
from windlass.core.states import JobState

if TYPE_CHECKING:
    from windlass.api.queue import Queue


async def run(options: Selection, out: Out) -> int:
    """Retry jobs."""
    async with options.app() as app:
        queue = await find_queue(app, options.queue)
        if not options.all:
            answers = Answers("retried")
            await each(options.ids, queue.retry, answers, out)
            return answers.report(out)
        count = await _retry_all(queue, options, out)
    out.done(f"Retried {count:,} jobs of {options.queue}.", {"retried": count})
    return 0


async def _retry_all(queue: Queue, options: Selection, out: Out) -> int:
    """Retry the jobs that are in the state now. A job that fails again meanwhile is not retried twice."""
    counts = await queue.get_job_counts()
    total = sum(counts[JobState(state)] for state in options.states)
    with out.progress(f"Retrying {' and '.join(options.states)} jobs", total) as advance:
        done = 0
        async for count in retry_in_steps(queue, options.states, total, options.search):
            done += count
            advance(count)
    return done


@store_command(
    "retry",
    run,
    examples="""
windlass retry mail 0197b7c2d5f47a3c9d0c8f5b6f0a1c2d
windlass retry mail --all                           all failed jobs
windlass retry mail --all --name 'send_*' --error SMTPError
windlass retry mail --all --search 'error:Timeout* args.customer.id:42 finished:<1h'
windlass retry mail --all --state retrying          do not wait for the backoff
""",
)
@selects(["failed", "cancelled", "completed", "retrying"], default=["failed"])
def command(**values: Any) -> Selection:
    """Run finished jobs again, with all their attempts.

    A job that waits for its next attempt ('retrying') is made ready at once.
    """
    return Selection(**check_selection(values))
