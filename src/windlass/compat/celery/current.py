"""What is current in this process and thread: the app, and the request that a task runs for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from windlass.api.app import Windlass
from windlass.api.sync import PORTAL
from windlass.compat.celery.conf import Settings
from windlass.errors import ConfigError
from windlass.jobs.job import Job

R = TypeVar("R")


class CeleryApp(Protocol):
    """What the parts of the API need of their app."""

    main: str | None
    conf: Settings

    @property
    def windlass(self) -> Windlass: ...
    @property
    def tasks(self) -> Any: ...
    def route(self, name: str, task: Any, options: dict[str, Any], call: tuple[Any, Any]) -> str: ...
    async def find_job(self, job_id: str, queue: str | None) -> Job[Any] | None: ...


class Context:
    """``self.request``: what a task knows of its call. What is not known is None."""

    id: str | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed
    retries: int = 0
    called_directly: bool = True
    is_eager: bool = False

    task: str | None = None
    hostname: str | None = None
    group: str | None = None
    parent_id: str | None = None
    root_id: str | None = None
    correlation_id: str | None = None
    headers: dict[str, Any] | None = None
    delivery_info: dict[str, Any] | None = None
    timelimit: tuple[float | None, float | None] | None = None
    eta: str | None = None
    expires: str | None = None

    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)

    def get(self, name: str, default: Any = None) -> Any:
        """One of its facts, or a header of the call."""
        return getattr(self, name, default)


_current_app: list[CeleryApp] = []
_running: ContextVar[tuple[Any, Context] | None] = ContextVar("windlass_celery_task", default=None)
_may_join: ContextVar[bool] = ContextVar("windlass_celery_may_join", default=False)


def set_current_app(app: CeleryApp) -> None:
    """Make ``app`` the one that results, signatures and shared tasks without an app of their own use."""
    _current_app[:] = [app]


def app_or_current(app: CeleryApp | None = None) -> CeleryApp:
    """``app``, or the current one."""
    if app is not None:
        return app
    if not _current_app:
        raise ConfigError("app", "made first: app = Celery('name', broker=URL)")
    return _current_app[0]


def running() -> tuple[Any, Context] | None:
    """The task that runs here, and its request."""
    return _running.get()


@contextlib.contextmanager
def run_as(task: Any, request: Context) -> Iterator[None]:
    """Make ``request`` that of ``task`` meanwhile."""
    token = _running.set((task, request))
    try:
        yield
    finally:
        _running.reset(token)


@contextlib.contextmanager
def allow_join_result() -> Iterator[None]:
    """Let a task wait for the result of another one meanwhile; each such wait holds a slot of a worker."""
    token = _may_join.set(True)
    try:
        yield
    finally:
        _may_join.reset(token)


def refuse_inside_a_task() -> None:
    """Refuse to wait for a result inside a task, as Celery does."""
    found = running()
    if found is not None and not found[1].is_eager and not found[1].called_directly and not _may_join.get():
        raise RuntimeError(
            "Never call result.get() within a task! Use a chain, a group or a chord; or, when there are "
            "slots enough, result.get(disable_sync_subtasks=False)"
        )


def wait_for(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a verb of Windlass and wait for it, as all of Celery's calls do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return PORTAL.run(coroutine)
    coroutine.close()
    raise ConfigError(
        "call of Celery's API",
        "made outside of an event loop: await asyncio.to_thread(task.delay, ...), or "
        "app.windlass and its async verbs",
    )
