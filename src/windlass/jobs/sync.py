"""A job and its methods without asyncio. One background thread runs the event loop.

``Portal`` has the loop. Tasks, queues, flows and the app have a ``.sync`` that runs their methods on it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from windlass.core import foreign_names
from windlass.core.foreign_names import ForeignNames
from windlass.core.job import JobRecord
from windlass.core.option_values import WAIT_S
from windlass.jobs.fields import RecordFields
from windlass.jobs.job import Job
from windlass.jobs.payload import Call
from windlass.serde.codecs import Codecs

P = ParamSpec("P")
R = TypeVar("R")


class Portal:
    """An event loop in a daemon thread, started on first use and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run ``coroutine`` on the portal's loop and return its result. Raises ``RuntimeError`` on an event
        loop.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            coroutine.close()
            raise RuntimeError("an event loop runs in this thread: await the async verb instead of .sync")
        loop = self._ensure()
        waited = _Waited(coroutine)
        try:
            return asyncio.run_coroutine_threadsafe(waited.run(), loop).result()
        except BaseException:  # also of a signal handler: this thread does not wait any longer
            loop.call_soon_threadsafe(waited.end)
            raise

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="windlass-sync", daemon=True
                )
                self._thread.start()
            return self._loop

    def forget(self) -> None:
        """Start again in a fork: another thread may have held the lock at that moment."""
        self._lock, self._loop, self._thread = threading.Lock(), None, None

    def stop(self) -> None:
        """End the thread and wait for it. The next ``run`` starts a new one."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


class _Waited(Generic[R]):
    """A coroutine on the portal's loop. The thread that waits for it can end it, also before it began."""

    def __init__(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._ended = False

    async def run(self) -> R:
        if self._ended:
            self._coroutine.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._coroutine

    def end(self) -> None:
        """Cancel the coroutine unless it is done. Runs on the loop."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


PORTAL = Portal()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PORTAL.forget)


def _of_job(
    verb: Callable[Concatenate[Job[Any], P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncJob[Any], P], R]:
    @functools.wraps(verb)
    def run(self: SyncJob[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return PORTAL.run(verb(self.job, *args, **kwargs))

    return run


class SyncJob(RecordFields, ForeignNames, Generic[R]):
    """A job for code without an event loop, with blocking methods. ``job`` is the async job."""

    _called = "the .sync of a job"
    _elsewhere = foreign_names.JOB

    def __init__(self, job: Job[R]) -> None:
        self.job = job

    def __repr__(self) -> str:
        return f"<SyncJob {self.job.name} {self.job.id}>"

    @property
    def _record(self) -> JobRecord:  # type: ignore[override]  # the job may refresh its record
        return self.job.record

    @property
    def _codecs(self) -> Codecs:
        return self.job.queue.app.codecs

    @property
    def call(self) -> Call:
        """The decoded arguments. Raises ``ValueError`` when the stored bytes are not arguments."""
        return self.job.call

    @property
    def progress(self) -> Any:
        """The last reported progress, or None."""
        return self.job.progress

    @property
    def outcome(self) -> str | None:
        """What the ``add`` that returned this job did; see ``Job.outcome``."""
        return self.job.outcome

    @property
    def not_taken(self) -> tuple[str, ...]:
        """For ``replaced``: options of the ``add`` that this job did not take."""
        return self.job.not_taken

    get_state: Final = _of_job(Job.get_state)
    wait_until_finished: Final = _of_job(Job.wait_until_finished)
    retry: Final = _of_job(Job.retry)
    remove: Final = _of_job(Job.remove)
    promote: Final = _of_job(Job.promote)
    change_delay: Final = _of_job(Job.change_delay)
    change_priority: Final = _of_job(Job.change_priority)
    update_progress: Final = _of_job(Job.update_progress)
    update_data: Final = _of_job(Job.update_data)
    move_to_failed: Final = _of_job(Job.move_to_failed)
    get_children_values: Final = _of_job(Job.get_children_values)
    get_failed_children: Final = _of_job(Job.get_failed_children)
    get_dependencies: Final = _of_job(Job.get_dependencies)
    get_dependents: Final = _of_job(Job.get_dependents)

    def refresh(self) -> SyncJob[R]:
        """Read the record again; see ``Job.refresh``."""
        PORTAL.run(self.job.refresh())
        return self

    def result(self, timeout: float | timedelta | None = WAIT_S) -> R:
        """Wait for the result; raises like ``Job.result``."""
        return PORTAL.run(self.job.result(timeout))

    def cancel(self, reason: str = "") -> str:
        """Cancel the job; see ``Queue.cancel``."""
        return PORTAL.run(self.job.cancel(reason))
