"""Open connections of the dashboard's own server: how long each may keep it waiting, and how many may.

A connection waits either for us (a request is being answered) or for its client: for the rest of a request,
for the client to read an answer, or for its next request. Only the second kind costs a stranger nothing, so
only that kind has deadlines and bounds. When there are too many, those that waited longest without a complete
request are closed; a connection whose request is complete is never closed for the sake of another.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from enum import Enum
from itertools import islice
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from windlass.dashboard.settings import ServerLimits
from windlass.dashboard.throttle import network_of

#: Too many connections are closed this much later, so that a request that is on its way counts.
_SETTLE_S = 0.05


class Phase(Enum):
    """What a connection waits for."""

    HEAD = "the head of a request"
    BODY = "the body of a request"
    READER = "its client to read the answer"
    NEXT = "the next request"
    ANSWER = "us"


#: In the middle of a request or an answer; their clients must act.
UNFINISHED = (Phase.HEAD, Phase.BODY, Phase.READER)


class Crowd:
    """Connections that wait for the same kind of thing, oldest first, also by address."""

    def __init__(self) -> None:
        self._all: OrderedDict[BoundedProtocol, str] = OrderedDict()
        self._of_address: dict[str, OrderedDict[BoundedProtocol, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, connection: BoundedProtocol) -> bool:
        return connection in self._all

    def at(self, address: str) -> int:
        """How many there are of an address."""
        return len(self._of_address.get(address, ()))

    def join(self, connection: BoundedProtocol, address: str) -> None:
        """One more, the youngest."""
        self._all[connection] = address
        self._of_address.setdefault(address, OrderedDict())[connection] = None

    def leave(self, connection: BoundedProtocol) -> None:
        """One less."""
        address = self._all.pop(connection)
        mine = self._of_address[address]
        del mine[connection]
        if not mine:
            del self._of_address[address]

    def oldest(self) -> BoundedProtocol:
        """The one that waited longest."""
        return next(iter(self._all))

    def beyond(self, limit: int) -> list[BoundedProtocol]:
        """The oldest of each address that has more than ``limit``."""
        crowds = [mine for mine in self._of_address.values() if len(mine) > limit]
        return [one for mine in crowds for one in islice(mine, len(mine) - limit)]


class Connections:
    """The open connections of one server that wait for their clients."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.deadlines: dict[Phase | None, float] = {
            Phase.HEAD: limits.head_seconds,
            Phase.BODY: limits.body_seconds,
            Phase.READER: limits.read_seconds,
            Phase.NEXT: limits.read_seconds,  # the keep-alive timeout ends it sooner, if it reads
        }
        #: Connections that a bound has closed.
        self.closed = 0
        self._unfinished, self._idle = Crowd(), Crowd()
        self._trim: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._unfinished) + len(self._idle)

    def move(self, connection: BoundedProtocol, address: str, phase: Phase | None) -> None:
        """A connection waits for something else now; None: it is closed."""
        before = next((crowd for crowd in (self._unfinished, self._idle) if connection in crowd), None)
        after = self._unfinished if phase in UNFINISHED else self._idle if phase is Phase.NEXT else None
        if before is after:
            return
        if before is not None:
            before.leave(connection)
        if after is not None:
            after.join(connection, address)
            if self._trim is None and self._too_many(after, address):
                self._trim = asyncio.get_running_loop().call_later(_SETTLE_S, self._close_oldest)

    def _too_many(self, crowd: Crowd, address: str) -> bool:
        return crowd.at(address) > self.limits.connections_per_address or len(self) > self.limits.connections

    def _close_oldest(self) -> None:
        self._trim = None
        for crowd in (self._unfinished, self._idle):
            for connection in crowd.beyond(self.limits.connections_per_address):
                self._close(connection)
        while len(self) > self.limits.connections:
            self._close(max(self._unfinished, self._idle, key=len).oldest())

    def _close(self, connection: BoundedProtocol) -> None:
        self.closed += 1
        connection.abort()

    def stop(self) -> None:
        """The server ends."""
        if self._trim is not None:
            self._trim.cancel()
            self._trim = None


class BoundedProtocol(H11Protocol):
    """The server's HTTP protocol, which reports its phases to ``Connections`` and keeps its deadlines."""

    registry: ClassVar[Connections]
    _address = ""
    _phase: Phase | None = None
    _deadline: asyncio.TimerHandle | None = None
    #: Bytes that came for a request that was answered before its end.
    _idle_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base
        """A client is there; it has this long for the head of its request."""
        super().connection_made(transport)
        self._address = network_of(self.client[0]) if self.client else "local"
        self._wait_for(Phase.HEAD)

    def data_received(self, data: bytes) -> None:
        """Part of a request came."""
        super().data_received(data)
        self._look(begun=True)
        self._bound_rest(len(data))

    def _bound_rest(self, size: int) -> None:
        """Read on for a while after an answer that did not wait for the body, so that the client sees it; but
        nothing holds back a body that no handler reads."""
        answered = self.cycle is not None and self.cycle.response_complete
        if self._phase is not Phase.BODY or not answered:
            self._idle_bytes = 0
            return
        self._idle_bytes += size
        if self._idle_bytes > self.registry.limits.body_bytes:
            self.abort()

    def on_response_complete(self) -> None:
        """A request was answered; the next one may have begun already."""
        super().on_response_complete()
        self._look(begun=bool(self.conn.trailing_data[0]))

    def pause_writing(self) -> None:
        """The client does not read what we send."""
        super().pause_writing()
        self._wait_for(Phase.READER)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._look(begun=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        super().connection_lost(exc)
        self._wait_for(None)

    def abort(self) -> None:
        """Close it at once; what was not sent is dropped."""
        self._wait_for(None)
        self.transport.abort()

    def _look(self, *, begun: bool) -> None:
        """Derive the phase from the state of the parser. ``begun``: there are bytes of a request."""
        if self._phase is None:
            return
        if self.flow.write_paused or self.transport.is_closing():
            self._wait_for(Phase.READER)
        elif self.conn.their_state is h11.SEND_BODY:
            self._wait_for(Phase.BODY)
        elif self.conn.their_state is h11.IDLE:
            self._wait_for(Phase.HEAD if begun else Phase.NEXT)
        else:
            self._wait_for(Phase.ANSWER)

    def _wait_for(self, phase: Phase | None) -> None:
        if phase is self._phase:
            return
        self._phase = phase
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.registry.move(self, self._address, phase)
        if phase in self.registry.deadlines:
            self._deadline = self.loop.call_later(self.registry.deadlines[phase], self.abort)


def protocol_of(connections: Connections) -> type[BoundedProtocol]:
    """The protocol of a server whose connections are those."""

    class Protocol(BoundedProtocol):
        registry = connections

    return Protocol
