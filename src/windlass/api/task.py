"""``Task``: a function that can be enqueued, typed by its own signature."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from windlass.api.interfaces import App
from windlass.api.queue import Queue
from windlass.core import foreign_names
from windlass.core.foreign_names import ForeignNames
from windlass.core.ids import check_queue_name, check_task_name, new_id, new_ids
from windlass.core.job import NewJob
from windlass.core.limit_rules import Rate
from windlass.core.option_values import (
    GRACE_MS,
    WAIT_S,
    Isolation,
    check_known,
    seconds_to_ms,
    to_unique,
)
from windlass.core.options import JobOptions, JobOptionsDict
from windlass.errors import ConfigError
from windlass.flows.builder import Step
from windlass.handlers.batch import Batch, item_signature
from windlass.handlers.inject import InjectedParameters
from windlass.handlers.signature import Signature
from windlass.handlers.task_defaults import TaskDefaults
from windlass.jobs.job import Job
from windlass.jobs.payload import RESULT, pack_call
from windlass.jobs.prepare import PreparedOptions, call_options
from windlass.jobs.sync import PORTAL, SyncJob

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
F_co = TypeVar("F_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)

_ISOLATIONS = ("auto", "thread", "process")


class TaskApp(App, Protocol):
    """The part of the app that a task uses."""

    def queue(self, name: str) -> Queue:
        """Return the queue of that name."""


class _Mapped(Protocol[F_co, R_co]):
    """The part of a task that types ``map``: its function and its result."""

    @property
    def fn(self) -> F_co: ...
    @property
    def _returns(self) -> R_co: ...


_One = _Mapped[Callable[[A], Any], R]
_Two = _Mapped[Callable[[A, B], Any], R]
_Three = _Mapped[Callable[[A, B, C], Any], R]
_Four = _Mapped[Callable[[A, B, C, D], Any], R]


class Task(ForeignNames, Generic[P, R]):
    """A registered function with its default job options.

    Calling the task runs the function directly. ``enqueue`` adds a job that a worker runs.
    """

    _called = "a task"
    _elsewhere = foreign_names.TASK

    def __init__(
        self,
        app: TaskApp,
        fn: Callable[P, Any],
        *,
        name: str | None,
        queue: str,
        isolation: Isolation,
        memory_limit: int | None,
        options: JobOptions,
        batch: Batch | None = None,
        rate: Rate | None = None,
    ) -> None:
        if isolation not in _ISOLATIONS:
            raise ConfigError("isolation", f"one of {', '.join(_ISOLATIONS)}", isolation)
        self.app: TaskApp = app
        self.fn = fn
        self.name: str = check_task_name(name if name is not None else default_name(fn))
        self.queue_name: str = check_queue_name(queue)
        self.isolation: Isolation = isolation
        self.memory_limit = memory_limit
        self.batch = batch
        #: Parameters that the worker injects besides the job's arguments.
        self.needs: InjectedParameters | None = InjectedParameters.of(fn)
        self.signature: Signature = (
            Signature.of(fn, name=self.name, without=self.needs.names if self.needs else frozenset())
            if batch is None
            else item_signature(fn, self.name, self.needs)
        )
        #: The rate of its jobs over all workers: the rate of the group with the task's name.
        self.rate: Rate | None = rate
        if rate is not None and options.group is None:
            options = options.merged({"group": self.name})
        self._bound: BoundTask[P, R] = BoundTask(self, options.as_defaults())
        #: Default options for jobs that were added by name.
        self.filling: TaskDefaults = TaskDefaults(options)
        self.__doc__ = fn.__doc__
        self.__name__: str = getattr(fn, "__name__", self.name)
        self.__module__ = getattr(fn, "__module__", __name__)
        self.__wrapped__ = fn

    if TYPE_CHECKING:

        @property
        def _returns(self) -> R: ...

    def __repr__(self) -> str:
        return f"<Task {self.name} on queue {self.queue_name}>"

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise ``ConfigError`` for arguments that the function does not accept, or of other types."""
        self.signature.check(self.name, args, kwargs, self.app.codecs.as_read)

    def check_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ConfigError | None:
        """Check the arguments of a flow step, one of which may be the result of the previous step.

        If only the first argument is missing, the error is returned instead of raised, because ``chain`` may
        supply that argument.
        """
        signature, as_read = self.signature, self.app.codecs.as_read
        with_first = (RESULT, *args)
        lacks_first = not signature.accepts(args, kwargs) and signature.accepts(with_first, kwargs)
        try:
            signature.check(self.name, args, kwargs, as_read, step=True)
        except ConfigError as exc:
            if not lacks_first:
                raise
            signature.check(self.name, with_first, kwargs, as_read, step=True)
            return exc
        return None

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function directly, without a job. Returns a coroutine for ``async def``."""
        return self.fn(*args, **kwargs)

    def options(self, **options: Unpack[JobOptionsDict]) -> BoundTask[P, R]:
        """Return this task with other job options: ``task.options(delay=60).enqueue(...)``."""
        return BoundTask(self, self._bound.job_options.merged(options))

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Add a job that calls this task with these arguments. Returns the job."""
        return await self._bound.enqueue(*args, **kwargs)

    @overload
    async def map(self: _One[A, R], a: Iterable[A], /) -> list[Job[R]]: ...
    @overload
    async def map(self: _Two[A, B, R], a: Iterable[A], b: Iterable[B], /) -> list[Job[R]]: ...
    @overload
    async def map(
        self: _Three[A, B, C, R], a: Iterable[A], b: Iterable[B], c: Iterable[C], /
    ) -> list[Job[R]]: ...
    @overload
    async def map(
        self: _Four[A, B, C, D, R], a: Iterable[A], b: Iterable[B], c: Iterable[C], d: Iterable[D], /
    ) -> list[Job[R]]: ...
    @overload
    async def map(
        self,
        a: Iterable[Any],
        b: Iterable[Any],
        c: Iterable[Any],
        d: Iterable[Any],
        e: Iterable[Any],
        /,
        *more: Iterable[Any],
    ) -> list[Job[R]]: ...
    async def map(self, *columns: Iterable[Any]) -> list[Job[R]]:
        """Add a job for each value, or for each row of values: ``send.map(addresses, subjects)``.

        The jobs are added in atomic steps of 1,000. ``gather`` waits for their results.
        """
        return await self._bound.map(*columns)

    async def call(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Add a job, wait up to 30 s for it and return its result. Raises like ``Job.result``.

        ``call_within`` waits for another time.
        """
        return await self._bound.call(*args, **kwargs)

    async def call_within(self, timeout: float | timedelta | None, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Like ``call``, but wait up to ``timeout``, or without a limit if it is None.

        The result is kept for at least as long. The job's own limit is ``options(timeout=...)``.
        """
        return await self._bound.call_within(timeout, *args, **kwargs)

    def s(self, /, *args: P.args, **kwargs: P.kwargs) -> Step:
        """Return this call as a step of a flow, for ``chain``, ``group``, ``chord``, ``after`` and ``then``.

        ``RESULT`` as an argument is replaced by the result of the previous step.
        """
        return self._bound.s(*args, **kwargs)

    async def revoke(self, until: datetime | timedelta | float | None = None, *, once: bool = False) -> None:
        """Cancel jobs of this task instead of starting them; see ``Queue.revoke_task``."""
        await self.queue.revoke_task(self.name, until, once=once)

    async def restore(self) -> bool:
        """Undo ``revoke``; False when the task is not revoked."""
        return await self.queue.restore_task(self.name)

    async def is_revoked(self) -> bool:
        """Whether the next job of this task would be cancelled instead of started."""
        return self.name in await self.queue.revoked_tasks()

    @property
    def job_options(self) -> JobOptions:
        """The job options of this task."""
        return self._bound.job_options

    @property
    def queue(self) -> Queue:
        """The queue that this task adds its jobs to."""
        return self.app.queue(self.queue_name)

    @property
    def sync(self) -> SyncTask[P, R]:
        """The methods of this task for code without an event loop."""
        return self._bound.sync


class AsyncTask(Task[P, R]):
    """A task of an ``async def``. Calling it returns the coroutine."""

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...


class PlainTask(Task[P, R]):
    """A task of a plain function. Calling it returns the function's value."""

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


class BoundTask(ForeignNames, Generic[P, R]):
    """A task together with job options, as ``task.options(...)`` returns it."""

    _called = "a task"
    _elsewhere = foreign_names.TASK

    __slots__ = ("_call_plan", "_plan", "job_options", "task")

    def __init__(self, task: Task[P, R], options: JobOptions) -> None:
        self.task: Task[P, R] = task
        self.job_options: JobOptions = options
        if task.rate is not None and options.group != task.name:
            raise ConfigError(
                "rate",
                message=f"a task with a group ({options.group!r}) cannot have a rate, because its jobs would "
                "not count for it: set the limits of the group",
                got=task.rate,
            )
        check_unique(task.signature, options)
        if options.result_codec is not None:
            task.app.codecs.output(options.result_codec)  # raises now for a codec that is not accepted
        self._plan = PreparedOptions(options, task.app.backoff_strategies, by_name=False)
        #: The options of the last call, and how long its caller could wait with them.
        self._call_plan: tuple[int, PreparedOptions] | None = None

    if TYPE_CHECKING:

        @property
        def _returns(self) -> R: ...

    @property
    def fn(self) -> Callable[P, Any]:
        """The task's function."""
        return self.task.fn

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Add a job that calls the task with these arguments. Returns the job."""
        task = self.task
        task.check(args, kwargs)
        queue = task.queue
        job: Job[R] = await queue.add_planned(task.name, pack_call(args, kwargs), self._plan)
        return job

    def prepare(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return a checked and encoded job without adding it."""
        return self._new_job(self.task.queue, args, kwargs, new_id())

    def _new_job(self, queue: Queue, args: tuple[Any, ...], kwargs: dict[str, Any], fresh_id: str) -> NewJob:
        task = self.task
        task.check(args, kwargs)
        return self._plan.new_job(queue, task.name, pack_call(args, kwargs), fresh_id)

    @overload
    async def map(self: _One[A, R], a: Iterable[A], /) -> list[Job[R]]: ...
    @overload
    async def map(self: _Two[A, B, R], a: Iterable[A], b: Iterable[B], /) -> list[Job[R]]: ...
    @overload
    async def map(
        self: _Three[A, B, C, R], a: Iterable[A], b: Iterable[B], c: Iterable[C], /
    ) -> list[Job[R]]: ...
    @overload
    async def map(
        self: _Four[A, B, C, D, R], a: Iterable[A], b: Iterable[B], c: Iterable[C], d: Iterable[D], /
    ) -> list[Job[R]]: ...
    @overload
    async def map(
        self,
        a: Iterable[Any],
        b: Iterable[Any],
        c: Iterable[Any],
        d: Iterable[Any],
        e: Iterable[Any],
        /,
        *more: Iterable[Any],
    ) -> list[Job[R]]: ...
    async def map(self, *columns: Iterable[Any]) -> list[Job[R]]:
        """Add a job for each value, or for each row of values, in atomic steps of 1,000."""
        values = [list(column) for column in columns]
        lengths = [len(column) for column in values]
        if len(set(lengths)) != 1:
            raise ConfigError(
                "map",
                message=f"map needs iterables of the same length, got lengths {lengths}"
                if values
                else "map needs at least one iterable",
                got=lengths,
            )
        queue, ids = self.task.queue, new_ids(len(values[0]))
        rows = zip(*values, strict=True)
        news = [self._new_job(queue, row, {}, fresh_id) for row, fresh_id in zip(rows, ids, strict=True)]
        jobs: list[Job[R]] = await queue.add_new(news)
        return jobs

    def s(self, /, *args: P.args, **kwargs: P.kwargs) -> Step:
        """Return this call as a step of a flow; see ``Task.s``."""
        task = self.task
        lacking = task.check_step(args, kwargs)
        made = Step(
            task.name,
            task.queue_name,
            pack_call(args, kwargs),
            {},
            base=self.job_options,
            app=task.app,
            accepts=task.signature.accepts,
        )
        made.lacking = lacking
        return made

    async def call(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Add a job, wait up to 30 s for it and return its result; see ``Task.call``."""
        return await self.call_within(WAIT_S, *args, **kwargs)

    async def call_within(self, timeout: float | timedelta | None, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Like ``call``, with another timeout; see ``Task.call_within``."""
        task = self.task
        task.check(args, kwargs)
        plan, queue = self._plan_of_call(timeout), task.queue
        result: R = await queue.call_planned(task.name, pack_call(args, kwargs), plan, timeout)
        return result

    def _plan_of_call(self, timeout: float | timedelta | None) -> PreparedOptions:
        """Return the options of a job whose caller waits ``timeout``: mostly those of the call before."""
        wait_ms = max(0 if timeout is None else seconds_to_ms(timeout, "timeout"), GRACE_MS)
        if self._call_plan is None or self._call_plan[0] != wait_ms:
            options = self.job_options
            kept = call_options(options, wait_ms, chosen=options.result_ttl is not None)
            plan = PreparedOptions(kept, self.task.app.backoff_strategies, by_name=False)
            self._call_plan = (wait_ms, plan)
        return self._call_plan[1]

    def options(self, **options: Unpack[JobOptionsDict]) -> BoundTask[P, R]:
        """Return this task with further job options."""
        return BoundTask(self.task, self.job_options.merged(options))

    @property
    def sync(self) -> SyncTask[P, R]:
        """The methods of this task for code without an event loop."""
        return SyncTask(self)


def check_unique(signature: Signature, options: JobOptions) -> None:
    """Raise ``ConfigError`` if a unique key uses parameters that the task does not have."""
    unique = to_unique(options.unique)
    if unique is not None and unique.fields and not signature.takes_any_name:
        check_known(unique.fields, signature.parameters, f"parameter of task {signature.name!r}")


class TaskDecorator(Protocol):
    """The decorator that ``@app.task(...)`` returns, for async and plain functions."""

    @overload
    def __call__(  # type: ignore[overload-overlap] # the first that fits counts: plain functions come after
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> PlainTask[P, R]: ...
    def __call__(self, fn: Any, /) -> Any: ...


class BatchDecorator(Protocol):
    """The decorator that ``@app.task(batch=...)`` returns, for functions that take a list."""

    @overload
    def __call__(self, fn: Callable[[list[T]], Coroutine[Any, Any, list[R]]], /) -> Task[[T], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], Coroutine[Any, Any, None]], /) -> Task[[T], None]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], list[R]], /) -> Task[[T], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], None], /) -> Task[[T], None]: ...
    def __call__(self, fn: Any, /) -> Any: ...


def default_name(fn: Callable[..., Any]) -> str:
    """Return ``module.function``. A script's functions are named as if the script was imported.

    So ``python mail.py`` and a worker that imports ``mail`` use the same task name.
    """
    qualname = getattr(fn, "__qualname__", "") or type(fn).__qualname__
    module = _importable(getattr(fn, "__module__", "") or "", getattr(fn, "__globals__", {}))
    return f"{module}.{qualname}" if module else qualname


def caller_module(depth: int) -> str:
    """Return the name of the module that runs ``depth`` calls up, as its importers name it."""
    scope = sys._getframe(depth).f_globals
    return _importable(scope.get("__name__", ""), scope) or "app"


def _importable(module: str, scope: dict[str, Any]) -> str:
    if module not in ("__main__", "__windlass_main__"):
        return module
    spec, file = scope.get("__spec__"), scope.get("__file__")
    if spec is not None:  # python -m shop.mail
        return str(spec.name).removesuffix(".__main__")
    return _module_of(Path(file)) if file else ""  # python mail.py; empty at an interactive prompt


def _module_of(file: Path) -> str:
    """Return the name under which a worker in the current directory imports ``file``."""
    file = file.absolute()
    names, folder = [file.stem], file.parent
    while folder != Path.cwd() and (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names).removesuffix(".__main__")


class SyncTask(ForeignNames, Generic[P, R]):
    """The methods of a task for code without an event loop."""

    _called = "the .sync of a task"
    _elsewhere = foreign_names.TASK

    def __init__(self, bound: BoundTask[P, R]) -> None:
        self._bound = bound

    if TYPE_CHECKING:

        @property
        def _returns(self) -> R: ...

    @property
    def fn(self) -> Callable[P, Any]:
        """The task's function."""
        return self._bound.fn

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Add a job that calls the task with these arguments. Returns the job."""
        return SyncJob(PORTAL.run(self._bound.enqueue(*args, **kwargs)))

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Add a job, wait up to 30 s for it and return its result; see ``Task.call``."""
        return PORTAL.run(self._bound.call(*args, **kwargs))

    def call_within(self, timeout: float | timedelta | None, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Like ``call``, with another timeout; see ``Task.call_within``."""
        return PORTAL.run(self._bound.call_within(timeout, *args, **kwargs))

    @overload
    def map(self: _One[A, R], a: Iterable[A], /) -> list[SyncJob[R]]: ...
    @overload
    def map(self: _Two[A, B, R], a: Iterable[A], b: Iterable[B], /) -> list[SyncJob[R]]: ...
    @overload
    def map(
        self: _Three[A, B, C, R], a: Iterable[A], b: Iterable[B], c: Iterable[C], /
    ) -> list[SyncJob[R]]: ...
    @overload
    def map(
        self: _Four[A, B, C, D, R], a: Iterable[A], b: Iterable[B], c: Iterable[C], d: Iterable[D], /
    ) -> list[SyncJob[R]]: ...
    @overload
    def map(
        self,
        a: Iterable[Any],
        b: Iterable[Any],
        c: Iterable[Any],
        d: Iterable[Any],
        e: Iterable[Any],
        /,
        *more: Iterable[Any],
    ) -> list[SyncJob[R]]: ...
    def map(self, *columns: Iterable[Any]) -> list[SyncJob[R]]:
        """Add a job for each value, or for each row of values; see ``Task.map``."""
        return [SyncJob(job) for job in PORTAL.run(self._bound.map(*columns))]

    def revoke(self, until: datetime | timedelta | float | None = None, *, once: bool = False) -> None:
        """Cancel jobs of this task instead of starting them; see ``Queue.revoke_task``."""
        PORTAL.run(self._bound.task.revoke(until, once=once))

    def restore(self) -> bool:
        """Undo ``revoke``; False when the task is not revoked."""
        return PORTAL.run(self._bound.task.restore())

    def is_revoked(self) -> bool:
        """Whether the next job of this task would be cancelled instead of started."""
        return PORTAL.run(self._bound.task.is_revoked())

    def options(self, **options: Unpack[JobOptionsDict]) -> SyncTask[P, R]:
        """Return this task with further job options."""
        return SyncTask(self._bound.options(**options))
