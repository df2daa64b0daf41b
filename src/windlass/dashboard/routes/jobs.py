"""The search, and everything about one job."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, delete, get, patch, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, QueryParameter

from windlass.api.why import explain
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backend import stream_requests as sm
from windlass.core.edges import Edge
from windlass.core.job import JobRecord, JobRef
from windlass.core.order import Sort
from windlass.core.outcome import CancelResult
from windlass.core.states import FINISHED, JobState
from windlass.dashboard import views
from windlass.dashboard.access import of_queue, of_queues
from windlass.dashboard.audit import note
from windlass.dashboard.filters import exact_page, listing_of, names_of, understand, without_exact
from windlass.dashboard.injected import TheStoreView
from windlass.dashboard.lists import counted
from windlass.dashboard.params import (
    Cursor,
    Instant,
    JobId,
    Limit,
    Offset,
    QueueName,
    Queues,
    SearchText,
    SortBy,
    States,
    Text,
    versioned,
)
from windlass.dashboard.problems import ApiError, not_found
from windlass.dashboard.shapes.changes import (
    Added,
    AgainBody,
    CancelAnswer,
    ChangeBody,
    Filter,
    ReasonBody,
    SignalBody,
)
from windlass.dashboard.shapes.jobs import Detail, EdgeEntry, Items, JobPage, Logs, Output, Timeline, Why
from windlass.dashboard.store_view import StoreView
from windlass.dashboard.timeline import read_timeline
from windlass.errors import ConfigError
from windlass.jobs.job import Job

Anyone = Request[Any, Any, Any]
Order = Annotated[
    Literal["newest", "oldest"], QueryParameter(description="The latest time first, or the earliest.")
]
#: Maximum number of log lines on a job's page; the newest are shown.
_LINES = 200
Values = Annotated[bool, QueryParameter(description="With arguments and result.")]
Arguments = Annotated[
    str | None,
    QueryParameter(max_length=4_000, description='Keyword arguments as a JSON object, such as {"user": 7}.'),
]


@get(versioned("/api/jobs"), tags=["jobs"], access=of_queues())
async def search_jobs(  # noqa: PLR0913 - each is one filter of the search page
    store_view: TheStoreView,
    queue: Queues = None,
    states: States = None,
    task: Text = None,
    tag: Text = None,
    error: Text = None,
    args: Arguments = None,
    q: Text = None,
    search: SearchText = None,
    from_ms: Instant = None,
    to_ms: Instant = None,
    sort: SortBy = Sort.ADDED,
    order: Order = "newest",
    cursor: Cursor = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Items:
    """Jobs of all or some queues that match these filters.

    A search reads until the page is full, for at most about 150 ms. If ``done`` is false, continue with
    ``next_cursor``. The id of a job, as ``search`` or ``q``, is found at once.
    """
    given = Filter(
        queue=queue or [],
        state=states or [],
        task=task,
        tag=tag,
        error=error,
        args=_arguments(args),
        q=q,
        from_ms=from_ms,
        to_ms=to_ms,
        search=search,
    )
    wanted = understand(store_view, given)
    infos = await store_view.queues()
    names = names_of(store_view, wanted, infos)
    listed = listing_of(store_view, wanted, sort=sort, newest_first=order == "newest")
    first = await exact_page(store_view, wanted, names, listed) if cursor is None and not offset else None
    found = first or await without_exact(listed, wanted).page(names, cursor, limit, offset)
    among = [info for info in infos if info.name in names]
    there = counted(among, wanted.filter.state)
    return Items(
        items=await views.each(found.records, views.item, store_view.mask),
        next_cursor=found.cursor,
        total=there if wanted.simple else None,
        scanned=found.scanned,
        to_scan=there,
        done=found.cursor is None,
    )


def _arguments(text: str | None) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        raise ApiError(
            400, "bad_args", "args is not a JSON object", 'Write it as {"user": 7}, URL-encoded.'
        ) from None


@get(versioned("/api/jobs/{queue:str}/{jid:str}"), tags=["jobs"], access=of_queue())
async def get_job(store_view: TheStoreView, queue: QueueName, jid: JobId) -> Detail:
    """Everything about one job."""
    job = await store_view.job(queue, jid)
    _, count = await job.queue.get_job_logs(jid, 0, 1)
    return await _detail(store_view, job.record, count)


async def _detail(store_view: StoreView, record: JobRecord, log_lines: int) -> Detail:
    children, parents = await _edges(store_view, record)
    return views.detail(record, store_view.mask, children=children, parents=parents, log_lines=log_lines)


@get(
    "/api/v1/jobs/{queue:str}/{jid:str}/page",
    tags=["jobs"],
    responses={
        200: ResponseSpec(JobPage, description="The page", generate_examples=False),
        304: ResponseSpec(None, description="Nothing has changed", generate_examples=False),
    },
    access=of_queue(),
)
async def get_job_page(
    store_view: TheStoreView,
    request: Anyone,
    queue: QueueName,
    jid: JobId,
    values: Values = True,
) -> Response[bytes]:
    """Everything that a page about one job shows; 304 if it is unchanged since ``If-None-Match``."""
    job = await store_view.job(queue, jid)
    _, count = await job.queue.get_job_logs(jid, 0, 1)
    detail = await _detail(store_view, job.record, count)
    if not values:
        detail.args, detail.kwargs, detail.data, detail.result = [], {}, None, None
    body = JobPage(
        job=detail,
        timeline=await read_timeline(store_view.store, job.record, store_view.mask),
        logs=await _log_lines(store_view, job, max(count - _LINES, 0), _LINES),
        why=None if job.state in FINISHED else await _why(store_view, job.record.ref),
    )
    content = msgspec.json.encode(body)
    etag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
    if request.headers.get("if-none-match") == etag:
        return Response(b"", status_code=304, media_type="application/json", headers={"ETag": etag})
    return Response(content, media_type="application/json", headers={"ETag": etag})


async def _edges(store_view: StoreView, record: JobRecord) -> tuple[list[EdgeEntry], list[EdgeEntry]]:
    """The jobs that a job waits for, and those that wait for it. Jobs of hidden queues are left out."""
    if not record.linked or not store_view.store.capabilities.flows:
        return [], []
    found = (await store_view.store.execute(fl.GetDependencies(refs=[record.ref], values=False)))[0]
    below = [edge for edge in found.depends_on if store_view.shows(edge.child.queue)][:1_000]
    above = [edge for edge in found.dependents if store_view.shows(edge.dependent.queue)]
    refs = [*(edge.child for edge in below), *(edge.dependent for edge in above)]
    answers = await store_view.store.execute(rq.GetJobs(refs=refs)) if refs else []
    records = dict(zip(refs, answers, strict=True))
    return (
        [_edge_entry(edge, edge.child, records) for edge in below],
        [_edge_entry(edge, edge.dependent, records) for edge in above],
    )


def _edge_entry(edge: Edge, ref: JobRef, records: dict[JobRef, JobRecord | None]) -> EdgeEntry:
    record = records.get(ref)
    return EdgeEntry(
        queue=ref.queue,
        id=ref.id,
        task=record.task if record is not None else "",
        state=record.state if record is not None else None,
        status=edge.status.value,
        on_failure=edge.on_failure.value,
    )


@get(versioned("/api/jobs/{queue:str}/{jid:str}/logs"), tags=["jobs"], access=of_queue())
async def get_logs(
    store_view: TheStoreView,
    queue: QueueName,
    jid: JobId,
    start: Annotated[int, QueryParameter(ge=0, le=1_000_000)] = 0,
    limit: Limit = 1_000,
) -> Logs:
    """Log lines of a job."""
    return await _log_lines(store_view, await store_view.job(queue, jid), start, limit)


async def _log_lines(store_view: StoreView, job: Job[Any], start: int, limit: int) -> Logs:
    lines, total = await job.queue.get_job_log_lines(job.id, start, limit)
    shown = [views.log_line(number, line, store_view.mask) for number, line in enumerate(lines, start)]
    return Logs(lines=shown, next=start + len(lines), total=total)


@get("/api/v1/jobs/{queue:str}/{jid:str}/output", tags=["jobs"], access=of_queue())
async def get_output(
    store_view: TheStoreView,
    queue: QueueName,
    jid: JobId,
    after: Annotated[
        int, QueryParameter(ge=0, le=2**53, description="Only chunks with a higher number.")
    ] = 0,
    limit: Limit = 200,
) -> Output:
    """The output of a job (``job.stream``), oldest first, as far as it is kept."""
    store_view.store.capabilities.require(store_view.store.name, "streams")
    ref = (await store_view.job(queue, jid)).record.ref
    page = await store_view.store.execute(sm.ReadStream(ref=ref, after=after, limit=limit))
    brief = store_view.mask.brief()
    return Output(
        chunks=[views.output_chunk(ref, page.codec, chunk, brief) for chunk in page.chunks],
        next=page.chunks[-1].index if page.chunks else after,
        last=page.last,
        oldest=page.oldest if page.last else 0,
    )


@get(versioned("/api/jobs/{queue:str}/{jid:str}/timeline"), tags=["jobs"], access=of_queue())
async def get_timeline(store_view: TheStoreView, queue: QueueName, jid: JobId) -> Timeline:
    """Attempts and events of a job, as far as the store's logs reach."""
    return await read_timeline(store_view.store, (await store_view.job(queue, jid)).record, store_view.mask)


@get(versioned("/api/jobs/{queue:str}/{jid:str}/why"), tags=["jobs"], access=of_queue())
async def explain_job(store_view: TheStoreView, queue: QueueName, jid: JobId) -> Why:
    """Why a job is not running: what holds it back now first, then what would hold it back next."""
    return await _why(store_view, (await store_view.job(queue, jid)).record.ref)


async def _why(store_view: StoreView, ref: JobRef) -> Why:
    found = await explain(store_view.store, ref, store_view.now_ms())
    shown = {ref: None for cause in found.causes for ref in cause.jobs if store_view.shows(ref.queue)}
    answers = await store_view.store.execute(rq.GetJobs(refs=list(shown))) if shown else []
    records = dict(zip(shown, answers, strict=True))
    return views.why(found, records)


# --- change ------------------------------------------------------------------------------------


@post(
    versioned("/api/jobs/{queue:str}/{jid:str}/retry"),
    status_code=204,
    tags=["jobs"],
    access=of_queue("retry"),
)
async def retry_job(store_view: TheStoreView, queue: QueueName, jid: JobId) -> None:
    """Run a finished job again with all its attempts, or make a retrying one ready now."""
    await store_view.queue(queue).retry(jid)


@post(
    versioned("/api/jobs/{queue:str}/{jid:str}/again"), status_code=201, tags=["jobs"], access=of_queue("add")
)
async def add_again(
    store_view: TheStoreView,
    request: Anyone,
    queue: QueueName,
    jid: JobId,
    data: JSONBody[AgainBody | None] = None,
) -> Added:
    """Add a new job like this one, with the same options. ``data`` may be edited.

    Hidden values that are sent back as they were shown keep their stored content.
    """
    old = (await store_view.job(queue, jid)).record
    call = views.call_of(old, store_view.app.codecs)
    if call is None:
        raise ApiError(422, "unreadable", "the job's arguments cannot be read", "Add a new job.")
    given = data.data if data is not None else msgspec.UNSET
    payload = call.data if given is msgspec.UNSET else store_view.mask.restore(given, call.data)
    home = store_view.queue(queue)
    new = home.prepare(old.task, payload, unique=None)
    new.options = msgspec.structs.replace(
        old.options, unique=None, schedule=None, slot_ms=None, parent=None, root=None
    )
    new.priority = old.priority
    job = (await home.add_new([new]))[0]
    note(request, new_id=job.id, edited=given is not msgspec.UNSET)
    return Added(queue=queue, id=job.id, outcome="queued", state=job.state)


@post(
    versioned("/api/jobs/{queue:str}/{jid:str}/trigger"),
    status_code=204,
    tags=["jobs"],
    access=of_queue("trigger"),
)
async def trigger_job(store_view: TheStoreView, queue: QueueName, jid: JobId) -> None:
    """Make a scheduled or retrying job ready now."""
    await (await store_view.job(queue, jid)).promote()


@post(
    versioned("/api/jobs/{queue:str}/{jid:str}/cancel"),
    status_code=200,
    tags=["jobs"],
    access=of_queue("cancel"),
)
async def cancel_job(
    store_view: TheStoreView,
    request: Anyone,
    queue: QueueName,
    jid: JobId,
    data: JSONBody[ReasonBody | None] = None,
) -> CancelAnswer:
    """Cancel a job: a pending one at once, a running one through its worker."""
    reason = data.reason if data is not None else ""
    note(request, reason=reason)
    result = await store_view.queue(queue).cancel(jid, reason)
    if result is CancelResult.NOT_FOUND:
        raise not_found(f"queue {queue!r} has no job {jid!r}")
    note(request, result=result.value)
    return CancelAnswer(result=result.value)


@delete(
    versioned("/api/jobs/{queue:str}/{jid:str}"), status_code=204, tags=["jobs"], access=of_queue("delete")
)
async def delete_job(store_view: TheStoreView, queue: QueueName, jid: JobId) -> None:
    """Delete the record of a job. A running job is refused: cancel it first."""
    await store_view.queue(queue).remove(jid)


@patch(
    versioned("/api/jobs/{queue:str}/{jid:str}"), status_code=204, tags=["jobs"], access=of_queue("change")
)
async def change_job(
    store_view: TheStoreView, request: Anyone, queue: QueueName, jid: JobId, data: JSONBody[ChangeBody]
) -> None:
    """Change priority, due time or data of a pending job."""
    job = await store_view.job(queue, jid)
    if job.state in FINISHED or job.state is JobState.ACTIVE:
        raise ApiError(
            409,
            "illegal_transition",
            f"job {jid!r} is {job.state} and cannot be changed",
            "Change jobs before they start.",
        )
    if data == ChangeBody():
        raise ConfigError("body", message="there is nothing to change: give priority, delay or data")
    if not isinstance(data.data, msgspec.UnsetType):
        await job.update_data(_edited(store_view, job, data.data))
        note(request, data="changed")
    if not isinstance(data.priority, msgspec.UnsetType):
        await job.change_priority(data.priority)
        note(request, priority=data.priority)
    if not isinstance(data.delay, msgspec.UnsetType):
        await job.change_delay(data.delay)
        note(request, delay=data.delay)


def _edited(store_view: StoreView, job: Job[Any], given: Any) -> Any:
    call = views.call_of(job.record, store_view.app.codecs)
    return given if call is None else store_view.mask.restore(given, call.data)


@post(
    versioned("/api/jobs/{queue:str}/{jid:str}/signal"),
    status_code=204,
    tags=["jobs"],
    access=of_queue("signal"),
)
async def signal_job(
    store_view: TheStoreView, request: Anyone, queue: QueueName, jid: JobId, data: JSONBody[SignalBody]
) -> None:
    """Send a signal. A job that is suspended on it runs again."""
    await store_view.queue(queue).signal(jid, data.name, data.data)
    note(request, signal=data.name)


HANDLERS = [
    search_jobs,
    get_job,
    get_job_page,
    get_logs,
    get_output,
    get_timeline,
    explain_job,
    retry_job,
    add_again,
    trigger_job,
    cancel_job,
    delete_job,
    change_job,
    signal_job,
]
