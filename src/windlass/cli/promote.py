"""``windlass promote``: makes scheduled and retrying jobs ready now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.cli.job_changes import Answers, each
from windlass.cli.selecting import Selection, check_selection, selects
from windlass.cli.store_commands import find_queue, store_command
from windlass.errors import JobNotFoundError

if TYPE_CHECKING:
    from windlass.cli.output import Out


async def run(options: Selection, out: Out) -> int:
    """Promote jobs."""
    async with options.app() as app:
        queue = await find_queue(app, options.queue)
        if options.all:
            with out.waiting(f"Promoting jobs of {options.queue}"):
                count = await queue.promote_jobs(state=options.states, **options.search)
            out.done(f"Made {count:,} jobs of {options.queue} ready.", {"promoted": count})
            return 0

        async def promote(job_id: str) -> None:
            job = await queue.get_job(job_id)
            if job is None:
                raise JobNotFoundError(options.queue, job_id)
            await job.promote()

        answers = Answers("promoted")
        await each(options.ids, promote, answers, out)
    return answers.report(out)


@store_command(
    "promote",
    run,
    examples="""
windlass promote mail order-17
windlass promote mail --all --tag urgent
windlass promote mail --all --state scheduled --name 'send_*'
""",
)
@selects(["scheduled", "retrying"], default=["scheduled", "retrying"])
def command(**values: Any) -> Selection:
    """Run scheduled and retrying jobs now."""
    return Selection(**check_selection(values))
