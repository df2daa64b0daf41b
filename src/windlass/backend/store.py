"""A backend with a clock. The rest of the package uses stores only through this class.

Opens on first use and never again by itself once it was closed, lets its clock stamp requests,
turns per-item answers into errors in one place, and refuses to continue in a process that was forked after it
was opened. Backends hold no such code.
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
        #: Requests that may ask for what is missing without needing it always.
        self._to_check = () if backend.capabilities.takes_all_jobs else (rq.Add, rq.ChangeJob, PutSchedule)
        self._opened = False
        #: The id of the process that opened it; 0: not open.
        self._pid = 0
        #: Counts closes and failed opens, so that an ``open`` in progress notices them.
        self._closings = 0
        self._closing = Closing(
            "the app", "open it again (async with app, or await app.open()), or make another"
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
            await self.backend.close()  # closed while it opened: release what was opened after that too
            raise self._closing.error()
        self._opened = closings == self._closings

    async def reopen(self) -> None:
        """Connect, also after ``close``."""
        self.allow_open()
        await self.open()

    def allow_open(self) -> None:
        """Let requests after ``close`` open it again."""
        self._closing.reopen()

    async def close(self) -> None:
        """Release the connection. Waits under way and later requests raise ``ClosedError``. Idempotent.

        In the child of a process that opened it, the connection is left to that process.
        """
        self._note_closed()
        self._closing.close()
        if self._pid in (0, _pid):
            await self.backend.close()

    def _check_process(self) -> None:
        if self._pid not in (0, _pid):
            raise ForkedError(self.name, self._pid, _pid)

    def closed_error(self) -> ClosedError:
        """What requests after ``close`` are answered with."""
        return self._closing.error()

    def _note_closed(self) -> None:
        self._opened = False
        self._closings += 1

    async def execute(self, request: rq.Request[R]) -> R:
        """Carry out ``request``; see ``Backend.execute``.

        Raises ``UnsupportedByBackendError`` for a verb that the backend declares missing.
        """
        if request.needs or type(request) in self._to_check:
            self._check(request)
        if not self._opened or self._pid != _pid:
            await self.open()
        self.clock.stamp(request)
        return await self.backend.execute(request)

    def _check(self, request: rq.Request[Any]) -> None:
        """Refuse what the backend declares missing."""
        if request.needs:
            self.capabilities.require(self.name, request.needs)
        if type(request) is rq.Add:
            check_jobs(self.name, self.capabilities, request.jobs)
        elif type(request) is rq.ChangeJob:
            check_priority(self.name, self.capabilities, request.priority or 0)
        elif type(request) is PutSchedule:
            check_jobs(self.name, self.capabilities, [request.schedule.template])

    async def prepare(self, queues: Iterable[str]) -> None:
        """Let other programs add to ``queues`` from now on, where the store must do something for it."""
        if isinstance(self.backend, PreparedBackend):
            await self.open()
            await self.backend.prepare(queues)

    async def listen(self, topics: Iterable[str]) -> Listener:
        """Hints about ``topics`` for the running event loop."""
        if not self._opened or self._pid != _pid:
            await self.open()
        return self._watched(self.backend.listen(topics))

    async def listen_completed(self, queue: str, receive: Callable[[list[Completed]], None]) -> Listener:
        """Hints about jobs of ``queue`` that finish; those that the hint describes go to ``receive``."""
        if not isinstance(self.backend, CompletionHintsBackend):
            return await self.listen([f"done:{queue}"])
        if not self._opened or self._pid != _pid:
            await self.open()
        return self._watched(self.backend.listen_completed(queue, receive))

    def _watched(self, listener: Listener) -> Listener:
        """Woken by ``close``: its owner then asks the store, which raises that it was closed."""
        self._closing.watch(listener)
        return listener

    def clone(self) -> Store:
        """Another client of the same store, with the same clock."""
        return Store(self.backend.clone(), self.clock)

    async def get(self, ref: JobRef) -> JobRecord | None:
        """One record, or None."""
        return (await self.execute(rq.GetJobs(refs=[ref])))[0]


def check_jobs(name: str, capabilities: Capabilities, jobs: list[NewJob]) -> None:
    """Refuse jobs that need what the backend declares missing."""
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
    """Refuse a priority that the backend does not know."""
    if priority:
        capabilities.require(name, "priority", "use another queue, with a higher weight, for urgent jobs")
    if priority < 0:
        capabilities.require(name, "exact_priority", "use priorities from 0 on")


def _keeps_last(new: NewJob) -> bool:
    return new.options.unique is not None and new.options.unique.mode is UniqueMode.KEEP_LAST


def check_changed(ref: JobRef, result: rq.ChangeResult, action: str, advice: str = "") -> None:
    """Turn the answer to a change of one job into the error that it means, if any."""
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
