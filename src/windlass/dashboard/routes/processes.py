"""Worker processes: which are alive, what runs there, and commands to them."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import get, post
from litestar.params import PathParameter

from windlass.api.search import Search
from windlass.core.job import QueueInfo, WorkerInfo
from windlass.core.states import JobState
from windlass.dashboard import views
from windlass.dashboard.access import of_queues, of_store
from windlass.dashboard.injected import TheStoreView
from windlass.dashboard.lists import holding, listing
from windlass.dashboard.params import PathText, unescape
from windlass.dashboard.problems import ApiError, not_found
from windlass.dashboard.shapes.wire import Process, WorkerJob
from windlass.dashboard.shapes.workers import Workers, WorkerStacks
from windlass.dashboard.store_view import StoreView

#: Maximum number of active jobs that are read, and that are shown for one process.
_LOOKED = 1_000
_SHOWN = 100
ActionName = Annotated[Literal["quiet", "resume", "stop", "dump"], PathParameter(description="The command.")]


async def _running(store_view: StoreView, infos: list[QueueInfo]) -> dict[str, list[WorkerJob]]:
    """Running jobs by worker."""
    names = holding(infos, [JobState.ACTIVE])
    running: dict[str, list[WorkerJob]] = {}
    mask = store_view.mask.brief()
    found = await listing(store_view, Search(state=JobState.ACTIVE)).page(names, None, _LOOKED)
    for record in found.records:
        if record.worker is not None:
            mine = running.setdefault(record.worker, [])
            if len(mine) < _SHOWN:
                mine.append(views.running_job(record, mask))
    return running


@get("/api/processes", tags=["processes"], access=of_queues())
async def list_processes(store_view: TheStoreView) -> list[Process]:
    """Workers that were alive in the last 45 seconds, with their running jobs."""
    running = await _running(store_view, await store_view.queues())
    return [views.process_view(info, running.get(info.id, [])) for info in await store_view.workers()]


@get("/api/processes/{identity:str}", tags=["processes"], access=of_queues())
async def get_process(store_view: TheStoreView, identity: PathText) -> Process:
    """One worker."""
    info = await _find(store_view, unescape(identity))
    running = await _running(store_view, await store_view.queues())
    return views.process_view(info, running.get(info.id, []))


async def _find(store_view: StoreView, name: str) -> WorkerInfo:
    for info in await store_view.workers():
        if info.id == name:
            return info
    raise _gone(name)


def _gone(name: str) -> ApiError:
    return not_found(f"there is no worker {name!r}", "It ended, or was silent for 45 seconds.")


@get("/api/v1/workers", tags=["processes"], access=of_queues())
async def list_workers(store_view: TheStoreView) -> Workers:
    """Live workers with their running jobs, and lost workers with the jobs that they held."""
    infos = await store_view.queues()
    running = await _running(store_view, infos)
    living, lost = await store_view.workers_seen()
    return Workers(
        workers=[views.worker_entry(info, running.get(info.id, [])) for info in living],
        lost=await store_view.lost_runs.entries(infos, lost),
    )


@get("/api/v1/workers/{identity:str}/stacks", tags=["processes"], access=of_store("workers"))
async def get_stacks(store_view: TheStoreView, identity: PathText) -> WorkerStacks:
    """The stacks of a worker's threads and tasks. Send it the command ``dump`` first."""
    info = await _find(store_view, unescape(identity))
    return WorkerStacks(id=info.id, beat_ms=info.beat_ms, text=info.stacks)


@post(
    ["/api/processes/{identity:str}/{action:str}", "/api/v1/workers/{identity:str}/{action:str}"],
    status_code=202,
    tags=["processes"],
    access=of_store("workers"),
)
async def tell_process(store_view: TheStoreView, identity: PathText, action: ActionName) -> None:
    """Send a command: quiet (take no new jobs), resume, stop (finish and exit), or dump (report all stacks).

    The worker receives it at once or with its next heartbeat.
    """
    name = unescape(identity)
    store_view.store.capabilities.require(store_view.store.name, "commands")
    info = await _find(store_view, name)
    if not await store_view.app.command_worker(info.id, action):
        raise _gone(name)


HANDLERS = [list_processes, get_process, list_workers, get_stacks, tell_process]
