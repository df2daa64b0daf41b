"""A backend with a clock: what the rest of the package talks to.

Opens on first use, stamps requests when a test drives the clock, and turns per-item answers into errors in
one place. Backends hold no such code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from windlass.backend import limits
from windlass.backend import requests as rq
from windlass.backend.capabilities import Capabilities
from windlass.backend.protocol import Backend, Listener
from windlass.core.clock import Clock
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.outcome import Changed
from windlass.errors import IllegalTransitionError, JobNotFoundError, LeaseLostError

R = TypeVar("R")

#: The capability that a verb belongs to. Verbs that are not listed every store has.
NEEDS: dict[type[rq.Request[Any]], str] = {**limits.NEEDS}
#: Capabilities that decide which requests a store can be asked.
_ASKED = ("lifo", "unique", "groups", "limits")
_ADVICE = {"lifo": "use a higher priority instead"}


class Store:
    """One client of one backend. Usable from several event loops."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend = backend
        self.clock = clock
        self._opened = False
        self._lacks = frozenset(name for name in _ASKED if not getattr(backend.capabilities, name))

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    async def open(self) -> None:
        """Connect now instead of at the first request. Idempotent."""
        await self.backend.open()
        self._opened = True

    async def close(self) -> None:
        """Let go of the connection; the next request opens it again. Idempotent."""
        self._opened = False
        await self.backend.close()

    async def execute(self, request: rq.Request[R]) -> R:
        """Carry out ``request``; see ``Backend.execute``."""
        if not self._opened:
            await self.open()
        if self._lacks:
            self._refuse_missing(request)
        if self.clock.driven and request.now_ms is None:
            request.now_ms = self.clock.now_ms()
        return await self.backend.execute(request)

    def _refuse_missing(self, request: rq.Request[Any]) -> None:
        """Raise ``UnsupportedByBackendError`` for what this store has not got."""
        needed = {NEEDS.get(type(request))}
        if isinstance(request, rq.Add):
            needed |= {capability for new in request.jobs for capability in needed_by(new)}
        for capability in sorted(self._lacks & needed):
            self.capabilities.require(self.name, capability, _ADVICE.get(capability, ""))

    async def listen(self, topics: Iterable[str]) -> Listener:
        """Hints about ``topics`` for the running event loop."""
        if not self._opened:
            await self.open()
        return self.backend.listen(topics)

    def clone(self) -> Store:
        """Another client of the same store, with the same clock."""
        return Store(self.backend.clone(), self.clock)

    async def get(self, ref: JobRef) -> JobRecord | None:
        """One record, or None."""
        return (await self.execute(rq.GetJobs(refs=[ref])))[0]


def needed_by(new: NewJob) -> Iterator[str]:
    """The capabilities that a job needs."""
    if new.options.lifo:
        yield "lifo"
    if new.options.unique is not None:
        yield "unique"
    if new.options.group is not None:
        yield "groups"


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
