"""Registering tasks and handlers with an app: ``@app.task`` and ``app.register``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

from windlass.api.task import AsyncTask, BatchDecorator, PlainTask, Task, TaskApp, TaskDecorator
from windlass.core.limit_rules import Rate, to_rate
from windlass.core.option_values import Isolation
from windlass.core.options import JobOptions, JobOptionsDict
from windlass.core.schedule_rules import Schedule, to_schedule
from windlass.errors import ConfigError
from windlass.handlers.batch import Batch, takes_jobs, to_batch
from windlass.handlers.registry import Handler, Registry, job_handler
from windlass.jobs.payload import unpack
from windlass.serde.codecs import Codecs

P = ParamSpec("P")
R = TypeVar("R")


class TaskVerbs:
    """The part of ``Windlass`` that registers tasks and handlers."""

    if TYPE_CHECKING:
        codecs: Codecs
        defaults: JobOptions

        def schedule(
            self, name: str, schedule: Schedule | Mapping[str, Any], task: Task[..., Any], /
        ) -> None: ...

    def __init__(self) -> None:
        self.registry: Registry = Registry()
        self._tasks: dict[str, Task[Any, Any]] = {}

    @property
    def tasks(self) -> dict[str, Task[Any, Any]]:
        """The registered tasks by name."""
        return dict(self._tasks)

    @overload
    def task(  # type: ignore[overload-overlap] # the first that fits counts, so plain functions come after
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        batch: Batch | Mapping[str, Any] | int,
        name: str | None = None,
        queue: str = "default",
        isolation: Isolation = "auto",
        **options: Unpack[JobOptionsDict],
    ) -> BatchDecorator: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        isolation: Isolation = "auto",
        memory_limit: int | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        schedule: Schedule | Mapping[str, Any] | None = None,
        rate: Rate | Mapping[str, Any] | tuple[int, float] | None = None,
        **options: Unpack[JobOptionsDict],
    ) -> TaskDecorator: ...
    def task(  # noqa: PLR0913 - each is named, and most tasks give none
        self,
        fn: Any = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        isolation: Isolation = "auto",
        memory_limit: int | None = None,
        batch: Batch | Mapping[str, Any] | int | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        schedule: Schedule | Mapping[str, Any] | None = None,
        rate: Rate | Mapping[str, Any] | tuple[int, float] | None = None,
        **options: Unpack[JobOptionsDict],
    ) -> Any:
        """Register a function as a task: ``@app.task`` or ``@app.task(queue="mail", max_attempts=5)``.

        ``async def`` runs on the worker's loop, ``def`` in a thread. ``isolation="process"`` runs either in a
        child process, which ``memory_limit`` (bytes) can limit. With ``batch`` (a size, or a ``Batch``) the
        function takes a list and is called once for many jobs, each enqueued with one item. All job options
        are checked here, when the module is imported.

        ``cron="*/5 * * * *"`` (in ``timezone``) runs the task repeatedly, without arguments; ``schedule`` is
        the general form. The schedule has the name of the task.

        ``rate=(5, 1)`` starts at most 5 of its jobs in any second, over all workers. It is the rate of a
        group with the task's name, which workers set when they start. Jobs that are added by name need that
        ``group``.
        """
        if cron is not None:
            if schedule is not None:
                raise ConfigError("schedule", message="give either cron or schedule, not both")
            schedule = Schedule(cron=cron, timezone=timezone)
        elif timezone != "UTC":
            advice = 'another schedule names it itself: schedule={"cron": "0 7 * * *", "timezone": ...}'
            raise ConfigError("timezone", message=f"timezone needs cron; {advice}", got=timezone)
        register = partial(
            self._register,
            name=name,
            queue=queue,
            isolation=isolation,
            memory_limit=memory_limit,
            options=self.defaults.merged(options),
            batch=to_batch(batch),
            schedule=None if schedule is None else to_schedule(schedule),
            rate=to_rate(rate),
        )
        return register if fn is None else register(fn)

    def _register(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None,
        queue: str,
        isolation: Isolation,
        memory_limit: int | None,
        options: JobOptions,
        batch: Batch | None,
        schedule: Schedule | None,
        rate: Rate | None,
    ) -> Task[Any, Any]:
        _check_function(fn)
        if batch is not None and isolation == "process":
            raise ConfigError(
                "isolation",
                message="a task with batch cannot have isolation='process'; use 'auto' or 'thread'",
                got=isolation,
            )
        if isolation == "process" and "<locals>" in getattr(fn, "__qualname__", ""):
            raise ConfigError(
                "isolation",
                message=f"{fn.__qualname__} is defined inside another function and cannot have "
                "isolation='process': a child process cannot import it; move it to the top of its module",
                got=fn,
            )
        if memory_limit is not None and isolation != "process":
            raise ConfigError(
                "memory_limit",
                message=f"memory_limit needs isolation='process', got isolation={isolation!r}",
                got=memory_limit,
            )
        kind = AsyncTask if inspect.iscoroutinefunction(fn) else PlainTask
        task: Task[Any, Any] = kind(
            cast("TaskApp", self),
            fn,
            name=name,
            queue=queue,
            isolation=isolation,
            memory_limit=memory_limit,
            options=options,
            batch=batch,
            rate=rate,
        )
        known = self._tasks.get(task.name)
        if known is not None and known.fn.__code__ is not getattr(fn, "__code__", None):
            raise ConfigError(
                "name",
                message=f"there are two tasks named {task.name!r}; give one of them another name: "
                "@app.task(name=...)",
                got=task.name,
            )
        if schedule is not None:
            _check_scheduled(task)
        handler = Handler(
            fn,
            takes_job=batch is not None and takes_jobs(fn),
            isolation=isolation,
            memory_limit=memory_limit,
            task=task,
            batch=batch,
            needs=task.needs,
        )
        self._tasks[task.name] = task
        self.registry.add(task.name, handler)
        if schedule is not None:
            self.schedule(task.name, schedule, task)
        return task

    def register(
        self,
        name: str,
        handler: Callable[..., Any],
        queue: str | None = None,
        *,
        batch: Batch | Mapping[str, Any] | int | None = None,
    ) -> None:
        """Register a handler that receives the ``Job``, or a list of jobs with ``batch``; for one queue or
        all.
        """
        self.registry.add(name, job_handler(handler, batch), queue)

    def typed_result(self, task: str, value: Any) -> Any:
        """Convert a stored result to the return type of its task. Unchanged when the task is unknown here."""
        known = self._tasks.get(task)
        return value if known is None else known.signature.decode_result(value)

    def arguments(self, task: str, payload: bytes) -> dict[str, Any]:
        """Return the arguments of an encoded call by name, or by number where the name is unknown."""
        call = unpack(self.codecs.unpacked(payload))
        known = self._tasks.get(task)
        names = known.signature.names if known is not None else ()
        by_place = {names[at] if at < len(names) else str(at): value for at, value in enumerate(call.args)}
        return {**by_place, **call.kwargs}


def _check_function(fn: Any) -> None:
    """Raise ``ConfigError`` for an object that cannot be a task."""
    if not callable(fn):
        raise ConfigError("task", "a function (give names as @app.task(name=..., queue=...))", fn)
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        advice = "return a value; report parts of it with job.stream(...), or add one job for each"
        raise ConfigError(
            "task",
            message=f"{getattr(fn, '__qualname__', fn)} is a generator and cannot be a task: {advice}",
            got=fn,
        )
    if inspect.isfunction(fn) and _is_method(fn):
        raise ConfigError(
            "task",
            message=f"{fn.__qualname__} is a method and cannot be a task: a worker has no self to call it "
            "with; use a function",
            got=fn,
        )


def _is_method(fn: FunctionType) -> bool:
    """Whether ``fn`` was defined in a class body and takes ``self``."""
    home = fn.__qualname__.split(".")[:-1]
    return bool(home) and home[-1] != "<locals>" and fn.__code__.co_varnames[:1] == ("self",)


def _check_scheduled(task: Task[Any, Any]) -> None:
    """Raise ``ConfigError`` for a scheduled task that has required parameters."""
    try:
        task.check((), {})
    except ConfigError as exc:
        how = "give each parameter a default, or use app.schedule(name, rule, task, ...) with arguments"
        raise ConfigError(exc.option, message=f"{exc}: a schedule passes no arguments; {how}") from exc
