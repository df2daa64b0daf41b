"""A backend that wraps the store of one actor, records what was acknowledged, and can be made to fail.

Processes are killed and frozen by signals. If all actors are in one process (``memory://``), they are killed
and frozen here instead. For the store this is the same: it receives no more requests from the actor.
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
_POLL_S = 0.02
#: How many replies one fault drops: more than the number of times that ``add`` retries.
LOST_REPLIES = 4


class Switches:
    """The injected faults between an actor and its store, shared by all its clients."""

    def __init__(self) -> None:
        #: All requests fail from now on.
        self.dead = False
        #: Requests wait until this is False again.
        self.frozen = False
        #: The number of requests to execute without delivering the answer.
        self.lose = 0

    async def pass_through(self) -> None:
        """Return when a request may be sent. Raises ``StorageError`` if the actor is dead."""
        while self.frozen and not self.dead:  # noqa: ASYNC110 - set from other threads and loops
            await asyncio.sleep(_POLL_S)
        if self.dead:
            raise StorageError("this process is dead (injected)")

    def loses(self, request: rq.Request[Any]) -> bool:
        """Whether to drop the answer to ``request``. Counts down ``lose``."""
        if self.lose <= 0 or not isinstance(request, (rq.Add, rq.Claim, rq.Settle, rq.CancelJobs)):
            return False
        self.lose -= 1
        return True


class RecordingBackend(BackendWrapper):
    """Writes each acknowledged settlement to the journal, and injects lost replies."""

    def __init__(self, inner: Backend, journal: Journal, switches: Switches, clock: str = "node") -> None:
        super().__init__(inner)
        self._journal = journal
        self._switches = switches
        self._clock = clock

    async def execute(self, request: rq.Request[R]) -> R:
        await self._switches.pass_through()
        loses = self._switches.loses(request)
        answer = await self.execute_inner(request)
        await self._switches.pass_through()
        if loses:
            self._journal.write("lost", what=type(request).__name__, at=store_ms(self._clock))
            raise StorageError(f"the reply to {type(request).__name__} was lost (injected)")
        if isinstance(request, rq.Settle):
            self._note(request, answer)
        return answer

    async def execute_inner(self, request: rq.Request[R]) -> R:
        """Execute the request on the store. Mutants replace this method."""
        return await self.inner.execute(request)

    def _note(self, request: rq.Settle, answer: Any) -> None:
        ends = [
            [end.token, end.id, end.outcome.value, result.value]
            for end, result in zip(request.items, answer.items, strict=True)
        ]
        self._journal.write("settled", ends=ends, at=store_ms(self._clock))

    def clone(self) -> Backend:
        return RecordingBackend(self.inner.clone(), self._journal, self._switches, self._clock)
