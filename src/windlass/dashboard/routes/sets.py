"""Three lists: scheduled jobs, retries, dead jobs."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, delete, get, post

from windlass.core.outcome import CancelResult
from windlass.core.states import JobState
from windlass.dashboard import views
from windlass.dashboard.access import of_queues
from windlass.dashboard.audit import note
from windlass.dashboard.injected import TheStoreView
from windlass.dashboard.lists import answer, page_of_state
from windlass.dashboard.params import Cursor, JobId, Limit, Offset, OptionalQueue
from windlass.dashboard.problems import ApiError
from windlass.dashboard.shapes.wire import DeadJob, RetryJob, ScheduledJob
from windlass.dashboard.store_view import StoreView
from windlass.jobs.job import Job

Anyone = Request[Any, Any, Any]


async def _found(
    store_view: StoreView, request: Anyone, jid: str, state: JobState, queue: str | None
) -> Job[Any]:
    """Find a job by id and note it for the audit log."""
    job = await store_view.find(jid, [state], queue)
    note(request, queue=job.queue_name, task=job.name)
    return job


@get("/api/scheduled-jobs", tags=["scheduled jobs"], access=of_queues())
async def list_scheduled(
    store_view: TheStoreView,
    queue: OptionalQueue = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Response[list[ScheduledJob]]:
    """Jobs that are due later, for their first run."""
    records, headers = await page_of_state(store_view, JobState.SCHEDULED, queue, cursor, limit, offset)
    return answer(await views.each(records, views.scheduled_job, store_view.mask), headers)


@post(
    "/api/scheduled-jobs/{jid:str}/trigger",
    status_code=204,
    tags=["scheduled jobs"],
    access=of_queues("trigger"),
)
async def trigger_scheduled(
    store_view: TheStoreView, request: Anyone, jid: JobId, queue: OptionalQueue = None
) -> None:
    """Run a scheduled job now. It leaves the list and runs once."""
    await (await _found(store_view, request, jid, JobState.SCHEDULED, queue)).promote()


@delete("/api/scheduled-jobs/{jid:str}", status_code=204, tags=["scheduled jobs"], access=of_queues("delete"))
async def delete_scheduled(
    store_view: TheStoreView, request: Anyone, jid: JobId, queue: OptionalQueue = None
) -> None:
    """Delete it."""
    await (await _found(store_view, request, jid, JobState.SCHEDULED, queue)).remove()


@get("/api/retries", tags=["retries"], access=of_queues())
async def list_retries(
    store_view: TheStoreView,
    queue: OptionalQueue = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Response[list[RetryJob]]:
    """Jobs that failed and are due again."""
    records, headers = await page_of_state(store_view, JobState.RETRYING, queue, cursor, limit, offset)
    return answer(await views.each(records, views.retry_job, store_view.mask), headers)


@post("/api/retries/{jid:str}/retry", status_code=204, tags=["retries"], access=of_queues("retry"))
async def retry_now(
    store_view: TheStoreView, request: Anyone, jid: JobId, queue: OptionalQueue = None
) -> None:
    """Run a job now instead of at its due time."""
    await (await _found(store_view, request, jid, JobState.RETRYING, queue)).retry()


@post("/api/retries/{jid:str}/kill", status_code=204, tags=["retries"], access=of_queues("cancel"))
async def kill_retry(
    store_view: TheStoreView, request: Anyone, jid: JobId, queue: OptionalQueue = None
) -> None:
    """Give a job no further attempt: it becomes a dead job (reason ``killed``) and can be retried by hand."""
    job = await _found(store_view, request, jid, JobState.RETRYING, queue)
    if await job.queue.kill(jid) is not CancelResult.CANCELLED:
        raise ApiError(409, "moved_on", f"job {jid!r} is no longer waiting for a retry", "Look at the job.")


@delete("/api/retries/{jid:str}", status_code=204, tags=["retries"], access=of_queues("delete"))
async def delete_retry(
    store_view: TheStoreView, request: Anyone, jid: JobId, queue: OptionalQueue = None
) -> None:
    """Delete it."""
    await (await _found(store_view, request, jid, JobState.RETRYING, queue)).remove()


@get("/api/dead-jobs", tags=["dead jobs"], access=of_queues())
async def list_dead(
    store_view: TheStoreView,
    queue: OptionalQueue = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Response[list[DeadJob]]:
    """Jobs that failed for good."""
    records, headers = await page_of_state(store_view, JobState.FAILED, queue, cursor, limit, offset)
    return answer(await views.each(records, views.dead_job, store_view.mask), headers)


@post("/api/dead-jobs/{jid:str}/retry", status_code=204, tags=["dead jobs"], access=of_queues("retry"))
async def retry_dead(
    store_view: TheStoreView, request: Anyone, jid: JobId, queue: OptionalQueue = None
) -> None:
    """Run a dead job again with all its attempts (retry_count 0). Its errors are kept."""
    await (await _found(store_view, request, jid, JobState.FAILED, queue)).retry()


@delete("/api/dead-jobs/{jid:str}", status_code=204, tags=["dead jobs"], access=of_queues("delete"))
async def delete_dead(
    store_view: TheStoreView, request: Anyone, jid: JobId, queue: OptionalQueue = None
) -> None:
    """Delete it."""
    await (await _found(store_view, request, jid, JobState.FAILED, queue)).remove()


HANDLERS = [
    list_scheduled,
    trigger_scheduled,
    delete_scheduled,
    list_retries,
    retry_now,
    kill_retry,
    delete_retry,
    list_dead,
    retry_dead,
    delete_dead,
]
