"""FastAPI: the lifespan of ``contrib.starlette``, and dependencies.

::

    app = FastAPI(lifespan=lifespan(jobs))

    @app.post("/signup")
    async def signup(to: str, jobs: Jobs) -> dict[str, str]:
        job = await jobs.queue("mail").add("welcome", {"to": to})
        return {"job": job.id}

    @app.get("/mail")
    async def waiting(mail: Annotated[Queue, Depends(queue("mail"))]) -> int:
        return await mail.count()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from windlass.api.app import Windlass
from windlass.api.queue import Queue
from windlass.core.ids import check_queue_name
from windlass.errors import not_installed

try:
    from fastapi import Depends
    from fastapi.requests import HTTPConnection
except ImportError as _missing:
    raise not_installed("contrib", "FastAPI", "windlass[fastapi]") from _missing

from windlass.contrib.starlette import dashboard_user, get_windlass, lifespan, make_worker

#: A parameter of this type is the Windlass app.
Jobs: TypeAlias = Annotated[Windlass, Depends(get_windlass)]


def queue(name: str) -> Callable[[HTTPConnection], Queue]:
    """A dependency that returns the queue of that name: ``Annotated[Queue, Depends(queue("mail"))]``."""
    check_queue_name(name)

    def dependency(connection: HTTPConnection) -> Queue:
        return get_windlass(connection).queue(name)

    return dependency


__all__ = ["Jobs", "dashboard_user", "get_windlass", "lifespan", "make_worker", "queue"]
