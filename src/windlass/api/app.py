"""``Windlass``: one store with its queues and tasks.

Applications start here. ``Queue`` and ``Worker`` can also be used without an app. ``app_tasks`` registers
tasks; ``app_hooks`` registers hooks and the resources of workers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, get_args

from windlass._renamed import old_names
from windlass.api.app_hooks import HookVerbs
from windlass.api.app_tasks import TaskVerbs
from windlass.api.queue import Queue
from windlass.api.sync import SyncQueue
from windlass.api.task import BoundTask, Task, caller_module
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.backend.urls import default_url, open_backend
from windlass.core import foreign_names
from windlass.core.backoff import BackoffStrategy
from windlass.core.clock import SYSTEM_CLOCK, Clock
from windlass.core.foreign_names import ForeignNames
from windlass.core.ids import check_task_name, is_text, new_id
from windlass.core.job import Action, QueueInfo, WorkerInfo
from windlass.core.masks import DEFAULT_MASK, MessageMask
from windlass.core.option_values import check_int, check_spelling, instant_to_ms, to_backoff
from windlass.core.options import DEFAULT_OPTIONS, JobOptions
from windlass.core.probe import reach
from windlass.core.rollups import Mark
from windlass.core.schedule_rules import Schedule, ScheduleStrategy, to_schedule
from windlass.errors import ConfigError, shown
from windlass.jobs.interfaces import open_apps_with
from windlass.jobs.sync import PORTAL
from windlass.schedules.verbs import DeclaredSchedules, ScheduleInfo, list_schedules, make_record
from windlass.serde import DEFAULT_MAX_BYTES, Codec, ZlibCodec, get_codec, register_codec
from windlass.serde.codecs import Codecs

if TYPE_CHECKING:
    from windlass.jobs.job import Job

log: Final = logging.getLogger("windlass.app")


class Windlass(TaskVerbs, HookVerbs, ForeignNames):
    """A job system on one store.

    ``url`` names the store. The default is ``$WINDLASS_URL``, then ``sqlite:///windlass.db``. The app
    connects on first use, or with ``async with app``. ``compress`` stores payloads and results over 2 kB
    compressed. ``accept`` lists further codecs that the app reads; JSON and MessagePack apps always read both
    of these. ``context`` is passed to every handler as ``job.context``. ``name`` separates the schedules of
    this code from those of other applications on the same store.
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
        backoff_strategies: Mapping[str, BackoffStrategy] | None = None,
        schedule_strategies: Mapping[str, ScheduleStrategy] | None = None,
        context: Any = None,
        clock: Clock = SYSTEM_CLOCK,
        name: str | None = None,
        mask: Sequence[str] = DEFAULT_MASK,
        error_messages: bool = True,
    ) -> None:
        #: Identifies this code as the owner of its schedules; by default the module that creates the app.
        #: Schedules of this owner that the code no longer declares are removed when a worker starts.
        self.name: str = caller_module(2) if name is None else check_task_name(name)
        self.url: str = default_url() if url is None else url
        self.store: Store = Store(open_backend(self.url), clock)
        self.clock = clock
        #: The codecs that write and read arguments and results.
        self.codecs: Codecs = Codecs(
            _as_codec(codec, compress),
            results=None if result_codec is None else _as_codec(result_codec, compress),
            accept=accept,
        )
        check_int("max_payload_bytes", max_payload_bytes, 1, 2**31)
        self.max_payload_bytes = max_payload_bytes
        if isinstance(mask, str) or not all(isinstance(name, str) for name in mask):
            raise ConfigError("mask", "a list of names, such as ['password', '*token*']", mask)
        #: Hides values of the names in ``mask`` in the error messages of the history, or drops the messages.
        self.messages: MessageMask = MessageMask(mask, keep=error_messages)
        self.defaults: JobOptions = (
            defaults if isinstance(defaults, JobOptions) else DEFAULT_OPTIONS.merged(defaults or {})
        )
        if result_codec is not None:
            self.defaults = self.defaults.merged({"result_codec": _as_codec(result_codec, compress).name})
        self.defaults.as_defaults().check()
        self.backoff_strategies: dict[str, BackoffStrategy] = dict(backoff_strategies or {})
        check_spelling(to_backoff(self.defaults.backoff), self.backoff_strategies)
        #: Custom schedule rules by name: functions from a datetime to the next slot after it.
        self.schedule_strategies: dict[str, ScheduleStrategy] = dict(schedule_strategies or {})
        self._code_schedules = DeclaredSchedules(self.schedule_strategies, self.codecs)
        #: The value of ``job.context`` in every handler.
        self.context = context
        TaskVerbs.__init__(self)
        HookVerbs.__init__(self, self.codecs)
        self._queues: dict[str, Queue] = {}
        self._entered = False
        #: Called with the jobs of every add. The inline mode of ``windlass.testing`` uses it.
        self.after_add: Callable[[list[Job[Any]]], Awaitable[None]] | None = None

    @property
    def codec(self) -> Codec:
        """The codec that writes arguments."""
        return self.codecs.own

    def __repr__(self) -> str:
        return f"<Windlass on {self.store.name}>"

    async def __aenter__(self) -> Windlass:
        if self._entered:
            raise ConfigError(
                "async with app", message="this app is already open: use it without another 'async with'"
            )
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
        """Connect now instead of on first use. Also reopens a closed app. Idempotent."""
        await self.store.reopen()

    async def close(self) -> None:
        """Disconnect. Pending waits and later calls raise ``ClosedError``. Idempotent.

        ``open`` or ``async with app`` reopens the app with its queues and tasks, for tests and for servers
        that restart within one process.
        """
        for queue in self._queues.values():
            await queue.stop_waiting(self.store.closed_error())
        await self.store.close()

    def use_store(self, url: str) -> None:
        """Replace the store, before the app was opened; for a ``--url`` option that overrides the code."""
        self.url = url
        self.store = Store(open_backend(url), self.clock)
        self._queues.clear()

    def queue(self, name: str) -> Queue:
        """Return the queue of that name. The same object is returned until that queue is closed."""
        found = self._queues.get(name)
        if found is None or found.is_closed:
            found = self._queues[name] = Queue(name, self)
        return found

    async def queues(self) -> list[QueueInfo]:
        """Return every queue of the store, with its counts."""
        return await self.store.execute(rq.ListQueues())

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers that sent a heartbeat in the last 45 seconds."""
        return await self.store.execute(rq.ListWorkers())

    async def command_worker(self, worker_id: str, action: Action) -> bool:
        """Send a worker a command: ``quiet``, ``resume``, ``stop`` or ``dump`` (its stacks).

        Returns False when the worker is unknown. The worker receives the command at once, or with its next
        heartbeat. ``workers`` shows which workers are quiet.
        """
        if action not in get_args(Action):
            raise ConfigError("action", f"one of {', '.join(get_args(Action))}", action)
        if not is_text(worker_id):
            raise ConfigError("worker_id", "the id of a worker (a text)", worker_id)
        request = rq.CommandWorker(worker=worker_id, action=action, id=new_id())
        return await self.store.execute(request)

    async def mark(self, label: str) -> Mark:
        """Add a labelled mark to the timeline of the metrics, for example for a deploy."""
        return await self.store.execute(mq.AddMark(id=new_id(), label=check_task_name(label)))

    async def marks(self, start: datetime | float = 0) -> list[Mark]:
        """Return the marks since ``start``, oldest first."""
        return await self.store.execute(mq.ListMarks(since_ms=instant_to_ms(start, "start")))

    async def schedules(self) -> list[ScheduleInfo]:
        """Return every schedule of the store, by queue and name."""
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
        """Declare a schedule in code: ``app.schedule("nightly", {"cron": "0 3 * * *"}, report, 7)``.

        ``args`` and ``kwargs`` are the task's arguments. A task given by name needs ``queue``. When a worker
        starts, it stores the schedule (``deploy_schedules``) and removes schedules that the code no longer
        declares.
        """
        if isinstance(task, str):
            if queue is None:
                raise ConfigError(
                    "queue", message=f"task {task!r} is given by its name: name its queue too (queue=...)"
                )
            template = self.queue(queue).prepare(task, {**kwargs} if kwargs else list(args) or None)
        else:
            bound = task if isinstance(task, BoundTask) else task.options()
            if queue is not None and queue != bound.task.queue_name:
                raise ConfigError(
                    "queue",
                    message=f"task {bound.task.name!r} belongs to queue {bound.task.queue_name!r}, not "
                    f"{shown(queue)}; leave out queue",
                    got=queue,
                )
            template = bound.prepare(*args, **kwargs)
        self._code_schedules.declare(make_record(self, name, to_schedule(schedule), template))

    async def deploy_schedules(self) -> None:
        """Store the schedules that this code declares. Workers do this when they start.

        Schedules that code with the same app ``name`` declared before and no longer has are removed.
        Schedules that were created by hand or by other applications are not changed.
        """
        if not self.store.capabilities.schedules and not self._code_schedules:
            return
        count, removed = await self._code_schedules.deploy(self, self.name)
        for info in removed:
            log.info("removed schedule %r of queue %r: the code no longer has it", info.name, info.queue)
        reach("app.deployed", schedules=count, removed=len(removed))

    @property
    def sync(self) -> SyncApp:
        """The producer methods for code without an event loop."""
        return SyncApp(self)


def as_app(url_or_app: str | Windlass | None) -> Windlass:
    """Return the app itself, or a new one for the URL."""
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
    """The producer methods of an app for code without an event loop."""

    def __init__(self, app: Windlass) -> None:
        self._app = app

    def queue(self, name: str) -> SyncQueue:
        """Return the queue of that name; see ``Windlass.queue``."""
        return SyncQueue(self._app.queue(name))

    def queues(self) -> list[QueueInfo]:
        """Return all queues with their counts; see ``Windlass.queues``."""
        return PORTAL.run(self._app.queues())

    def workers(self) -> list[WorkerInfo]:
        """Return the workers that are alive; see ``Windlass.workers``."""
        return PORTAL.run(self._app.workers())

    def schedules(self) -> list[ScheduleInfo]:
        """Return all schedules; see ``Windlass.schedules``."""
        return PORTAL.run(self._app.schedules())

    def deploy_schedules(self) -> None:
        """Store the schedules of the code; see ``Windlass.deploy_schedules``."""
        PORTAL.run(self._app.deploy_schedules())

    def command_worker(self, worker_id: str, action: Action) -> bool:
        """Send a worker a command; see ``Windlass.command_worker``."""
        return PORTAL.run(self._app.command_worker(worker_id, action))

    def mark(self, label: str) -> Mark:
        """Add a mark to the timeline of the metrics; see ``Windlass.mark``."""
        return PORTAL.run(self._app.mark(label))

    def marks(self, start: datetime | float = 0) -> list[Mark]:
        """Return the marks of the timeline; see ``Windlass.marks``."""
        return PORTAL.run(self._app.marks(start))

    def open(self) -> None:
        """Connect now, also after ``close``; see ``Windlass.open``."""
        PORTAL.run(self._app.open())

    def close(self) -> None:
        """Disconnect the app; see ``Windlass.close``."""
        PORTAL.run(self._app.close())


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
