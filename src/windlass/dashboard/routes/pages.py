"""The pages: HTML for a browser, the figures as JSON for other clients."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath

from windlass.core.states import JobState
from windlass.dashboard import views
from windlass.dashboard.access import as_page, page, page_or
from windlass.dashboard.injected import TheFigures, TheStatic, TheStoreView
from windlass.dashboard.lists import page_of_state
from windlass.dashboard.params import QueueName
from windlass.dashboard.problems import not_found
from windlass.dashboard.routes.metrics import list_metrics, stats
from windlass.dashboard.routes.processes import list_processes
from windlass.dashboard.routes.queues import get_queue
from windlass.dashboard.scope import BASE
from windlass.dashboard.shapes.figures import QueueEntry
from windlass.dashboard.shapes.wire import DeadJob, JobMetric, JobQueues, Process, RetryJob, ScheduledJob
from windlass.dashboard.static import NOT_BUILT, Asset, Static

Anyone = Request[Any, Any, Any]
_HTML = "text/html"
_IMMUTABLE = "public, max-age=31536000, immutable"
#: Paths that only serve pages.
VIEWS = [
    "/",
    "/schedules",
    "/search",
    "/limits",
    "/errors",
    "/audit",
    "/reference",
    "/flows",
    "/jobs/{queue:str}/{jid:str}",
    "/flows/{queue:str}/{jid:str}",
]
_ROWS = 100


def _page(request: Anyone, static: Static) -> Response[bytes]:
    content = static.page(str(request.scope.get(BASE, "")))
    if content is None:
        return Response(NOT_BUILT.encode(), status_code=503, media_type=_HTML)
    return Response(content, media_type=_HTML)


def unknown(request: Anyone, static: Static) -> Response[bytes]:
    """The page for unknown addresses."""
    answer = _page(request, static)
    return Response(answer.content, status_code=404, media_type=_HTML)


def _json(content: Any) -> Response[bytes]:
    return Response(msgspec.json.encode(content), media_type="application/json", headers={"Vary": "Accept"})


def _spec(shape: Any) -> dict[int, ResponseSpec]:
    return {200: ResponseSpec(shape, description="As JSON; a browser gets the page", generate_examples=False)}


@get(VIEWS, include_in_schema=False, access=page())
async def view(request: Anyone, static: TheStatic) -> Response[bytes]:
    """A page."""
    return _page(request, static)


@get("/job-queues", tags=["pages"], responses=_spec(JobQueues), access=page_or("queues"))
async def job_queues(
    store_view: TheStoreView, figures: TheFigures, static: TheStatic, request: Anyone
) -> Response[bytes]:
    """The dashboard: its figures, or its page."""
    if as_page(request.scope):
        return _page(request, static)
    return _json(await stats(store_view, figures))


@get("/job-queues/{queue:str}", tags=["pages"], responses=_spec(QueueEntry), access=page_or("queue"))
async def one_queue(
    store_view: TheStoreView, figures: TheFigures, static: TheStatic, request: Anyone, queue: QueueName
) -> Response[bytes]:
    """One queue."""
    if as_page(request.scope):
        return _page(request, static)
    return _json(await get_queue.fn(store_view=store_view, figures=figures, queue=queue))


@get("/scheduled-jobs", tags=["pages"], responses=_spec(list[ScheduledJob]), access=page_or("queues"))
async def scheduled_jobs(store_view: TheStoreView, static: TheStatic, request: Anyone) -> Response[bytes]:
    """Jobs that are due later."""
    if as_page(request.scope):
        return _page(request, static)
    records, _ = await page_of_state(store_view, JobState.SCHEDULED, None, None, _ROWS, 0)
    return _json(await views.each(records, views.scheduled_job, store_view.mask))


@get("/retries", tags=["pages"], responses=_spec(list[RetryJob]), access=page_or("queues"))
async def retries(store_view: TheStoreView, static: TheStatic, request: Anyone) -> Response[bytes]:
    """Jobs that failed and are due again."""
    if as_page(request.scope):
        return _page(request, static)
    records, _ = await page_of_state(store_view, JobState.RETRYING, None, None, _ROWS, 0)
    return _json(await views.each(records, views.retry_job, store_view.mask))


@get("/dead-jobs", tags=["pages"], responses=_spec(list[DeadJob]), access=page_or("queues"))
async def dead_jobs(store_view: TheStoreView, static: TheStatic, request: Anyone) -> Response[bytes]:
    """Jobs that failed for good."""
    if as_page(request.scope):
        return _page(request, static)
    records, _ = await page_of_state(store_view, JobState.FAILED, None, None, _ROWS, 0)
    return _json(await views.each(records, views.dead_job, store_view.mask))


@get("/job-metrics", tags=["pages"], responses=_spec(list[JobMetric]), access=page_or("queues"))
async def job_metrics(
    store_view: TheStoreView, figures: TheFigures, static: TheStatic, request: Anyone
) -> Response[bytes]:
    """Tasks of the last hour."""
    if as_page(request.scope):
        return _page(request, static)
    return _json(await list_metrics.fn(store_view=store_view, figures=figures))


@get("/worker-processes", tags=["pages"], responses=_spec(list[Process]), access=page_or("queues"))
async def worker_processes(store_view: TheStoreView, static: TheStatic, request: Anyone) -> Response[bytes]:
    """Live workers."""
    if as_page(request.scope):
        return _page(request, static)
    return _json(await list_processes.fn(store_view=store_view))


def _file(request: Anyone, asset: Asset | None, caching: str) -> Response[bytes]:
    if asset is None:
        raise not_found("there is no such file")
    headers = {"ETag": asset.etag, "Cache-Control": caching}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(b"", status_code=304, media_type=asset.media_type, headers=headers)
    return Response(asset.data, media_type=asset.media_type, headers=headers)


@get("/assets/{name:str}", include_in_schema=False, access=page())
async def asset(request: Anyone, static: TheStatic, name: FromPath[str]) -> Response[bytes]:
    """A file of the build; its name holds a hash of its content."""
    return _file(request, static.asset(f"assets/{name}"), _IMMUTABLE)


@get("/favicon.svg", include_in_schema=False, access=page())
async def favicon(request: Anyone, static: TheStatic) -> Response[bytes]:
    """The icon."""
    return _file(request, static.asset("favicon.svg"), "public, max-age=86400")


HANDLERS = [
    view,
    job_queues,
    one_queue,
    scheduled_jobs,
    retries,
    dead_jobs,
    job_metrics,
    worker_processes,
    asset,
    favicon,
]
