"""The current app of this process, and the request of the task that runs in this thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from windlass.api.app import Windlass
from windlass.compat.celery.conf import Settings
from windlass.errors import ConfigError
from windlass.jobs.job import Job
from windlass.jobs.sync import PORTAL

R = TypeVar("R")


class CeleryApp(Protocol):
    """What other parts of this API need from their app."""

    main: str | None
    conf: Settings

    @property
    def windlass(self) -> Windlass: ...
    @property
    def tasks(self) -> Any: ...
    def route(
        self, name: str, task: Any, options: dict[str, Any], call: tuple[Any, Any]
    ) -> tuple[str, int | None]: ...
    async def find_job(self, job_id: str, queue: str | None) -> Job[Any] | None: ...


class Context:
    """``self.request``: the facts about the current call. Unknown values are None."""

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
        """A fact, or a header of the call."""
        return getattr(self, name, default)


_current_app: list[CeleryApp] = []
_running: ContextVar[tuple[Any, Context] | None] = ContextVar("windlass_celery_task", default=None)
_may_join: ContextVar[bool] = ContextVar("windlass_celery_may_join", default=False)


def set_current_app(app: CeleryApp) -> None:
    """Make ``app`` the default for results, signatures and shared tasks without an app."""
    _current_app[:] = [app]


def app_or_current(app: CeleryApp | None = None) -> CeleryApp:
    """``app``, or the current one."""
    if app is not None:
        return app
    if not _current_app:
        raise ConfigError(
            "app", message="there is no app yet: make one first, with app = Celery('name', broker=URL)"
        )
    return _current_app[0]


def running() -> tuple[Any, Context] | None:
    """The task that runs in this thread, and its request; None outside of one."""
    return _running.get()


@contextlib.contextmanager
def run_as(task: Any, request: Context) -> Iterator[None]:
    """Set the current task and its request for the duration of the block."""
    token = _running.set((task, request))
    try:
        yield
    finally:
        _running.reset(token)


@contextlib.contextmanager
def allow_join_result() -> Iterator[None]:
    """Allow a task to wait for the result of another one. Each such wait occupies a slot of a worker."""
    token = _may_join.set(True)
    try:
        yield
    finally:
        _may_join.reset(token)


def refuse_inside_a_task() -> None:
    """Raise an error for waiting for a result inside a task, as Celery does."""
    found = running()
    if found is not None and not found[1].is_eager and not found[1].called_directly and not _may_join.get():
        raise RuntimeError(
            "Never call result.get() within a task! Use a chain, a group or a chord; or, when there are "
            "slots enough, result.get(disable_sync_subtasks=False)"
        )


def wait_for(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine of Windlass and block until it is done, as all calls of Celery do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return PORTAL.run(coroutine)
    coroutine.close()
    raise ConfigError(
        "call of Celery's API",
        message="Celery's API blocks and cannot be called in an event loop: use await "
        "asyncio.to_thread(task.delay, ...), or app.windlass and its async verbs",
    )
