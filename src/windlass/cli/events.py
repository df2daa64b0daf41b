"""``windlass events``: shows past events of a queue, and follows new ones."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from windlass.backend import requests as rq
from windlass.cli.output import STATE_STYLES, Out, styled
from windlass.cli.store_commands import StoreOptions, store_command
from windlass.cli.values import show_time
from windlass.core.job import EventType

if TYPE_CHECKING:
    from windlass.api.queue import Queue
    from windlass.core.job import Event

#: The indentation of details that are on a line of their own.
_INDENT = 33
_STYLES = {
    **STATE_STYLES,
    "enqueued": "cyan",
    "started": "green",
    "stalled": "bold yellow",
    "progress": "dim",
}


@dataclass(frozen=True, kw_only=True)
class EventsOptions(StoreOptions):
    """Events of ``queue`` after id ``after`` (None: the last ``limit``)."""

    queue: str
    after: int | None = None
    follow: bool = False
    types: tuple[str, ...] = ()
    limit: int = 50


async def run(options: EventsOptions, out: Out) -> int:
    """Print events, oldest first."""
    async with options.app() as app:
        queue = app.queue(options.queue)
        last = await _kept(queue, options, out)
        if options.follow:
            with suppress(asyncio.CancelledError):  # Ctrl-C ends following
                await _follow(queue, last, options, out)
    return 0


async def _kept(queue: Queue, options: EventsOptions, out: Out) -> int:
    """Print the stored events; returns the id of the last one."""
    newest = (await queue.store.execute(rq.ReadEvents(queue=queue.name, limit=1))).last_id
    after = options.after if options.after is not None else max(newest - options.limit, 0)
    left = options.limit
    while left > 0 and after < newest:
        page = await queue.store.execute(rq.ReadEvents(queue=queue.name, after=after))
        if not page.events:
            break
        if options.after is not None and page.oldest_id > after + 1:
            out.note(f"Events up to {page.oldest_id - 1} are no longer kept.")
        for event in page.events:
            after = event.id
            left -= _print(event, options, out)
            if left <= 0:
                break
    return after


async def _follow(queue: Queue, after: int, options: EventsOptions, out: Out) -> None:
    async with aclosing(queue.events(after, values=False)) as events:
        async for event in events:
            _print(event, options, out)


def _print(event: Event, options: EventsOptions, out: Out) -> bool:
    if options.types and event.type not in options.types:
        return False
    if out.as_json:
        out.line({name: getattr(event, name) for name in event.__struct_fields__})
        return True
    line = styled(f"{event.id:>6}  {show_time(event.at_ms, with_date=False)}  ", "dim")
    line.append(f"{event.type.value:<12} ", style=_STYLES.get(event.type.value, ""))
    line.append(f"{event.job_id}  {event.task}".rstrip())
    details = " ".join(f"{key}={value}" for key, value in event.data.items())
    if details and len(line) + len(details) + 2 > out.console.width:
        out.text(line)
        line = styled(" " * _INDENT, "")
    line.append(f"  {details}".rstrip(), style="dim")
    line.rstrip()
    out.text(line)
    return True


@store_command(
    "events",
    run,
    examples="""
windlass events mail                                the last 50
windlass events mail --follow --type failed
windlass events mail --after 0 --limit 1000 --json
""",
)
@click.argument("queue")
@click.option("--after", type=click.IntRange(0), help="Only events after this id (0: all that are kept).")
@click.option("--follow", "-f", is_flag=True, help="Follow new events until Ctrl-C.")
@click.option(
    "--type",
    "-t",
    "types",
    multiple=True,
    type=click.Choice([t.value for t in EventType]),
    metavar="TYPE",
    help="Only events of this type (repeatable).",
)
@click.option("--limit", "-l", type=click.IntRange(1), default=50, show_default=True)
def command(**values: Any) -> EventsOptions:
    """Show events of QUEUE: every change of state of every job, in order.

    With --json each event is one line.
    """
    return EventsOptions(**values)
