"""A backend around another one: the base of the testing kit's wrappers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from windlass.backend.protocol import OverlappingBackend, PushedBackend

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from windlass.backend import Backend, Capabilities, Listener
    from windlass.backend.protocol import TransactionalBackend
    from windlass.backend.requests import Added, Request
    from windlass.core.job import NewJob
    from windlass.core.outcome import Settled, Settlement
    from windlass.testing.clock import ManualClock

R = TypeVar("R")


class BackendWrapper:
    """Passes everything on to ``inner``. Subclasses override ``execute`` and ``clone``."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        if isinstance(inner, OverlappingBackend):
            self.overlaps: Literal[True] = True  # workers treat it like the inner one
        if isinstance(inner, PushedBackend):
            self.claims_separately: Literal[True] = True

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def execute(self, request: Request[R]) -> R:
        return await self.inner.execute(request)

    def listen(self, topics: Iterable[str]) -> Listener:
        return self.inner.listen(topics)

    def add_in_transaction(self, connection: Any, jobs: list[NewJob]) -> list[Added]:
        return cast("TransactionalBackend", self.inner).add_in_transaction(connection, jobs)

    def settle_in_transaction(self, connection: Any, items: list[Settlement]) -> list[Settled]:
        return cast("TransactionalBackend", self.inner).settle_in_transaction(connection, items)

    def clone(self) -> Backend:
        raise NotImplementedError


class WatchedBackend(BackendWrapper):
    """Reports to a ``ManualClock`` while requests are in progress, so that ``advance`` waits for answers.

    Needed for stores that work in other threads, where the event loop alone does not show that a request is
    in progress. A store that lives in the process (``shared`` is false) answers on the loop itself.
    """

    def __init__(self, inner: Backend, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock

    async def open(self) -> None:
        with self._watched():
            await self.inner.open()

    async def close(self) -> None:
        with self._watched():
            await self.inner.close()

    async def execute(self, request: Request[R]) -> R:
        with self._watched():
            return await self.inner.execute(request)

    def _watched(self) -> AbstractContextManager[None]:
        return self._clock.working() if self.inner.capabilities.shared else nullcontext()

    def clone(self) -> Backend:
        return WatchedBackend(self.inner.clone(), self._clock)
