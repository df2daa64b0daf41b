"""``Worker``: claims jobs of any number of queues, runs them in one pool of slots, settles them.

A worker consists of parts (see ``Assembly``). ``Pump`` decides the next request to the store and ``Driver``
sends it. ``Running`` holds the running jobs. ``Services`` runs the heartbeat and the duties.
``TaskSupervisor`` restarts tasks that end unexpectedly. ``Lifecycle`` starts and stops everything.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Unpack

import msgspec

from windlass.api.app import Windlass, as_app
from windlass.core.backoff import BackoffStrategy
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

_OPTION_NAMES = {*WorkerOptions.__struct_fields__, "url_or_app", "context", "backoff_strategies", "batch"}


class Worker:
    """Claims jobs from queues and runs them in one pool of slots.

    ``queues`` is a name, a list of names, ``{name: weight}`` or ``{name: QueueSpec(...)}``. A ``handler``
    receives every job as a ``Job``, or a list of jobs with ``batch``. Without one, the app's tasks and the
    registered handlers run the jobs. Use ``async with``, ``start`` and ``close``, or ``run``.
    """

    RateLimitError = RateLimitError

    def __init__(
        self,
        queues: Queues,
        handler: Callable[[Job[Any]], Any] | None = None,
        *,
        url_or_app: str | Windlass | None = None,
        context: Any = None,
        backoff_strategies: Mapping[str, BackoffStrategy] | None = None,
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

    # --- queues and handlers -------------------------------------------------------------------------

    def register(
        self,
        name: str,
        handler: Callable[..., Any],
        queue: str | None = None,
        *,
        batch: Batch | Mapping[str, Any] | int | None = None,
    ) -> None:
        """Run jobs of task ``name`` with ``handler``, in one queue or in all. May be called at any time.

        A ``queue`` that this worker does not serve yet is added with weight 1. Call ``add_queue`` first for
        another weight. With ``batch`` the handler receives a list of jobs.
        """
        self.registry.add(name, job_handler(handler, batch), queue)
        if queue is not None and queue not in self._shared.shares.names:
            self.add_queue(queue)

    def get_queues(self) -> list[str]:
        """Return the names of the queues that this worker serves, in order."""
        return self._shared.shares.names

    def add_queue(self, name: str, spec: QueueSpec | float = 1) -> None:
        """Serve one more queue, with a weight or a ``QueueSpec``.

        A worker that has started, or is starting, first sets the limits of the queue and of its tasks, and
        then claims from it.
        """
        shares = self._shared.shares
        checked = to_specs({**shares.specs, name: spec}, self.concurrency)[name]
        shares.add(name, checked, held=self._parts.lifecycle.has_begun and name not in shares.names)
        if self.is_running:
            self._parts.driver.admit_held()
        self._parts.driver.request_claim()

    def on(self, event: str, callback: Callable[..., Any]) -> None:
        """Call ``callback`` at every ``event`` of this worker. ``WORKER_EVENTS`` lists the events."""
        self._shared.emitter.on(event, callback)

    @property
    def concurrency(self) -> int:
        """The maximum number of jobs that run at once. ``resize`` changes it."""
        return self._pump.slots

    def resize(self, concurrency: int) -> None:
        """Run at most ``concurrency`` jobs at once from now on.

        Running jobs are not interrupted, even if they are more than that.
        """
        resized = msgspec.structs.replace(self.options, concurrency=concurrency)  # checks the range
        self._shared.shares.check_slots(concurrency)
        self.options = self._shared.options = resized
        self._pump.slots = concurrency
        if self.is_running:
            self._parts.running.resize()
        self._parts.driver.request_claim()

    # --- start and stop ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start working in the background. Idempotent.

        Raises ``ClosedError`` after ``close``. A start that fails or is cancelled cleans up after itself and
        may be tried again.
        """
        await self._parts.start()

    async def run(self, *, handle_signals: bool = False) -> None:
        """Work until ``close`` is called; with ``burst``, until no job is left.

        Cancelling this call closes the worker gracefully and then raises ``CancelledError``. A second cancel
        releases the running jobs at once. With ``handle_signals``, SIGTERM and SIGINT close the worker; after
        the call they have their default effect again.
        """
        lifecycle = self._parts.lifecycle
        if handle_signals and threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "handle_signals",
                message="only the main thread can handle signals: leave handle_signals out here, and call "
                "close() on this event loop to stop the worker",
                got=True,
            )
        if not lifecycle.is_closing or lifecycle.state == "closed":
            await self.start()
            if handle_signals:
                lifecycle.handle_signals()
        try:
            await self._parts.run_until_done()
        finally:
            if handle_signals:
                lifecycle.leave_signals()

    async def wait_until_ready(self) -> None:
        """Start the worker if necessary and return when it is connected and claims jobs."""
        await self.start()

    async def drain(self) -> None:
        """Work until no job is waiting, active or retrying, then close.

        Cancelling this call closes the worker gracefully, as with ``run``.
        """
        self._pump.until_empty = True
        await self.start()
        self._parts.driver.request_claim()
        await self._parts.run_until_done()

    async def close(self, force: bool = False) -> None:
        """Stop claiming, give running jobs time to finish, and release the others. Idempotent.

        Running jobs have ``grace`` to finish. Then they are cancelled and have ``cancel_wait`` to stop. The
        rest is released. ``force`` skips both waits, also of a close that has already begun; cancelling this
        call has the same effect. Two seconds after the waits the close ends, even if the store does not
        answer. ``left_behind`` names what it could not wait for; the leases of such jobs expire.

        May be called from any event loop: the worker closes on the loop that started it. Raises
        ``WrongLoopError`` if that loop is closed, does not run, or does not answer in this time.
        """
        await self._parts.lifecycle.close(force=force)

    # --- while it runs -------------------------------------------------------------------------------

    def pause(self, force: bool = False) -> Awaitable[None]:
        """Stop claiming jobs. Running jobs continue.

        ``await worker.pause()`` waits until no job runs; with ``force`` it returns at once. The last
        settlements may still be on their way to the store.
        """
        self._parts.pause()
        return _Awaitable(self._parts.running.wait_idle, skip=force)

    def resume(self) -> None:
        """Claim jobs again after ``pause``."""
        self._parts.resume()

    def rate_limit(self, seconds: float) -> None:
        """Claim no jobs for ``seconds``, for example because an external service is rate limiting.

        A claim that was already sent may still return jobs.
        """
        self._pump.limited_until_ms = self.app.clock.monotonic_ms() + seconds_to_ms(seconds, "seconds")
        self._parts.driver.decline()

    def abort_job(self, job_id: str, reason: str = "") -> bool:
        """Stop a running job of this worker as cancelled; False when it does not run here.

        ``reason`` becomes ``job.reason``. The handler reads it from ``job.abort_signal.detail``.
        """
        return self._parts.running.abort(job_id, to_reason(reason))

    # --- state ---------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the worker has started and is not closing."""
        return self._parts.lifecycle.is_running

    @property
    def is_paused(self) -> bool:
        """Whether ``pause``, or a ``quiet`` command, has stopped the claiming."""
        return self._pump.paused

    @property
    def busy(self) -> int:
        """The number of jobs that run now."""
        return len(self._parts.running.attempts)

    @property
    def is_ready(self) -> bool:
        """Whether the worker runs and has reached its store recently, for readiness probes."""
        since_ms = self.app.clock.monotonic_ms() - self.last_progress_ms
        return self.is_running and since_ms < 3 * self.options.ms("poll") + 5_000

    @property
    def last_progress_ms(self) -> float:
        """When the worker last reached its store, in milliseconds of its monotonic clock."""
        return self._parts.driver.last_progress_ms

    @property
    def abandoned(self) -> int:
        """The number of handlers that did not stop in time. Their jobs were released."""
        return self._parts.running.abandoned

    @property
    def left_behind(self) -> list[str]:
        """Names of handlers, store calls and parts of the worker that ``close`` could not wait for."""
        return self._parts.lifecycle.left_behind

    def info(self) -> WorkerInfo:
        """Return the description of this worker that its heartbeat sends."""
        return self._parts.info()


class _Awaitable:
    """The result of ``pause``: it waits only if it is awaited."""

    __slots__ = ("_skip", "_wait")

    def __init__(self, wait: Callable[[], Awaitable[None]], *, skip: bool) -> None:
        self._wait = wait
        self._skip = skip

    def __await__(self) -> Generator[Any, None, None]:
        if not self._skip:
            yield from self._wait().__await__()


def _share(worker: Worker, specs: Mapping[str, QueueSpec]) -> WorkerParts:
    """Create the objects that the parts of ``worker`` share."""
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
