"""Every job that a search finds, as one file: JSON lines that can be added again, or a table."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter
from litestar.response import Stream

from windlass.backend import flow_requests as fl
from windlass.core.job import JobRecord
from windlass.core.order import Sort
from windlass.core.states import JobState
from windlass.dashboard import views
from windlass.dashboard.access import of_queues
from windlass.dashboard.filters import exact_page, listing_of, names_of, understand
from windlass.dashboard.guard import Guard
from windlass.dashboard.injected import TheGuard, TheStoreView
from windlass.dashboard.masking import Mask
from windlass.dashboard.paging import Found
from windlass.dashboard.params import Instant, Queues, SearchText, SortBy, States, Text
from windlass.dashboard.scope import address_of
from windlass.dashboard.shapes.changes import Filter
from windlass.dashboard.shapes.jobs import Item
from windlass.dashboard.store_view import StoreView
from windlass.errors import ConfigError
from windlass.jobs.exported import export_job

Anyone = Request[Any, Any, Any]
Format = Annotated[
    Literal["jsonl", "csv"],
    QueryParameter(description="JSON lines, as windlass jobs --export writes them; or a table."),
]
Order = Annotated[
    Literal["newest", "oldest"], QueryParameter(description="The latest time first, or the earliest.")
]
#: Jobs that are read and sent at once.
_STEP = 500
_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
_SPEC = {
    200: ResponseSpec(
        str, media_type="application/x-ndjson", description="The jobs, one a line", generate_examples=False
    )
}
#: The columns of a table: fields of ``Item``, and those of its last error.
_COLUMNS = (
    *("queue", "id", "task", "state", "priority", "attempts", "max_attempts", "enqueued_ms", "due_ms"),
    *("started_ms", "finished_ms", "duration_ms", "worker", "reason", "tags", "group", "schedule"),
    *("error_class", "error_message", "args_preview"),
)
#: What a spreadsheet takes for the begin of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@get("/api/v1/jobs/export", tags=["jobs"], responses=_SPEC, streamed=True, access=of_queues())
async def export_jobs(  # noqa: PLR0913 - each is one filter of the search page
    store_view: TheStoreView,
    guard: TheGuard,
    request: Anyone,
    queue: Queues = None,
    states: States = None,
    q: Text = None,
    search: SearchText = None,
    from_ms: Instant = None,
    to_ms: Instant = None,
    sort: SortBy = Sort.ADDED,
    order: Order = "oldest",
    format: Format = "jsonl",
) -> Stream:
    """Every job that fits, as a file that is sent while it is read.

    JSON lines have all that adds the same job again: ``windlass enqueue --file`` takes them. Values that the
    mask hides are hidden here, too. A job whose arguments cannot be read has a line that says so.
    """
    given = Filter(queue=queue or [], state=states or [], q=q, from_ms=from_ms, to_ms=to_ms, search=search)
    wanted = understand(store_view, given)
    names = names_of(store_view, wanted, await store_view.queues())
    listed = listing_of(store_view, wanted, sort=sort, newest_first=order == "newest")

    async def pages() -> AsyncGenerator[list[JobRecord], None]:
        found: Found | None = None
        if wanted.query.ids:
            found = await exact_page(store_view, wanted, names, listed)
        found = found or await listed.page(names, None, _STEP)
        yield found.records
        while found.cursor is not None:
            found = await listed.page(names, found.cursor, _STEP)
            yield found.records

    lines = _csv(pages(), store_view.mask) if format == "csv" else _json_lines(pages(), store_view)
    return _file(guard, request, lines, format)


def _file(guard: Guard, request: Anyone, lines: AsyncGenerator[bytes, None], kind: str) -> Stream:
    """A stream within the server's bound of open ones; it ends with the session of its caller."""
    place = guard.allowance.stream(address_of(request.scope))

    async def content() -> AsyncGenerator[bytes, None]:
        try:
            async for piece in lines:
                if not guard.reception.still_knows(request.scope):
                    return
                yield piece
        finally:
            await lines.aclose()
            place.free()

    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="jobs.{kind}"'}
    return Stream(content(), media_type=_TYPES[kind], headers=headers)


async def _json_lines(
    pages: AsyncGenerator[list[JobRecord], None], store_view: StoreView
) -> AsyncGenerator[bytes, None]:
    async for records in pages:
        edges = await _edges(store_view, records)
        lines = [_line(record, edges.get(record.id, []), store_view) for record in records]
        yield msgspec.json.Encoder(enc_hook=str).encode_lines(lines)


async def _edges(store_view: StoreView, records: Sequence[JobRecord]) -> dict[str, list[Any]]:
    """What blocked jobs wait for."""
    refs = [record.ref for record in records if record.state is JobState.BLOCKED]
    if not refs:
        return {}
    found = await store_view.store.execute(fl.GetDependencies(refs=refs, values=False))
    return {ref.id: one.depends_on for ref, one in zip(refs, found, strict=True)}


def _line(record: JobRecord, edges: list[Any], store_view: StoreView) -> dict[str, Any]:
    mask = store_view.mask
    try:
        line = export_job(record, edges, store_view.app.codecs, store_view.now_ms())
    except (ValueError, ConfigError):
        line = {"name": record.task, "queue": record.queue, "job_id": record.id}
        return {**line, "state": record.state.value, "unreadable": True}
    if not mask.nothing:
        line |= {name: mask.hide(line[name]) for name in ("data", "args", "kwargs") if name in line}
    return line


async def _csv(pages: AsyncGenerator[list[JobRecord], None], mask: Mask) -> AsyncGenerator[bytes, None]:
    yield _rows([_COLUMNS])
    async for records in pages:
        if records:
            yield _rows([_cells(views.item(record, mask)) for record in records])


def _rows(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def _cells(item: Item) -> list[Any]:
    error = item.error
    more = {
        "tags": " ".join(item.tags),
        "state": item.state.value,
        "error_class": "" if error is None else error.error_class,
        "error_message": "" if error is None else error.message,
    }
    return [_cell(more[name] if name in more else getattr(item, name)) for name in _COLUMNS]


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


HANDLERS = [export_jobs]
