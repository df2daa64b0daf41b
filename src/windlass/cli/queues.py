"""``windlass queues``: every queue and its counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from windlass.cli.job_views import now_ms
from windlass.cli.output import Column, Out, styled
from windlass.cli.store_commands import StoreOptions, shown_url, store_command
from windlass.cli.values import show_age, show_count

if TYPE_CHECKING:
    from windlass.core.job import QueueInfo

COLUMNS = [
    Column("queue", cut=True),
    Column("", style="yellow", drop=1),
    Column("waiting", right=True),
    Column("scheduled", right=True),
    Column("retrying", right=True),
    Column("active", right=True),
    Column("completed", right=True, drop=2),
    Column("failed", right=True),
    Column("cancelled", right=True, drop=3),
    Column("oldest", right=True),
]
_STYLES = {"waiting": "cyan", "active": "bold green", "failed": "bold red", "retrying": "yellow"}


async def run(options: StoreOptions, out: Out) -> int:
    """List the queues."""
    async with options.app() as app:
        queues = await app.queues()
    now = now_ms()
    if out.as_json:
        out.document([queue_view(info, now) for info in queues])
        return 0
    if not queues:
        out.text(f"No queues yet in {shown_url(app.url)}.")
        return 0
    out.table(COLUMNS, [_row(info, now) for info in queues])
    return 0


def queue_view(info: QueueInfo, now: int) -> dict[str, Any]:
    """A queue as a JSON value."""
    oldest = None if info.oldest_ready_ms is None else max(now - info.oldest_ready_ms, 0)
    return {**msgspec.structs.asdict(info), "oldest_wait_ms": oldest}


def _row(info: QueueInfo, now: int) -> list[Any]:
    counts = info.counts
    cells: list[Any] = [info.name, "paused" if info.paused else ""]
    for column in COLUMNS[2:-1]:
        number = counts.get(column.title, 0)
        cells.append(styled(show_count(number), _STYLES.get(column.title, "") if number else "dim"))
    cells.append(show_age(None if info.oldest_ready_ms is None else now - info.oldest_ready_ms))
    return cells


@store_command(
    "queues",
    run,
    examples="""
windlass queues
windlass queues --url sqlite:///shop.db
windlass queues --json | jq '.[] | select(.counts.failed > 0) | .name'
""",
)
def command(url: str | None) -> StoreOptions:
    """List the queues and how many jobs are in each state.

    'oldest' is how long the longest waiting job waits for a worker.
    """
    return StoreOptions(url=url)
