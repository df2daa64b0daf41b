"""``Worker``: claims jobs of any number of queues, runs them in one pool of slots, settles them.

It is made of parts that each do one thing (see ``Assembly``). ``Pump`` decides what to ask of the store and
``Driver`` asks it, ``Running`` has the jobs that run, ``Services`` does what is to be done now and then,
``Supervisor`` keeps the tasks alive, and ``Lifecycle`` starts and stops it all.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Unpack

import msgspec

from windlass.api.app import Windlass, as_app
from windlass.core.backoff import Strategy
from windlass.core.ids import new_id
from windlass.core.job import WorkerInfo
from windlass.core.option_values import check_known, seconds_to_ms
from windlass.core.outcome import to_reason
from windlass.errors import ConfigError, RateLimitError
from windlass.handlers.batch import Batch
from windlass.handlers.registry import Registry, job_handler
from windlass.jobs.job import Job
from windlass.worker.assembly import Assembly
from windlass.worker.emitter import Emitter
from windlass.worker.lifecycle import Stop
from windlass.worker.options import Queues, QueueSpec, WorkerOptions, WorkerOptionsDict, to_specs
from windlass.worker.parts import WorkerParts
from windlass.worker.pump import Pump
from windlass.worker.shares import SharePlanner
from windlass.worker.supervisor import TaskSupervisor

_OPTION_NAMES = frozenset(WorkerOptions.__struct_fields__)


class Worker:
    """A pool of slots that serves queues.

    ``queues`` is a name, a list of names, ``{name: weight}`` or ``{name: QueueSpec(...)}``. With ``handler``,
    every job goes to it (as a ``Job``; with ``batch`` as a list of them); without, to the app's tasks and
    registered handlers.
    """

    RateLimitError = RateLimitError

    def __init__(
        self,
        queues: Queues,
        handler: Callable[[Job[Any]], Any] | None = None,
        *,
        url_or_app: str | Windlass | None = None,
        context: Any = None,
        backoff_strategies: Mapping[str, Strategy] | None = None,
        batch: Batch | Mapping[str, Any] | int | None = None,
        **options: Unpack[WorkerOptionsDict],
    ) -> None:
        check_known(options, _OPTION_NAMES, "worker option")
        self.options: WorkerOptions = WorkerOptions(**options)
        self.app: Windlass = as_app(url_or_app)
        if handler is not None and not callable(handler):
            raise ConfigError(
                "handler", "callable with a job, such as a function (an app goes into url_or_app=)", handler
            )
        self.registry: Registry = (
            self.app.registry if handler is None else Registry(job_handler(handler, batch))
        )
        self.id: str = self.options.id or f"{socket.gethostname()[:80]}:{os.getpid()}:{new_id()[-8:]}"
        shared = self._shared = _share(self, to_specs(queues, self.options.concurrency))
        shared.context = context if context is not None else self.app.context
        shared.strategies = {**self.app.backoff_strategies, **(backoff_strategies or {})}
        self._pump = shared.pump
        self._parts = Assembly(shared, owns_app=self.app is not url_or_app)

    def __repr__(self) -> str:
        return f"<Worker {self.id} on {', '.join(self._shared.shares.names)}: {self._parts.lifecycle.state}>"

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- what it serves ------------------------------------------------------------------------------

    def register(
        self,
        name: str,
        handler: Callable[..., Any],
        queue: str | None = None,
        *,
        batch: Batch | Mapping[str, Any] | int | None = None,
    ) -> None:
        """Send jobs of task ``name`` (of one queue, or of all) to ``handler``; also while running.

        A ``queue`` that this worker does not serve yet is served from now on, with weight 1; ``add_queue``
        says otherwise. With ``batch`` the handler gets a list of jobs, many at once.
        """
        self.registry.add(name, job_handler(handler, batch), queue)
        if queue is not None and queue not in self._shared.shares.names:
            self.add_queue(queue)

    def get_queues(self) -> list[str]:
        """The names of the queues that it serves, in order."""
        return self._shared.shares.names

    def add_queue(self, name: str, spec: QueueSpec | float = 1) -> None:
        """Serve one more queue from now on."""
        self._shared.shares.add(name, to_specs({name: spec}, self.concurrency)[name])
        self._parts.driver.listen_again()
        self._parts.driver.look_again()

    def on(self, event: str, callback: Callable[..., Any]) -> None:
        """Call ``callback`` when something happens here; the events are listed in ``WORKER_EVENTS``."""
        self._shared.emitter.on(event, callback)

    @property
    def concurrency(self) -> int:
        """Jobs that run at once; ``resize`` changes it."""
        return self._pump.slots

    def resize(self, concurrency: int) -> None:
        """Run at most ``concurrency`` jobs at once from now on. Running jobs continue, also above it."""
        resized = msgspec.structs.replace(self.options, concurrency=concurrency)  # checks the range
        self._shared.shares.check_slots(concurrency)
        self.options = self._shared.options = resized
        self._pump.slots = concurrency
        if self.is_running:
            self._parts.running.resize()
        self._parts.driver.look_again()

    # --- start and stop ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to work in the background. Idempotent; ``ClosedError`` once the worker was closed.

        A start that fails, or is cancelled, undoes what it did, and may be tried again.
        """
        await self._parts.start()

    async def run(self, *, handle_signals: bool = False) -> None:
        """Work until ``close`` is called, or until all is done with ``burst``.

        Cancelling it is a graceful close, a second cancel releases what runs at once; then it raises.
        """
        lifecycle = self._parts.lifecycle
        if not lifecycle.is_closing or lifecycle.state == "closed":
            await self.start()
            if handle_signals:
                lifecycle.handle_signals()
        await self._parts.see_out()

    async def wait_until_ready(self) -> None:
        """Return when the worker is connected and claiming."""
        await self.start()

    async def drain(self) -> None:
        """Work until nothing is waiting, active or retrying, then stop fetching and close.

        Cancelling it is a graceful close, as with ``run``.
        """
        self._pump.until_empty = True
        await self.start()
        self._parts.driver.look_again()
        await self._parts.see_out()

    async def close(self, force: bool = False) -> None:
        """Stop: claim no more, wait ``grace``, cancel, wait ``cancel_wait``, give the rest back. Idempotent.

        ``force`` skips the waiting; calling again with it hurries a close that is under way, and so does
        cancelling this call. It ends within the grace, the wait and two seconds, whatever the store does:
        what is pending then is abandoned (``left_behind`` names it) and its leases run out.
        """
        await self._parts.lifecycle.close(force=force)

    # --- while it runs -------------------------------------------------------------------------------

    def pause(self, force: bool = False) -> Awaitable[None]:
        """Claim no more jobs here, from now on; running ones continue.

        ``await worker.pause()`` returns when those have ended, with ``force`` at once. What the last of
        them did may still be on its way to the store.
        """
        self._parts.pause()
        return _Awaitable(self._parts.running.wait_idle, skip=force)

    def resume(self) -> None:
        """Undo ``pause``."""
        self._parts.resume()

    def rate_limit(self, seconds: float) -> None:
        """Claim nothing for ``seconds``: the service behind the handlers said so.

        A claim that is under way may still bring jobs.
        """
        self._pump.limited_until_ms = self.app.clock.monotonic_ms() + seconds_to_ms(seconds, "seconds")
        self._parts.driver.decline()

    def abort_job(self, job_id: str, reason: str = "") -> bool:
        """Stop a job that runs here, as if it was cancelled for ``reason``; False when it does not run here.

        The reason is the job's (``job.reason``); its handler reads it as ``job.abort_signal.detail``.
        """
        return self._parts.running.abort(job_id, to_reason(reason))

    # --- how it is -----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._parts.lifecycle.is_running

    @property
    def is_paused(self) -> bool:
        return self._pump.paused

    @property
    def busy(self) -> int:
        """Jobs that run now."""
        return len(self._parts.running.attempts)

    @property
    def is_ready(self) -> bool:
        """Connected, and the pump moved lately: what a readiness probe asks."""
        since_ms = self.app.clock.monotonic_ms() - self.last_progress_ms
        return self.is_running and since_ms < 3 * self.options.ms("poll") + 5_000

    @property
    def last_progress_ms(self) -> float:
        """When the pump last got through to the store, by the worker's monotonic clock."""
        return self._parts.driver.last_progress_ms

    @property
    def abandoned(self) -> int:
        """Handlers that did not stop in time; their jobs were given back."""
        return self._parts.running.abandoned

    @property
    def left_behind(self) -> list[str]:
        """What the stop could not wait for, by name: handlers, calls to the store, parts of the worker."""
        return self._parts.lifecycle.left_behind

    def info(self) -> WorkerInfo:
        """This worker as its heartbeat describes it."""
        return self._parts.info()


class _Awaitable:
    """Something that may be awaited, and need not be: nothing waits before."""

    __slots__ = ("_skip", "_wait")

    def __init__(self, wait: Callable[[], Awaitable[None]], *, skip: bool) -> None:
        self._wait = wait
        self._skip = skip

    def __await__(self) -> Generator[Any, None, None]:
        if not self._skip:
            yield from self._wait().__await__()


def _share(worker: Worker, specs: Mapping[str, QueueSpec]) -> WorkerParts:
    """What the parts of ``worker`` have in common."""
    app, options, rng = worker.app, worker.options, random.Random()
    shares = SharePlanner(specs, options.order)
    return WorkerParts(
        worker_id=worker.id,
        app=app,
        options=options,
        registry=worker.registry,
        strategies={},
        context=None,
        shares=shares,
        pump=Pump(
            shares,
            slots=options.concurrency,
            poll_ms=options.ms("poll"),
            until_empty=options.burst,
            jitter=lambda: rng.uniform(0.5, 1),
        ),
        emitter=Emitter(),
        supervisor=TaskSupervisor(app.clock),
        stop=Stop(app.clock, grace_ms=options.ms("grace"), cancel_wait_ms=options.ms("cancel_wait")),
        rng=rng,
    )
