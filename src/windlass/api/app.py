"""``Windlass``: one store, its queues, its tasks.

Applications start here; ``Queue`` and ``Worker`` can also be used without an app. Tasks are registered in
``app_tasks``, hooks and the resources of workers in ``app_hooks``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, get_args

from windlass._renamed import old_names
from windlass.api.app_hooks import HookVerbs
from windlass.api.app_tasks import TaskVerbs
from windlass.api.queue import Queue
from windlass.api.sync import PORTAL, SyncQueue
from windlass.api.task import BoundTask, Task, caller_module
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.backend.urls import DEFAULT_URL, open_backend
from windlass.core import foreign_names
from windlass.core.backoff import Strategy
from windlass.core.clock import SYSTEM_CLOCK, Clock
from windlass.core.foreign_names import ForeignNames
from windlass.core.ids import check_task_name, is_text, new_id
from windlass.core.job import Action, QueueInfo, WorkerInfo
from windlass.core.masks import DEFAULT_MASK, MessageMask
from windlass.core.option_values import check_int, check_spelling, instant_to_ms, to_backoff
from windlass.core.options import DEFAULT_OPTIONS, JobOptions
from windlass.core.probe import reach
from windlass.core.rollups import Mark
from windlass.core.schedule_rules import Schedule, to_schedule
from windlass.core.schedule_rules import Strategy as ScheduleStrategy
from windlass.errors import ConfigError
from windlass.jobs.interfaces import open_apps_with
from windlass.schedules.verbs import DeclaredSchedules, ScheduleInfo, list_schedules, make_record
from windlass.serde import DEFAULT_MAX_BYTES, Codec, ZlibCodec, get_codec, register_codec
from windlass.serde.codecs import Codecs

if TYPE_CHECKING:
    from windlass.jobs.job import Job

log: Final = logging.getLogger("windlass.app")


class Windlass(TaskVerbs, HookVerbs, ForeignNames):
    """A job system on one store.

    ``url`` names the store; without it ``$WINDLASS_URL``, else ``sqlite:///windlass.db``. Nothing is opened
    until the first use, or ``async with app``. ``compress`` stores payloads and results over 2 kB compressed.
    ``accept`` lists codecs that jobs may come in besides the app's own; an app whose codec is JSON or
    MessagePack accepts these two, any other app nothing else.
    ``name`` distinguishes the schedules of this code from those of other applications on the same store.
    """

    _called = "an app"
    _elsewhere = foreign_names.APP

    def __init__(  # noqa: PLR0913 - each is named, and most apps give none
        self,
        url: str | None = None,
        *,
        defaults: JobOptions | Mapping[str, Any] | None = None,
        codec: str | Codec = "json",
        result_codec: str | Codec | None = None,
        accept: Iterable[str | Codec] = (),
        compress: bool = False,
        max_payload_bytes: int = DEFAULT_MAX_BYTES,
        backoff_strategies: Mapping[str, Strategy] | None = None,
        schedule_strategies: Mapping[str, ScheduleStrategy] | None = None,
        context: Any = None,
        clock: Clock = SYSTEM_CLOCK,
        name: str | None = None,
        mask: Sequence[str] = DEFAULT_MASK,
        error_messages: bool = True,
    ) -> None:
        #: Whose code this is: schedules that it no longer declares go when a worker starts. The module that
        #: makes the app, unless it is named.
        self.name: str = caller_module(2) if name is None else check_task_name(name)
        self.url: str = url or os.environ.get("WINDLASS_URL") or DEFAULT_URL
        self.store: Store = Store(open_backend(self.url), clock)
        self.clock = clock
        #: What writes arguments, and which codecs are read.
        self.codecs: Codecs = Codecs(
            _as_codec(codec, compress),
            results=None if result_codec is None else _as_codec(result_codec, compress),
            accept=accept,
        )
        check_int("max_payload_bytes", max_payload_bytes, 1, 2**31)
        self.max_payload_bytes = max_payload_bytes
        if isinstance(mask, str) or not all(isinstance(name, str) for name in mask):
            raise ConfigError("mask", "a list of names, such as ['password', '*token*']", mask)
        #: What history keeps of error messages: without the values of the names in ``mask``, or nothing.
        self.messages: MessageMask = MessageMask(mask, keep=error_messages)
        self.defaults: JobOptions = (
            defaults if isinstance(defaults, JobOptions) else DEFAULT_OPTIONS.merged(defaults or {})
        )
        if result_codec is not None:
            self.defaults = self.defaults.merged({"result_codec": _as_codec(result_codec, compress).name})
        self.defaults.check()
        self.backoff_strategies: dict[str, Strategy] = dict(backoff_strategies or {})
        check_spelling(to_backoff(self.defaults.backoff), self.backoff_strategies)
        #: Custom rules for schedules: name -> function from a datetime to the next slot after it.
        self.schedule_strategies: dict[str, ScheduleStrategy] = dict(schedule_strategies or {})
        self._code_schedules = DeclaredSchedules(self.schedule_strategies)
        #: Handed to every handler as ``job.context``.
        self.context = context
        TaskVerbs.__init__(self)
        HookVerbs.__init__(self, self.codecs)
        self._queues: dict[str, Queue] = {}
        self._entered = False
        #: Called with the jobs of every add. The inline mode of ``windlass.testing`` uses it.
        self.after_add: Callable[[list[Job[Any]]], Awaitable[None]] | None = None

    @property
    def codec(self) -> Codec:
        """What writes arguments."""
        return self.codecs.own

    def __repr__(self) -> str:
        return f"<Windlass on {self.store.name}>"

    async def __aenter__(self) -> Windlass:
        if self._entered:
            raise ConfigError("async with app", "entered once at a time (it is open: use it as it is)")
        self._entered = True
        try:
            await self.open()
        except BaseException:
            self._entered = False
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._entered = False
        await self.close()

    async def open(self) -> None:
        """Connect now instead of at the first call; also the way to use a closed app again. Idempotent."""
        await self.store.reopen()

    async def close(self) -> None:
        """Disconnect. Waits under way, and calls from now on, raise ``ClosedError``. Idempotent.

        ``async with app`` or ``open`` opens it again, with its queues and tasks: for tests, and for servers
        that restart within one process.
        """
        for queue in self._queues.values():
            await queue.stop_waiting(self.store.closed_error())
        await self.store.close()

    def use_store(self, url: str) -> None:
        """Change the store, before anything was opened: ``--url`` overrules what the code says."""
        self.url = url
        self.store = Store(open_backend(url), self.clock)
        self._queues.clear()

    def queue(self, name: str) -> Queue:
        """The queue of that name (made on first use; the same object every time until it is closed)."""
        found = self._queues.get(name)
        if found is None or found.is_closed:
            found = self._queues[name] = Queue(name, self)
        return found

    async def queues(self) -> list[QueueInfo]:
        """Every queue the store knows, with its counts."""
        return await self.store.execute(rq.ListQueues())

    async def workers(self) -> list[WorkerInfo]:
        """Workers that were alive in the last 45 seconds."""
        return await self.store.execute(rq.ListWorkers())

    async def command_worker(self, worker_id: str, action: Action) -> bool:
        """Make a worker go ``quiet``, ``resume``, ``stop`` or ``dump`` its stacks; False when unknown.

        The worker receives it at once or with its next heartbeat; ``workers`` shows when a worker is quiet.
        """
        if action not in get_args(Action):
            raise ConfigError("action", f"one of {', '.join(get_args(Action))}", action)
        if not is_text(worker_id):
            raise ConfigError("worker_id", "the id of a worker, a text", worker_id)
        request = rq.CommandWorker(worker=worker_id, action=action, id=new_id())
        return await self.store.execute(request)

    async def mark(self, label: str) -> Mark:
        """Put a mark on the time line of the figures: a deploy, say."""
        return await self.store.execute(mq.AddMark(id=new_id(), label=check_task_name(label)))

    async def marks(self, start: datetime | float = 0) -> list[Mark]:
        """Marks since ``start``, oldest first."""
        return await self.store.execute(mq.ListMarks(since_ms=instant_to_ms(start, "start")))

    async def schedules(self) -> list[ScheduleInfo]:
        """Every schedule of the store, by queue and name."""
        return await list_schedules(self)

    def schedule(
        self,
        name: str,
        schedule: Schedule | Mapping[str, Any],
        task: Task[..., Any] | BoundTask[..., Any] | str,
        /,
        *args: Any,
        queue: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Declare a schedule in the code: ``app.schedule("nightly", {"cron": "0 3 * * *"}, report, 7)``.

        ``args`` and ``kwargs`` are the task's. A task given by its name needs ``queue``. It gets into the
        store when a worker starts (``deploy_schedules``), and out of it when the code no longer has it.
        """
        if isinstance(task, str):
            if queue is None:
                raise ConfigError("queue", "given together with a task's name")
            template = self.queue(queue).prepare(task, {**kwargs} if kwargs else list(args) or None)
        else:
            bound = task if isinstance(task, BoundTask) else task.options()
            if queue is not None and queue != bound.task.queue_name:
                raise ConfigError("queue", f"left out, or the task's own ({bound.task.queue_name})", queue)
            template = bound.prepare(*args, **kwargs)
        self._code_schedules.declare(make_record(self, name, to_schedule(schedule), template))

    async def deploy_schedules(self) -> None:
        """Make the store's schedules those that this code declares; workers do it when they start.

        Schedules that the code of the same ``name`` declared before and no longer has are removed; those
        made by hand or by other applications are left alone.
        """
        if not self.store.capabilities.schedules and not self._code_schedules:
            return
        count, removed = await self._code_schedules.deploy(self, self.name)
        for info in removed:
            log.info("removed schedule %r of queue %r: the code no longer has it", info.name, info.queue)
        reach("app.deployed", schedules=count, removed=len(removed))

    @property
    def sync(self) -> SyncApp:
        """The producer verbs for code without an event loop."""
        return SyncApp(self)


def as_app(url_or_app: str | Windlass | None) -> Windlass:
    """The app itself, or a new one on that URL."""
    if isinstance(url_or_app, Windlass):
        return url_or_app
    if url_or_app is None or isinstance(url_or_app, str):
        return Windlass(url_or_app)
    raise ConfigError("url_or_app", "a URL or a Windlass app", url_or_app)


open_apps_with(as_app)


def _as_codec(codec: str | Codec, compress: bool) -> Codec:
    if not isinstance(codec, str):
        register_codec(codec)  # checks it, and makes its name known to options
    known = get_codec(codec) if isinstance(codec, str) else codec
    return ZlibCodec(known) if compress and not isinstance(known, ZlibCodec) else known


class SyncApp:
    """An app's producer verbs for code without an event loop."""

    def __init__(self, app: Windlass) -> None:
        self._app = app

    def queue(self, name: str) -> SyncQueue:
        """The queue of that name."""
        return SyncQueue(self._app.queue(name))

    def queues(self) -> list[QueueInfo]:
        """All queues, with their counts; see ``Windlass.queues``."""
        return PORTAL.run(self._app.queues())

    def workers(self) -> list[WorkerInfo]:
        """The workers that are alive; see ``Windlass.workers``."""
        return PORTAL.run(self._app.workers())

    def schedules(self) -> list[ScheduleInfo]:
        """All schedules; see ``Windlass.schedules``."""
        return PORTAL.run(self._app.schedules())

    def deploy_schedules(self) -> None:
        """Make the schedules in the store those of the code; see ``Windlass.deploy_schedules``."""
        PORTAL.run(self._app.deploy_schedules())

    def command_worker(self, worker_id: str, action: Action) -> bool:
        """Send a worker a command; see ``Windlass.command_worker``."""
        return PORTAL.run(self._app.command_worker(worker_id, action))

    def mark(self, label: str) -> Mark:
        """Put a mark beside the metrics; see ``Windlass.mark``."""
        return PORTAL.run(self._app.mark(label))

    def marks(self, start: datetime | float = 0) -> list[Mark]:
        """The marks beside the metrics; see ``Windlass.marks``."""
        return PORTAL.run(self._app.marks(start))

    def open(self) -> None:
        """Connect now, also after ``close``; see ``Windlass.open``."""
        PORTAL.run(self._app.open())

    def close(self) -> None:
        """Disconnect the app; see ``Windlass.close``."""
        PORTAL.run(self._app.close())


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
