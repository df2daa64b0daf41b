"""``windlass cancel``: cancel waiting and running jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from windlass.cli.job_changes import Answers, each
from windlass.cli.output import Out
from windlass.cli.selecting import Selection, check_selection, selects
from windlass.cli.store_commands import find_queue, store_command
from windlass.core.outcome import CancelResult
from windlass.core.states import FINISHED, JobState
from windlass.errors import IllegalTransitionError, JobNotFoundError


@dataclass(frozen=True, kw_only=True)
class CancelOptions(Selection):
    """The jobs, and the reason to store with them."""

    reason: str = ""


async def run(options: CancelOptions, out: Out) -> int:
    """Cancel jobs."""
    answers = Answers("cancelled")
    async with options.app() as app:
        queue = await find_queue(app, options.queue)
        if options.all:
            with out.waiting(f"Cancelling jobs of {options.queue}"):
                count = await queue.cancel_jobs(state=options.states, reason=options.reason, **options.search)
            out.done(f"Cancelled {count:,} jobs of {options.queue}.", {"cancelled": count})
            return 0

        async def cancel(job_id: str) -> str:
            outcome = await queue.cancel(job_id, options.reason)
            if outcome is CancelResult.NOT_FOUND:
                raise JobNotFoundError(options.queue, job_id)
            if outcome is CancelResult.FINISHED:
                raise IllegalTransitionError(job_id, "finished", "cancel")
            return outcome.value

        await each(options.ids, cancel, answers, out)
    return answers.report(out)


@store_command(
    "cancel",
    run,
    examples="""
windlass cancel mail order-17
windlass cancel mail order-17 order-18 --reason 'sold out'
windlass cancel mail --all --state scheduled --tag campaign-7
""",
)
@selects([state.value for state in JobState if state not in FINISHED])
@click.option("--reason", default="", help="A reason, stored with the job.")
def command(**values: Any) -> CancelOptions:
    """Cancel jobs of QUEUE.

    A waiting job is cancelled at once. A running one is 'cancelling' until its worker has stopped it.
    """
    return CancelOptions(**check_selection(values))
