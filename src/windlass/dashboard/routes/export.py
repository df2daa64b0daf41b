"""Exports all jobs of a search as one file: JSON lines that can be added again, or a table."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter
from litestar.response import Stream

from windlass.backend import flow_requests as fl
from windlass.core.edges import Edge, EdgeStatus
from windlass.core.job import JobRecord, JobRef
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
from windlass.dashboard.problems import ApiError
from windlass.dashboard.shapes.changes import Filter
from windlass.dashboard.shapes.jobs import Item
from windlass.dashboard.store_view import StoreView
from windlass.errors import ConfigError
from windlass.jobs.exported import export_job
from windlass.serde import Codec, tag_types, untag_types
from windlass.serde.codecs import has_plain_values

Anyone = Request[Any, Any, Any]
Format = Annotated[
    Literal["jsonl", "csv"],
    QueryParameter(description="JSON lines, as windlass jobs --export writes them; or a table."),
]
Order = Annotated[
    Literal["newest", "oldest"], QueryParameter(description="The latest time first, or the earliest.")
]
#: Jobs that are read and sent in one step.
_STEP = 500
_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
_SPEC = {
    200: ResponseSpec(
        str, media_type="application/x-ndjson", description="The jobs, one a line", generate_examples=False
    )
}
_encode = msgspec.json.Encoder(enc_hook=str).encode
#: The columns of a table: fields of ``Item``, and those of its last error.
_COLUMNS = (
    *("queue", "id", "task", "state", "priority", "attempts", "max_attempts", "enqueued_ms", "due_ms"),
    *("started_ms", "finished_ms", "duration_ms", "worker", "reason", "tags", "group", "schedule"),
    *("error_class", "error_message", "args_preview"),
)
#: Characters with which a spreadsheet formula may begin.
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
    """All matching jobs, as a file that is sent while it is read.

    JSON lines contain everything needed to add the same job again with ``windlass enqueue --file``. Values
    that the mask hides are hidden here too. A result, progress or signal is left out if a part of it is
    hidden, if it is larger than 64 kB, or if it is in a codec of the application. A job whose arguments
    cannot be read, or that waits for a job that the caller may not see, has a line that says so. Such a
    line adds no job.
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
    """A stream that counts towards the limit of open streams. It breaks off when its caller's session ends,
    so that the client does not take the part for the whole file."""
    guard.count_stream(request.scope)

    async def content() -> AsyncGenerator[bytes, None]:
        try:
            async for piece in lines:
                if not await guard.authenticator.still_knows(request.scope):
                    raise ApiError(
                        401, "unauthenticated", "the export ends: its user is signed out or refused"
                    )
                yield piece
        finally:
            await lines.aclose()

    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="jobs.{kind}"'}
    return Stream(content(), media_type=_TYPES[kind], headers=headers)


async def _json_lines(
    pages: AsyncGenerator[list[JobRecord], None], store_view: StoreView
) -> AsyncGenerator[bytes, None]:
    async for records in pages:
        edges = await _edges(store_view, records)
        written = partial(_written, edges=edges, store_view=store_view)
        yield b"".join(await views.each(records, written, store_view.mask))


async def _edges(store_view: StoreView, records: Sequence[JobRecord]) -> dict[JobRef, list[Edge]]:
    """The edges for which blocked jobs still wait."""
    refs = [record.ref for record in records if record.state is JobState.BLOCKED]
    if not refs:
        return {}
    found = await store_view.store.execute(fl.GetDependencies(refs=refs, values=False))
    return {
        ref: [edge for edge in one.depends_on if edge.status is EdgeStatus.OPEN]
        for ref, one in zip(refs, found, strict=True)
    }


def _written(
    record: JobRecord, mask: Mask, *, edges: dict[JobRef, list[Edge]], store_view: StoreView
) -> bytes:
    return _encode(_line(record, mask, edges.get(record.ref, []), store_view)) + b"\n"


def _line(record: JobRecord, mask: Mask, edges: list[Edge], store_view: StoreView) -> dict[str, Any]:
    if not all(store_view.shows(edge.child.queue) for edge in edges):
        return _named(record, "incomplete")  # without its edges it would be added as ready to run
    try:
        line = export_job(_shown(record, mask), edges, store_view.mask.codecs, store_view.now_ms())
        return line if mask.nothing else line | _hidden_arguments(line, mask)
    except (ValueError, TypeError, KeyError, ConfigError):
        return _named(record, "unreadable")


def _named(record: JobRecord, why: str) -> dict[str, Any]:
    """A line that names a job but cannot add it."""
    line = {"name": record.task, "queue": record.queue, "job_id": record.id}
    return {**line, "state": record.state.value, why: True}


def _hidden_arguments(line: dict[str, Any], mask: Mask) -> dict[str, Any]:
    """The arguments of a line, masked. Type tags would separate a value from its name."""
    arguments = {name: line[name] for name in ("data", "args", "kwargs") if name in line}
    if not line.get("types"):
        return {name: mask.hide(value) for name, value in arguments.items()}
    return {name: tag_types(mask.hide(untag_types(value))) for name, value in arguments.items()}


def _shown(record: JobRecord, mask: Mask) -> JobRecord:
    """The record without values that the mask hides, and without names of hidden queues."""
    codecs, output = mask.codecs, partial(mask.codecs.output, record.result_codec)
    has_result = _is_open(record.result, output, partial(codecs.read_result, record), mask)
    has_progress = _is_open(record.progress, output, partial(codecs.read_progress, record), mask)
    kept = {
        name: signal
        for name, signal in record.signals.items()
        if _is_open(
            signal.data,
            partial(codecs.payload, signal.codec),
            partial(codecs.read_signal, record.ref, name, signal),
            mask,
        )
    }
    errors = [
        msgspec.structs.replace(one, message=mask.text(one.message), traceback=mask.text(one.traceback))
        for one in record.errors
    ]
    return msgspec.structs.replace(
        record,
        options=views.shown_options(record, mask),
        errors=errors,
        result=record.result if has_result else None,
        progress=record.progress if has_progress else None,
        signals=kept,
    )


def _is_open(data: bytes | None, codec: Callable[[], Codec], read: Callable[[], Any], mask: Mask) -> bool:
    """Whether a stored value has no hidden part. Its bytes would show all parts.

    Also False if the check would take long or is not possible: a codec of the application may keep fields in
    its bytes that the value does not show.
    """
    if mask.nothing or data is None:
        return True
    try:
        if len(data) > views.PREVIEWED_BYTES or not has_plain_values(codec()):
            return False
        value = views.plain(read())
    except (ValueError, TypeError, ConfigError):
        return False
    return bool(mask.hide(value) == value)


async def _csv(pages: AsyncGenerator[list[JobRecord], None], mask: Mask) -> AsyncGenerator[bytes, None]:
    yield _rows([_COLUMNS])
    async for records in pages:
        if records:
            yield _rows([_cells(item) for item in await views.each(records, views.item, mask)])


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
    """A cell that no spreadsheet treats as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


HANDLERS = [export_jobs]
