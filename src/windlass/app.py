"""``Windlass``: one store, its queues, its tasks.

The front door for applications; ``Queue`` and ``Worker`` can also be used without one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.backend.urls import DEFAULT_URL, open_backend
from windlass.batch import Batch, takes_jobs, to_batch
from windlass.carry import Carrier
from windlass.core.backoff import Strategy
from windlass.core.clock import SYSTEM_CLOCK, Clock
from windlass.core.job import QueueInfo, WorkerInfo
from windlass.core.options import DEFAULT_OPTIONS, Isolation, JobOptions
from windlass.errors import ConfigError
from windlass.hooks import Hooks
from windlass.payload import unpack
from windlass.queue import Queue
from windlass.registry import Handler, Registry
from windlass.serde import DEFAULT_MAX_BYTES, Codec, get_codec, register_codec
from windlass.task import BatchDecorator, Task, TaskDecorator

if TYPE_CHECKING:
    from windlass.job import Job
    from windlass.sync import SyncApp

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Callable[..., Any])
L = TypeVar("L", bound=Callable[..., Any])

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class Windlass:
    """A job system on one store.

    ``url`` names the store; without it ``$WINDLASS_URL``, else ``sqlite:///windlass.db``. Nothing is opened
    until the first use, or ``async with app``. ``compress`` stores payloads and results over 2 kB compressed.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        defaults: JobOptions | Mapping[str, Any] | None = None,
        codec: str | Codec = "json",
        result_codec: str | Codec | None = None,
        compress: bool = False,
        max_payload_bytes: int = DEFAULT_MAX_BYTES,
        backoff_strategies: Mapping[str, Strategy] | None = None,
        context: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.url = url or os.environ.get("WINDLASS_URL") or DEFAULT_URL
        self.store = Store(open_backend(self.url), clock)
        self.clock = clock
        self.codec = _as_codec(codec, compress)
        self.max_payload_bytes = max_payload_bytes
        self.defaults = (
            defaults if isinstance(defaults, JobOptions) else DEFAULT_OPTIONS.merged(defaults or {})
        )
        if result_codec is not None:
            name = _as_codec(result_codec, compress).name
            self.defaults = self.defaults.merged({"result_codec": name})
        self.defaults.check()
        self.backoff_strategies: dict[str, Strategy] = dict(backoff_strategies or {})
        #: Handed to every handler as ``job.context``.
        self.context = context
        self.registry = Registry()
        #: What runs around every enqueue and every run; see ``use``.
        self.hooks = Hooks()
        self.carrier = Carrier()
        self._lifespan: Lifespan | None = None
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._queues: dict[str, Queue] = {}
        #: Called with the jobs of every add; the testing kit's inline mode hangs here.
        self.after_add: Callable[[list[Job[Any]]], Awaitable[None]] | None = None

    def __repr__(self) -> str:
        return f"<Windlass on {self.store.name}>"

    async def __aenter__(self) -> Windlass:
        await self.store.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect. Idempotent; a later use connects again."""
        for queue in self._queues.values():
            await queue.close()
        await self.store.close()

    def use_store(self, url: str) -> None:
        """Change the store, before anything was opened: ``--url`` overrules what the code says."""
        self.url = url
        self.store = Store(open_backend(url), self.clock)
        self._queues.clear()

    def queue(self, name: str) -> Queue:
        """The queue of that name (made on first use; the same object every time)."""
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = Queue(name, self)
        return found

    async def queues(self) -> list[QueueInfo]:
        """Every queue the store knows, with its counts."""
        return await self.store.execute(rq.ListQueues())

    async def workers(self) -> list[WorkerInfo]:
        """Workers that were alive in the last 45 seconds."""
        return await self.store.execute(rq.ListWorkers())

    @property
    def tasks(self) -> dict[str, Task[Any, Any]]:
        """Registered tasks by name."""
        return dict(self._tasks)

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        batch: Batch | Mapping[str, Any] | int,
        name: str | None = None,
        queue: str = "default",
        isolation: Isolation = "auto",
        **options: Any,
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
        **options: Any,
    ) -> TaskDecorator: ...
    def task(
        self,
        fn: Any = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        isolation: Isolation = "auto",
        memory_limit: int | None = None,
        batch: Batch | Mapping[str, Any] | int | None = None,
        **options: Any,
    ) -> Any:
        """Register a function as a task: ``@app.task`` or ``@app.task(queue="mail", max_attempts=5)``.

        ``async def`` runs on the worker's loop, ``def`` in a thread; ``isolation="process"`` runs either in a
        child process, where ``memory_limit`` (bytes) can hold. With ``batch`` (a size, or a ``Batch``) the
        function takes a list and is called once for many jobs, each enqueued with one item. All job options
        are checked here, at import.
        """
        register = partial(
            self._register,
            name=name,
            queue=queue,
            isolation=isolation,
            memory_limit=memory_limit,
            options=self.defaults.merged(options),
            batch=to_batch(batch),
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
    ) -> Task[Any, Any]:
        if not callable(fn):
            raise ConfigError("task", "a function", fn)
        if batch is not None and isolation == "process":
            raise ConfigError("isolation", "auto or thread for a task with batch", isolation)
        if memory_limit is not None and isolation != "process":
            raise ConfigError("memory_limit", 'given with isolation="process"', memory_limit)
        task: Task[Any, Any] = Task(
            self,
            fn,
            name=name,
            queue=queue,
            isolation=isolation,
            memory_limit=memory_limit,
            options=options,
            batch=batch,
        )
        known = self._tasks.get(task.name)
        if known is not None and known.fn.__code__ is not getattr(fn, "__code__", None):
            raise ConfigError("name", "unique: two tasks are called the same", task.name)
        self._tasks[task.name] = task
        self.registry.add(
            task.name,
            Handler(
                fn,
                takes_job=batch is not None and takes_jobs(fn),
                isolation=isolation,
                memory_limit=memory_limit,
                task=task,
                batch=batch,
                needs=task.needs,
            ),
        )
        return task

    def arguments(self, task: str, payload: bytes) -> dict[str, Any]:
        """The arguments of an encoded call by name, as far as the task's signature tells names."""
        call = unpack(self.codec.decode(payload))
        known = self._tasks.get(task)
        names = known.signature.names if known is not None else ()
        by_place = {names[at] if at < len(names) else str(at): value for at, value in enumerate(call.args)}
        return {**by_place, **call.kwargs}

    def register(
        self,
        name: str,
        handler: Callable[..., Any],
        queue: str | None = None,
        *,
        batch: Batch | Mapping[str, Any] | int | None = None,
    ) -> None:
        """Register a handler that receives the ``Job``, for all queues or for one; with ``batch`` many."""
        self.registry.add(name, Handler(handler, takes_job=True, batch=to_batch(batch)), queue)

    # --- around jobs -----------------------------------------------------------------------------------

    def use(self, middleware: Any) -> None:
        """Add a middleware: an object with ``enqueue``, ``execute`` or ``ended``; the first is outermost."""
        self.hooks.use(middleware)

    def around_enqueue(self, hook: H) -> H:
        """Put a function around every enqueue; also a decorator. ``windlass.hooks`` tells its forms."""
        self.hooks.around_enqueue(hook)
        return hook

    def around_execute(self, hook: H) -> H:
        """Put a function around every run of a job; also a decorator. ``windlass.hooks`` tells its forms."""
        self.hooks.around_execute(hook)
        return hook

    def on_error(self, hook: H) -> H:
        """Call ``hook(job, error, final)`` when a run failed, for an error tracker; also a decorator.

        ``final`` is false when the job will be retried. Signals like ``Snooze`` are no errors.
        """
        self.hooks.on_error(hook)
        return hook

    def carry(self, variable: ContextVar[Any], name: str | None = None) -> None:
        """Let a context variable (a locale, a tenant, a request id) travel from the producer to the handler.

        Its value must be one that JSON can hold. A variable that is not set is not carried.
        """
        first = not self.carrier
        self.carrier.add(variable, name or variable.name)
        if first:
            self.hooks.use(self.carrier)

    def lifespan(self, resources: L) -> L:
        """Register what a worker opens before its first job and closes after its last; also a decorator.

        ``resources(app)`` is an async generator that yields once. What it yields is every job's ``context``.
        """
        if not inspect.isasyncgenfunction(resources):
            raise ConfigError("lifespan", "an async generator of one parameter, the app", resources)
        if self._lifespan is not None:
            raise ConfigError("lifespan", "given once for an app")
        self._lifespan = asynccontextmanager(resources)
        return resources

    def open_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """The resources of one worker; empty when the app has none."""
        return nullcontext() if self._lifespan is None else self._lifespan(self)

    @property
    def sync(self) -> SyncApp:
        """The producer verbs for code without an event loop."""
        from windlass.sync import SyncApp  # sync sits above the app

        return SyncApp(self)


def as_app(url_or_app: str | Windlass | None) -> Windlass:
    """The app itself, or a new one on that URL."""
    if isinstance(url_or_app, Windlass):
        return url_or_app
    if url_or_app is None or isinstance(url_or_app, str):
        return Windlass(url_or_app)
    raise ConfigError("url_or_app", "a URL or a Windlass app", url_or_app)


def _as_codec(codec: str | Codec, compress: bool) -> Codec:
    if not isinstance(codec, str):
        register_codec(codec)
        codec = codec.name
    return get_codec(f"{codec}+zlib" if compress else codec)
