"""``Celery``: an app with Celery's API, on top of a Windlass app (``app.windlass``).

The Windlass app is created on first use, when the settings and the task modules are known.
"""

from __future__ import annotations

import importlib
import inspect
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, overload

from windlass.api.app import Windlass
from windlass.api.task import caller_module, default_name
from windlass.compat.celery import canvas, schedules
from windlass.compat.celery.calls import job_options, options_of
from windlass.compat.celery.conf import Settings, settings_of
from windlass.compat.celery.current import app_or_current, running, set_current_app, wait_for
from windlass.compat.celery.exceptions import NotRegistered
from windlass.compat.celery.result import AsyncResult, GroupResult, revoke
from windlass.compat.celery.running import run_job
from windlass.compat.celery.signals import Signal
from windlass.compat.celery.task import NEEDLESS, TAKEN, Task
from windlass.core.option_values import check_known
from windlass.errors import ConfigError
from windlass.jobs.job import Job

_apps: Final[weakref.WeakSet[Celery]] = weakref.WeakSet()
#: How long results are kept that do not expire.
_FOR_EVER: Final = timedelta(days=36_500)
#: Tasks of ``shared_task``, which every app has.
_shared: Final[list[tuple[Callable[..., Any], dict[str, Any]]]] = []


class Tasks(dict[str, Task]):
    """Tasks by name. A missing name raises ``NotRegistered``."""

    def __missing__(self, name: str) -> Task:
        raise NotRegistered(f"no task {name!r} here; import the module that has it (include=, imports)")


class Control:
    """``app.control``: commands for tasks and queues."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def revoke(
        self, task_id: str | Iterable[str], terminate: bool = False, signal: str = "SIGTERM", **needless: Any
    ) -> None:
        """Cancel tasks; running ones only with ``terminate``. This also holds after restarts."""
        for one in [task_id] if isinstance(task_id, str) else list(task_id):
            wait_for(revoke(self._app, str(one), None, terminate))

    def terminate(self, task_id: str | Iterable[str], signal: str = "SIGTERM", **needless: Any) -> None:
        """Cancel tasks, including running ones."""
        self.revoke(task_id, terminate=True)

    def purge(self) -> int:
        """Delete all waiting tasks in the queues of this app; returns how many."""
        return wait_for(self._purge())

    discard_all = purge

    async def _purge(self) -> int:
        found = [await self._app.windlass.queue(name).clear(delayed=True) for name in self._app.queue_names()]
        return sum(found)

    def __getattr__(self, name: str) -> Any:
        others = "'windlass workers', 'windlass jobs' and the dashboard show the rest"
        raise ConfigError(
            "control",
            message=f"control.{name} is not supported: use revoke, terminate or purge; {others}",
            got=name,
        )


class Celery:
    """``Celery("shop", broker="redis://...")``; the broker's URL is that of the store.

    Jobs and results are in one store, so ``backend`` is not used. ``windlass worker module:app`` runs the
    tasks, and fires ``beat_schedule`` as well.
    """

    task_cls: type[Task] = Task

    def __init__(
        self,
        main: str | None = None,
        broker: str | None = None,
        backend: str | None = None,
        include: Iterable[str] | str = (),
        set_as_current: bool = True,
        config_source: Any = None,
        namespace: str | None = None,
        task_cls: type[Task] | None = None,
        **settings: Any,
    ) -> None:
        self.main: str | None = main
        self._module = caller_module(2)
        self.conf: Settings = Settings(settings)
        if broker is not None:
            self.conf.broker_url = broker
        if backend is not None:
            self.conf.result_backend = backend
        self.conf.include = [include] if isinstance(include, str) else list(include)
        if task_cls is not None:
            self.task_cls = task_cls
        self._tasks = Tasks()
        self._lock = threading.RLock()
        self._windlass: Windlass | None = None
        self._discover: list[tuple[Any, str | None]] = []
        self._declared: set[str] = set()
        self._declaring = False
        self.control = Control(self)
        self.on_configure = Signal("on_configure")
        self.on_after_configure = Signal("on_after_configure")
        self.on_after_finalize = Signal("on_after_finalize")
        if config_source is not None:
            self.config_from_object(config_source, namespace=namespace)
        for fn, options in _shared:
            self._make_task(fn, options)
        _apps.add(self)
        if set_as_current:
            set_current_app(self)

    def __repr__(self) -> str:
        return f"<Celery {self.main or self._module} on Windlass>"

    def __enter__(self) -> Celery:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def set_current(self) -> None:
        """Make this the default app."""
        set_current_app(self)

    set_default = set_current

    def close(self) -> None:
        """Disconnect."""
        if self._windlass is not None:
            wait_for(self._windlass.close())

    # --- settings --------------------------------------------------------------------------------------

    def config_from_object(
        self, obj: Any, silent: bool = False, force: bool = False, namespace: str | None = None
    ) -> None:
        """Read settings from a module (or its name), an object or a mapping; see ``settings_of``."""
        self.conf.update(settings_of(obj, namespace))

    def autodiscover_tasks(
        self,
        packages: Iterable[str] | Callable[[], Iterable[str]] | None = None,
        related_name: str | None = "tasks",
        force: bool = False,
    ) -> None:
        """Import ``tasks`` of each package when the app is first used. Default: those of Django's apps."""
        self._discover.append((packages, related_name))
        if force:
            self._import_modules()

    # --- tasks -----------------------------------------------------------------------------------------

    @overload
    def task(self, fn: Callable[..., Any], /, **options: Any) -> Task: ...
    @overload
    def task(self, /, **options: Any) -> Callable[[Callable[..., Any]], Task]: ...
    def task(self, fn: Any = None, /, **options: Any) -> Any:
        """Make a function a task: ``@app.task`` or ``@app.task(bind=True, max_retries=5, ...)``."""
        if fn is None:
            return lambda given: self._make_task(given, options)
        if not callable(fn):
            raise ConfigError("task", "a function (give options by name: @app.task(name=...))", fn)
        return self._make_task(fn, options)

    def _make_task(self, fn: Callable[..., Any], options: Mapping[str, Any]) -> Task:
        check_known(options, TAKEN | NEEDLESS | {"name", "bind", "base", "serializer"}, "option of a task")
        if inspect.iscoroutinefunction(fn):
            raise ConfigError(
                "task",
                message=f"{fn.__qualname__} is async, which tasks of Celery cannot be; use "
                "@app.windlass.task",
                got=fn,
            )
        name = options.get("name") or self.gen_task_name(fn)
        if name in self._tasks:
            return self._tasks[name]
        base: type[Task] = options.get("base") or self.task_cls
        space = {key: value for key, value in options.items() if key in TAKEN}
        bound = bool(options.get("bind"))
        run = fn if bound else staticmethod(fn)
        about = {"__doc__": fn.__doc__, "__module__": fn.__module__, "__wrapped__": staticmethod(fn)}
        kind = type(fn.__name__, (base,), {**about, **space, "name": name, "run": run, "bound": bound})
        return self.register_task(kind())

    def gen_task_name(self, fn: Callable[..., Any]) -> str:
        """``module.function``. For a script, the app's name or the file name replaces the module."""
        if fn.__module__ == "__main__" and self.main:
            return f"{self.main}.{fn.__name__}"
        return f"{default_name(fn).removesuffix(fn.__qualname__)}{fn.__name__}"

    def register_task(self, task: Task | type[Task], **options: Any) -> Task:
        """Register a task that is written as a class."""
        made = task() if isinstance(task, type) else task
        made.name = made.name or f"{type(made).__module__}.{type(made).__name__}"
        made.app = self
        self._tasks[made.name] = made
        if self._windlass is not None:
            self._install(self._windlass, made)
        return made

    @property
    def tasks(self) -> Tasks:
        """Tasks by name."""
        return self._tasks

    @property
    def current_task(self) -> Any:
        """The task that runs in this thread; None outside of one."""
        found = running()
        return None if found is None else found[0]

    # --- sending ---------------------------------------------------------------------------------------

    def send_task(
        self,
        name: str,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Send a task by name. This process need not have it. Never runs eagerly."""
        said = {key: value for key, value in options.items() if value is not None}
        flow = canvas.Flow(self)
        _, result = canvas.Signature(name, args, kwargs, said, app=self).place(flow, None, None, {})
        flow.send()
        return result

    def signature(self, *args: Any, **options: Any) -> canvas.Signature:
        """A signature of this app."""
        return canvas.signature(*args, **{"app": self, **options})

    def AsyncResult(self, task_id: str, **options: Any) -> AsyncResult:
        """The result of that id."""
        return AsyncResult(task_id, app=self, **options)

    def GroupResult(self, id: str, results: Any, **options: Any) -> GroupResult:
        """Several results as one."""
        return GroupResult(id, results, **options)

    def route(
        self, name: str, task: Any, options: dict[str, Any], call: tuple[Any, Any]
    ) -> tuple[str, int | None]:
        """The queue and priority of a call: from its options, from ``task_routes``, or the default."""
        where: Any = _routed(self.conf.task_routes, name, (*call, options, task)) or {}
        queue = options.get("queue") or where.get("queue") or where.get("routing_key")
        return _queue_name(queue or self.conf.task_default_queue), where.get("priority")

    def queue_names(self) -> list[str]:
        """The queues of its tasks, its routes and ``task_queues``."""
        found = [self.conf.task_default_queue, *(one for one in self.conf.task_queues or ())]
        found += [
            self.route(task.name, task, {"queue": task.queue}, ((), {}))[0] for task in self._tasks.values()
        ]
        found += _static_routes(self.conf.task_routes)
        return list(dict.fromkeys(map(_queue_name, found)))

    async def find_job(self, job_id: str, queue: str | None) -> Job[Any] | None:
        """The job of that id, in the given queue or in any queue of this app."""
        tried: list[str] = []
        for names in ([queue] if queue else self.queue_names(), None):
            more = [info.name for info in await self.windlass.queues()] if names is None else names
            for name in more:
                if name not in tried:
                    tried.append(name)
                    job = await self.windlass.queue(name).get_job(job_id)
                    if job is not None:
                        return job
        return None

    # --- schedules -------------------------------------------------------------------------------------

    def add_periodic_task(
        self,
        schedule: Any,
        sig: canvas.Signature,
        args: Any = (),
        kwargs: Any = None,
        name: str | None = None,
        **opts: Any,
    ) -> str:
        """Send ``sig`` on a schedule; for receivers of ``on_after_configure`` and ``on_after_finalize``."""
        key = name or repr(sig)
        entry = {"task": sig.task, "schedule": schedule, "args": (*sig.args, *args)}
        entry |= {"kwargs": {**sig.kwargs, **(kwargs or {})}, "options": {**sig.options, **opts}}
        self.conf.beat_schedule = {**self.conf.beat_schedule, key: entry}
        return key

    def _declare_schedules(self, made: Windlass) -> None:
        for name, entry in self.conf.beat_schedule.items():
            if name in self._declared:
                continue
            check_known(
                entry, ("task", "schedule", "args", "kwargs", "options", "relative"), "key of a schedule"
            )
            task, options = entry["task"], entry.get("options") or {}
            if task not in self._tasks:
                raise ConfigError(
                    f"beat_schedule[{name!r}]",
                    message=f"beat_schedule[{name!r}] names task {task!r}, which this app does not have",
                    got=task,
                )
            rule = schedules.to_windlass(entry["schedule"], self.conf.zone_name())
            call = (entry.get("args"), entry.get("kwargs"))
            queue, priority = self.route(task, self._tasks[task], options, call)
            merged = {**options_of(self._tasks[task], self, priority), **options}
            bound = made.tasks[task].options(**job_options(self, merged))
            if queue != bound.task.queue_name:
                raise ConfigError(
                    f"beat_schedule[{name!r}]",
                    message=f"beat_schedule[{name!r}] cannot send to queue {queue!r}: it uses the queue of "
                    f"its task, {bound.task.queue_name!r} (set by task_routes)",
                    got=queue,
                )
            made.schedule(name, rule, bound, *entry.get("args", ()), **entry.get("kwargs") or {})
            self._declared.add(name)

    # --- Windlass --------------------------------------------------------------------------------------

    @property
    def windlass(self) -> Windlass:
        """The Windlass app, with its store, queues and tasks. ``windlass worker`` runs it."""
        with self._lock:
            if self._windlass is None:
                self._windlass = self._make()
                self.on_after_configure.send(self)
                self.on_after_finalize.send(self)
            if not self._declaring:  # the options of a schedule need this app, too
                self._declaring = True
                try:
                    self._declare_schedules(self._windlass)
                finally:
                    self._declaring = False
            return self._windlass

    def finalize(self, auto: bool = False) -> None:
        """Create the Windlass app now."""
        _ = self.windlass

    def _make(self) -> Windlass:
        self.on_configure.send(self)
        self._import_modules()
        expires = self.conf.result_expires
        kept = {"result_ttl": expires} if expires else {"keep_completed": True, "result_ttl": _FOR_EVER}
        url = self.conf.broker_url
        made = Windlass(
            _store_url(url[0] if isinstance(url, (list, tuple)) else url),
            name=self.main or self._module,
            codec="json+tagged",
            defaults=kept,
        )
        for task in self._tasks.values():
            self._install(made, task)
        return made

    def _install(self, made: Windlass, task: Task) -> None:
        def run(*args: Any, **kwargs: Any) -> Any:
            return run_job(task, args, kwargs)

        queue, _ = self.route(task.name, task, {"queue": task.queue}, ((), {}))
        made.task(name=task.name, queue=queue, **task.job_options())(run)

    def _import_modules(self) -> None:
        for module in (*self.conf.include, *self.conf.imports):
            importlib.import_module(module)
        discover, self._discover = self._discover, []
        for packages, related in discover:
            for package in _packages(packages):
                _import_if_there(f"{package}.{related}" if related else package)

    def worker_main(self, argv: Any = None) -> None:
        """Refused: workers are started from the command line."""
        raise ConfigError(
            "worker",
            message="workers are started from the command line: windlass worker MODULE:APP",
            got=argv,
        )

    start = worker_main


def _store_url(url: str | None) -> str | None:
    """Convert a URL of Celery where its form differs."""
    return url if url is None else re.sub(r"^pyamqp:", "amqp:", url)


def _queue_name(queue: Any) -> str:
    """The name of a queue, which may be a ``kombu.Queue``."""
    return queue if isinstance(queue, str) else str(queue.name)


def _routed(routes: Any, name: str, call: tuple[Any, ...]) -> Any:
    """The result of ``task_routes``: mappings and pairs of patterns, functions, or lists of these."""
    if routes is None:
        return None
    if isinstance(routes, Mapping):
        return _by_pattern(routes.items(), name)
    if callable(routes):
        return _destination(routes(name, *call[:3], task=call[3]))
    if _is_pair(routes):
        return _by_pattern([routes], name)
    return next((found for one in routes if (found := _routed(one, name, call)) is not None), None)


def _is_pair(route: Any) -> bool:
    """Whether it is a pair of a pattern and a destination."""
    return isinstance(route, (tuple, list)) and len(route) == 2 and isinstance(route[0], (str, re.Pattern))


def _by_pattern(pairs: Iterable[tuple[Any, Any]], name: str) -> Any:
    for pattern, where in pairs:
        hit = pattern.match(name) if isinstance(pattern, re.Pattern) else fnmatchcase(name, pattern)
        if hit:
            return _destination(where)
    return None


def _destination(where: Any) -> Mapping[str, Any] | None:
    if where is None or isinstance(where, str):
        return {"queue": where} if where else None
    check_known(where, ("queue", "priority", "routing_key", "exchange"), "key of a route")
    return where  # type: ignore[no-any-return]


def _static_routes(routes: Any) -> list[Any]:
    """The queues that ``task_routes`` names, without those of functions."""
    if routes is None or callable(routes):
        return []
    if isinstance(routes, Mapping):
        return [found for where in routes.values() if (found := _queue_of(where))]
    if _is_pair(routes):
        return [found] if (found := _queue_of(routes[1])) else []
    return [name for one in routes for name in _static_routes(one)]


def _queue_of(where: Any) -> Any:
    found = _destination(where) or {}
    return found.get("queue") or found.get("routing_key")


def _packages(packages: Any) -> list[str]:
    if packages is None:
        configs = importlib.import_module("django.apps").apps.get_app_configs()
        return [config.name for config in configs]
    return list(packages() if callable(packages) else packages)


def _import_if_there(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not (module == exc.name or module.startswith(f"{exc.name}.")):
            raise


class _SharedTask:
    """A proxy for a task of the current app."""

    def __init__(self, fn: Callable[..., Any], name: str | None) -> None:
        self.__dict__.update({"_given": name, "__doc__": fn.__doc__, "__wrapped__": fn})

    def _get(self) -> Task:
        app: Any = app_or_current()
        return app.tasks[self._given or app.gen_task_name(self.__wrapped__)]  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._get()(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<shared task {self._given or self.__wrapped__.__name__}>"


@overload
def shared_task(fn: Callable[..., Any], /, **options: Any) -> Task: ...
@overload
def shared_task(**options: Any) -> Callable[[Callable[..., Any]], Task]: ...
def shared_task(*args: Any, **options: Any) -> Any:
    """Make a function a task of every app, including apps that are created later."""
    if not args:
        return lambda fn: shared_task(fn, **options)
    (fn,) = args
    _shared.append((fn, options))
    for app in list(_apps):
        app._make_task(fn, options)
    return _SharedTask(fn, options.get("name"))


class _Current:
    """A proxy for the current app, or the current task."""

    def __init__(self, get: Callable[[], Any]) -> None:
        self.__dict__["_get"] = get

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get(), name)

    def __bool__(self) -> bool:
        return bool(self._get())

    def __repr__(self) -> str:
        return repr(self._get())


def _running_task() -> Any:
    found = running()
    return None if found is None else found[0]


current_app: Any = _Current(app_or_current)
current_task: Any = _Current(_running_task)
