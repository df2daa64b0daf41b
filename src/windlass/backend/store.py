"""A backend with a clock. The rest of the package uses backends only through ``Store``.

A store opens on first use, but not again after it was closed. Its clock stamps the requests. It refuses
requests that the backend does not support, and requests from a process that was forked after it was opened.
Backends contain no such code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from windlass.backend import requests as rq
from windlass.backend.capabilities import Capabilities
from windlass.backend.closing import Closing
from windlass.backend.protocol import Backend, CompletionHintsBackend, Listener, PreparedBackend
from windlass.backend.schedule_requests import PutSchedule
from windlass.core.clock import Clock
from windlass.core.job import Completed, JobRecord, JobRef, NewJob
from windlass.core.option_values import UniqueMode
from windlass.core.outcome import Changed
from windlass.errors import (
    ClosedError,
    ForkedError,
    IllegalTransitionError,
    JobNotFoundError,
    LeaseLostError,
    OrderedGroupError,
)

R = TypeVar("R")

#: The process id, cached because a system call for every request is slow.
_pid = os.getpid()


def _after_fork() -> None:
    global _pid
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Store:
    """One client of one backend. Usable from several event loops."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend = backend
        self.clock = clock
        #: Requests that need a missing capability only if they use certain options.
        self._to_check = () if backend.capabilities.takes_all_jobs else (rq.Add, rq.ChangeJob, PutSchedule)
        self._opened = False
        #: The id of the process that opened the store; 0: never opened.
        self._pid = 0
        #: Counts closes and failed opens, so that an ``open`` in progress notices them.
        self._closings = 0
        self._closing = Closing(
            "the app", "open it again (async with app, await app.open() or app.sync.open()), or make another"
        )

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    async def open(self) -> None:
        """Connect now instead of at the first request. Idempotent; ``ClosedError`` after ``close``.

        Raises ``ForkedError`` in the child of a process that opened it before.
        """
        self._closing.check()
        self._check_process()
        closings, self._pid = self._closings, _pid
        try:
            await self.backend.open()
        except BaseException:
            self._note_closed()
            raise
        if self._closing.closed:
            # ``close`` ran while ``backend.open`` waited, and may have found nothing to close yet.
            await self.backend.close()
            raise self._closing.error()
        self._opened, self._pid = closings == self._closings, _pid  # an earlier ``close`` may have just ended

    async def reopen(self) -> None:
        """Connect, even after ``close``."""
        self.allow_open()
        await self.open()

    def allow_open(self) -> None:
        """Let the next request open the store again after ``close``."""
        self._closing.reopen()

    async def close(self) -> None:
        """Release the connection. Pending waits and later requests raise ``ClosedError``. Idempotent.

        In a child of the process that opened the store, the connection stays open: it belongs to the parent.
        A store that was closed before a fork can be opened again in parent and child, unless it is in memory:
        a child with a copy of the jobs would run them a second time.
        """
        self._note_closed()
        self._closing.close()
        if self._pid in (0, _pid):
            closings = self._closings
            await self.backend.close()
            if self.capabilities.shared and closings == self._closings and not self._opened:
                self._pid = 0

    def _check_process(self) -> None:
        if self._pid not in (0, _pid):
            raise ForkedError(self.name, self._pid, _pid)

    def closed_error(self) -> ClosedError:
        """The error that requests raise after ``close``."""
        return self._closing.error()

    def _note_closed(self) -> None:
        self._opened = False
        self._closings += 1

    async def execute(self, request: rq.Request[R]) -> R:
        """Execute ``request`` (see ``Backend.execute``), and open the store first if it is not open.

        Raises ``UnsupportedByBackendError`` if the request needs a capability that the backend does not have,
        and ``ClosedError`` after ``close``.
        """
        if request.needs or type(request) in self._to_check:
            self._check(request)
        if not self._opened or self._pid != _pid:
            await self.open()
        self.clock.stamp(request)
        return await self.backend.execute(request)

    def _check(self, request: rq.Request[Any]) -> None:
        """Raise ``UnsupportedByBackendError`` if the request needs a capability that is missing."""
        if request.needs:
            self.capabilities.require(self.name, request.needs)
        if type(request) is rq.Add:
            check_jobs(self.name, self.capabilities, request.jobs)
        elif type(request) is rq.ChangeJob:
            check_priority(self.name, self.capabilities, request.priority or 0)
        elif type(request) is PutSchedule:
            check_jobs(self.name, self.capabilities, [request.schedule.template])

    async def prepare(self, queues: Iterable[str]) -> None:
        """Declare ``queues`` so that other programs can add to them; does nothing on most backends."""
        if isinstance(self.backend, PreparedBackend):
            await self.open()
            await self.backend.prepare(queues)

    async def listen(self, topics: Iterable[str]) -> Listener:
        """Return a listener for hints about ``topics``, owned by the running event loop."""
        if not self._opened or self._pid != _pid:
            await self.open()
        return self._watched(self.backend.listen(topics))

    async def listen_completed(self, queue: str, receive: Callable[[list[Completed]], None]) -> Listener:
        """Return a listener for jobs of ``queue`` that finish.

        ``receive`` is called with completed jobs if the backend's hints contain them.
        """
        if not isinstance(self.backend, CompletionHintsBackend):
            return await self.listen([f"done:{queue}"])
        if not self._opened or self._pid != _pid:
            await self.open()
        return self._watched(self.backend.listen_completed(queue, receive))

    def _watched(self, listener: Listener) -> Listener:
        """Let ``close`` wake the listener. Its owner then sends a request, which raises ``ClosedError``."""
        self._closing.watch(listener)
        return listener

    def clone(self) -> Store:
        """Another client of the same store, with the same clock."""
        return Store(self.backend.clone(), self.clock)

    async def get(self, ref: JobRef) -> JobRecord | None:
        """Return the record of a job, or None."""
        return (await self.execute(rq.GetJobs(refs=[ref])))[0]


def check_jobs(name: str, capabilities: Capabilities, jobs: list[NewJob]) -> None:
    """Raise ``UnsupportedByBackendError`` if a job uses an option that the backend does not support."""
    if not capabilities.lifo and any(new.options.lifo for new in jobs):
        capabilities.require(name, "lifo", "use a higher priority instead")
    for new in jobs:
        check_priority(name, capabilities, new.priority)
    if not capabilities.flows and any(new.depends_on or new.parent for new in jobs):
        capabilities.require(name, "flows")
    if not capabilities.groups and any(new.options.group is not None for new in jobs):
        capabilities.require(name, "groups")
    if not capabilities.unique and any(new.options.unique is not None for new in jobs):
        capabilities.require(name, "unique", "a job_id of your own works everywhere")
    if not capabilities.flows and any(_keeps_last(new) for new in jobs):
        capabilities.require(name, "flows", "unique keys with keep_last need them")


def check_priority(name: str, capabilities: Capabilities, priority: int) -> None:
    """Raise ``UnsupportedByBackendError`` for a priority that the backend does not support."""
    if priority:
        capabilities.require(name, "priority", "use another queue, with a higher weight, for urgent jobs")
    if priority < 0:
        capabilities.require(name, "exact_priority", "use priorities from 0 on")


def _keeps_last(new: NewJob) -> bool:
    return new.options.unique is not None and new.options.unique.mode is UniqueMode.KEEP_LAST


def check_changed(ref: JobRef, result: rq.ChangeResult, action: str, advice: str = "") -> None:
    """Raise the error that the answer to a change of one job stands for; return if the job was changed."""
    match result.status:
        case Changed.OK:
            return
        case Changed.NOT_FOUND:
            raise JobNotFoundError(ref.queue, ref.id)
        case Changed.LOST:
            raise LeaseLostError(ref.queue, ref.id)
        case Changed.ILLEGAL:
            raise IllegalTransitionError(ref.id, str(result.state), action, advice)
        case Changed.ORDERED:
            raise OrderedGroupError.at_change(ref.queue, ref.id)
