"""Queues: show them, add jobs, pause and clear them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body, JSONBody

from windlass.api.search import Search
from windlass.backend import requests as rq
from windlass.core.outcome import AddOutcome
from windlass.core.states import FINISHED, JobState
from windlass.dashboard import views
from windlass.dashboard.access import of_queue, of_queues
from windlass.dashboard.audit import named, note
from windlass.dashboard.figures import MINUTE_MS, per_minute
from windlass.dashboard.injected import TheFigures, TheStoreView
from windlass.dashboard.lists import answer, counted, listing, page_headers
from windlass.dashboard.params import Cursor, Limit, Offset, QueueName, States, versioned
from windlass.dashboard.problems import ApiError
from windlass.dashboard.shapes.changes import (
    Added,
    AddedMany,
    Changed,
    CleanBody,
    DrainBody,
    NewJobBody,
    WaitAnswer,
    WaitBody,
)
from windlass.dashboard.shapes.figures import QueueEntry
from windlass.dashboard.shapes.wire import Queue, WireJob
from windlass.dashboard.totals import queue_totals
from windlass.errors import ConfigError, GroupFullError, OrderedGroupError, WaitTimeoutError
from windlass.jobs.job import Job

#: Maximum number of jobs that one request adds, in one atomic step.
MANY = 1_000
_DRAIN_STEPS = 10
Anyone = Request[Any, Any, Any]


@get(versioned("/api/job-queues"), tags=["queues"], access=of_queues())
async def list_queues(store_view: TheStoreView) -> list[Queue]:
    """All queues with their sizes."""
    totals = await queue_totals(store_view)
    now_ms = store_view.now_ms()
    return [views.queue_view(info, now_ms, *totals.of(info.name)) for info in await store_view.queues()]


@get(versioned("/api/job-queues/{queue:str}"), tags=["queues"], access=of_queue())
async def get_queue(store_view: TheStoreView, figures: TheFigures, queue: QueueName) -> QueueEntry:
    """One queue with its last hour."""
    info = await store_view.info(queue)
    totals = await queue_totals(store_view, queue)
    now_ms = store_view.now_ms()
    minutes: list[int] = []
    if figures.kept:
        since_ms = now_ms - 59 * MINUTE_MS
        rows = await figures.rows([queue], "minute", since_ms, now_ms + 1)
        minutes = per_minute(rows[queue], since_ms, now_ms + 1)
    view = views.queue_view(info, now_ms, *totals.of(queue))
    return QueueEntry(**msgspec.structs.asdict(view), per_minute=minutes)


@get(versioned("/api/job-queues/{queue:str}/counts"), tags=["queues"], access=of_queue())
async def get_counts(store_view: TheStoreView, queue: QueueName) -> dict[str, int]:
    """How many jobs are in each state."""
    counts = await store_view.queue(queue).get_job_counts()
    return {state.value: count for state, count in counts.items()}


@get("/api/job-queues/{queue:str}/jobs", tags=["queues"], access=of_queue())
async def list_queue_jobs(
    store_view: TheStoreView,
    queue: QueueName,
    states: States = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Response[list[WireJob]]:
    """Jobs of a queue in the wire format, oldest first; by default those that wait."""
    store_view.queue(queue)
    wanted = states or [JobState.WAITING]
    infos = [info for info in await store_view.queues() if info.name == queue]
    found = await listing(store_view, Search(state=wanted), newest_first=False).page(
        [info.name for info in infos], cursor, limit, offset
    )
    jobs = await views.each(found.records, views.wire_job, store_view.mask)
    return answer(jobs, page_headers(found, counted(infos, wanted)))


# --- add ---------------------------------------------------------------------------------------


def _call_of(body: NewJobBody) -> tuple[str, Any]:
    """Task and data of a new job."""
    if (body.task is msgspec.UNSET) == (body.class_ is msgspec.UNSET):
        raise ConfigError("task", message="give exactly one of task and class")
    task = body.class_ if isinstance(body.class_, str) else str(body.task)
    args, kwargs = body.args, body.kwargs
    if isinstance(args, msgspec.UnsetType) and isinstance(kwargs, msgspec.UnsetType):
        return task, body.data
    if body.data is not None:
        raise ConfigError("data", message="give data, or args or kwargs, not both")
    if isinstance(kwargs, msgspec.UnsetType) or not kwargs:
        return task, [] if isinstance(args, msgspec.UnsetType) else args
    if not isinstance(args, msgspec.UnsetType) and args:
        raise ConfigError("kwargs", message="give args or kwargs, not both; kwargs can name all arguments")
    return task, kwargs


def _added(job: Job[Any]) -> Added:
    outcome = job.outcome or AddOutcome.QUEUED
    return Added(
        queue=job.queue_name,
        id=job.id,
        outcome=outcome.value,
        state=job.state,
        not_taken=job.not_taken or msgspec.UNSET,
    )


@post(versioned("/api/job-queues/{queue:str}/jobs"), status_code=201, tags=["queues"], access=of_queue("add"))
async def add_job(
    store_view: TheStoreView, request: Anyone, queue: QueueName, data: JSONBody[NewJobBody]
) -> Added:
    """Add one job."""
    task, payload = _call_of(data)
    added = _added(await store_view.queue(queue).add(task, payload, **_options(data.options)))
    note(request, task=task, id=added.id, outcome=added.outcome)
    return added


@post(
    versioned("/api/job-queues/{queue:str}/jobs/bulk"),
    status_code=201,
    tags=["queues"],
    access=of_queue("add"),
)
async def add_jobs(
    store_view: TheStoreView,
    request: Anyone,
    queue: QueueName,
    data: Annotated[list[NewJobBody], Body(min_items=1, max_items=MANY)],
) -> AddedMany:
    """Add up to 1,000 jobs in one atomic step."""
    items = []
    for body in data:
        task, payload = _call_of(body)
        items.append({**_options(body.options), "name": task, "data": payload})
    refused: list[str] = []
    try:
        jobs = await store_view.queue(queue).add_bulk(items)
    except (GroupFullError, OrderedGroupError) as exc:
        jobs, refused = exc.added, exc.refused
    note(request, added=len(jobs), refused=len(refused), jobs=named(job.ref for job in jobs))
    return AddedMany(jobs=[_added(job) for job in jobs], refused=refused)


@post(
    "/api/job-queues/{queue:str}/jobs/wait",
    status_code=200,
    tags=["queues"],
    responses={
        202: ResponseSpec(
            WaitAnswer, description="It was not finished in time, and continues", generate_examples=False
        )
    },
    access=of_queue("add"),
)
async def add_and_wait(
    store_view: TheStoreView, request: Anyone, queue: QueueName, data: JSONBody[WaitBody]
) -> Response[WaitAnswer]:
    """Add a job and wait for its end. 202: it did not finish in time, and continues."""
    task, payload = _call_of(data)
    options = _options(data.options)
    options.setdefault("result_ttl", max(data.timeout, 60))
    job = await store_view.queue(queue).add(task, payload, **options)
    note(request, task=task, id=job.id)
    try:
        await job.wait_until_finished(data.timeout)
    except WaitTimeoutError:
        await job.refresh()
    record = job.record
    finished = record.state in FINISHED
    last = views.last_error(record, store_view.mask)
    content = WaitAnswer(
        queue=queue,
        id=job.id,
        state=record.state,
        finished=finished,
        result=store_view.mask.hide(views.result_of(record, store_view.mask)),
        result_expired=record.result_expired,
        error_class=last.error_class if last is not None else "",
        error_message=last.message if last is not None else record.reason,
    )
    return Response(content, status_code=200 if finished else 202)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Options of a job, without the names that belong to the call itself."""
    for name in ("name", "data", "children", "then", "depends_on", "parent"):
        if name in given:
            raise ConfigError(
                f"options.{name}",
                message=f"options.{name} cannot be given here (flows are added at /api/flows)",
            )
    return dict(given)


# --- control -----------------------------------------------------------------------------------


@post(
    versioned("/api/job-queues/{queue:str}/pause"), status_code=204, tags=["queues"], access=of_queue("pause")
)
async def pause_queue(store_view: TheStoreView, queue: QueueName) -> None:
    """Start no more jobs of this queue, on any worker."""
    await store_view.queue((await store_view.info(queue)).name).pause()


@post(
    versioned("/api/job-queues/{queue:str}/resume"),
    status_code=204,
    tags=["queues"],
    access=of_queue("pause"),
)
async def resume_queue(store_view: TheStoreView, queue: QueueName) -> None:
    """Undo pause."""
    await store_view.queue((await store_view.info(queue)).name).resume()


@post(
    versioned("/api/job-queues/{queue:str}/drain"), status_code=200, tags=["queues"], access=of_queue("clear")
)
async def drain_queue(
    store_view: TheStoreView, request: Anyone, queue: QueueName, data: JSONBody[DrainBody | None] = None
) -> Changed:
    """Delete waiting jobs, at most 10,000; with ``delayed`` also jobs that are due later."""
    info = await store_view.info(queue)
    states = [JobState.WAITING, JobState.BLOCKED, JobState.PARKED]
    if data is not None and data.delayed:
        states += [JobState.SCHEDULED, JobState.RETRYING, JobState.SUSPENDED]
    removed, more = 0, True
    for _ in range(_DRAIN_STEPS):
        purged = await store_view.store.execute(rq.Purge(queue=info.name, states=states, limit=MANY))
        removed += purged.count
        more = purged.count >= MANY
        if not more:
            break
    note(request, delayed=data is not None and data.delayed, removed=removed, more=more)
    return Changed(count=removed, more=more)


@post(
    versioned("/api/job-queues/{queue:str}/clean"), status_code=200, tags=["queues"], access=of_queue("clear")
)
async def clean_queue(
    store_view: TheStoreView, request: Anyone, queue: QueueName, data: JSONBody[CleanBody]
) -> Changed:
    """Delete old jobs in some states, at most 1,000 per request."""
    info = await store_view.info(queue)
    if JobState.ACTIVE in data.states:
        raise ApiError(422, "config", "active jobs cannot be cleaned", "Cancel them.")
    cleaned = await store_view.queue(info.name).clean(data.grace, data.limit, data.states)
    states = ", ".join(state.value for state in data.states)
    note(request, states=states, grace=data.grace, limit=data.limit, removed=cleaned.count)
    return Changed(count=cleaned.count, more=cleaned.count >= data.limit)


HANDLERS = [
    list_queues,
    get_queue,
    get_counts,
    list_queue_jobs,
    add_job,
    add_jobs,
    add_and_wait,
    pause_queue,
    resume_queue,
    drain_queue,
    clean_queue,
]
