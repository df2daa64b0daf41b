"""A backend around the store of one process: it notes what was acknowledged, and can be made to fail.

Processes are killed and frozen by signals. Where all of a storm lives in one process (``memory://``), a
worker is killed and frozen here instead: seen from the store it is the same, nothing comes from it any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from tools.storm.journal import Journal
from tools.storm.skew import store_ms
from windlass.backend import requests as rq
from windlass.errors import StorageError
from windlass.testing.wrapper import BackendWrapper

if TYPE_CHECKING:
    from windlass.backend import Backend

R = TypeVar("R")
_LOOK_S = 0.02
#: How many replies one fault takes: more than a single ``add`` asks again for.
LOST_REPLIES = 4


class Switches:
    """What is wrong with the way to the store, shared by all clients of one process."""

    def __init__(self) -> None:
        #: Nothing comes through any more, ever.
        self.dead = False
        #: Requests wait until this is False again.
        self.frozen = False
        #: So many requests that change something are carried out and not answered.
        self.lose = 0

    async def pass_through(self) -> None:
        """Return when a request may go to the store."""
        while self.frozen and not self.dead:  # noqa: ASYNC110 - set from other threads and loops
            await asyncio.sleep(_LOOK_S)
        if self.dead:
            raise StorageError("this process is dead (injected)")

    def loses(self, request: rq.Request[Any]) -> bool:
        """Whether the answer to ``request`` gets lost; counts down."""
        if self.lose <= 0 or not isinstance(request, (rq.Add, rq.Claim, rq.Settle, rq.CancelJobs)):
            return False
        self.lose -= 1
        return True


class Witness(BackendWrapper):
    """Writes down what the store acknowledged to a worker: each settlement with its answer."""

    def __init__(self, inner: Backend, journal: Journal, switches: Switches, clock: str = "node") -> None:
        super().__init__(inner)
        self._journal = journal
        self._switches = switches
        self._clock = clock

    async def execute(self, request: rq.Request[R]) -> R:
        await self._switches.pass_through()
        loses = self._switches.loses(request)
        answer = await self.carry_out(request)
        await self._switches.pass_through()
        if loses:
            self._journal.write("lost", what=type(request).__name__, at=store_ms(self._clock))
            raise StorageError(f"the reply to {type(request).__name__} was lost (injected)")
        if isinstance(request, rq.Settle):
            self._note(request, answer)
        return answer

    async def carry_out(self, request: rq.Request[R]) -> R:
        """The store's part; mutants get in between here."""
        return await self.inner.execute(request)

    def _note(self, request: rq.Settle, answer: Any) -> None:
        ends = [
            [end.token, end.id, end.outcome.value, result.value]
            for end, result in zip(request.items, answer.items, strict=True)
        ]
        self._journal.write("settled", ends=ends, at=store_ms(self._clock))

    def clone(self) -> Backend:
        return Witness(self.inner.clone(), self._journal, self._switches, self._clock)
