"""``windlass why``: explains why a job is not running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import msgspec

from windlass.cli.job_views import now_ms
from windlass.cli.output import Out, state_text
from windlass.cli.store_commands import StoreOptions, find_queue, store_command
from windlass.cli.values import show_age
from windlass.core.text import printable

if TYPE_CHECKING:
    from windlass.api.why import Cause, Why


@dataclass(frozen=True, kw_only=True)
class WhyOptions(StoreOptions):
    """Which job."""

    queue: str
    id: str


async def run(options: WhyOptions, out: Out) -> int:
    """Explain why a job is not running."""
    async with options.app() as app:
        found = await (await find_queue(app, options.queue)).why(options.id)
    if out.as_json:
        out.document(msgspec.to_builtins(found))
    else:
        _draw(found, out)
    return 0


def _draw(found: Why, out: Out) -> None:
    line = state_text(found.state)
    line.append(f"  job {printable(found.ref.id)} of {found.ref.queue}")
    out.text(line)
    for cause in found.causes:
        out.text(f"- {printable(cause.text)}{_until(cause)}")
        for ref in cause.jobs:
            out.text(f"    {ref.queue} {printable(ref.id)}", "dim")
        if cause.advice:
            out.text(f"  → {printable(cause.advice)}", "dim")
    if found.place is not None:
        out.text(f"Place in line: {found.place:,}")


def _until(cause: Cause) -> str:
    if cause.until_ms is None:
        return ""
    left = cause.until_ms - now_ms()
    return f" (for {show_age(left)} more)" if left > 0 else ""


@store_command(
    "why",
    run,
    examples="""
windlass why mail 0192f0c1
windlass why mail 0192f0c1 --json
""",
)
@click.argument("queue")
@click.argument("job_id", metavar="ID")
def command(job_id: str, **values: Any) -> WhyOptions:
    """Explain why a job of QUEUE is not running, and what to do.

    It looks at pauses, missing workers, limits and the jobs that use them up, dependencies, the due time
    and the jobs ahead of it.
    """
    return WhyOptions(id=job_id, **values)
