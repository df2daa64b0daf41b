"""Limits for open connections of the dashboard's own server: deadlines, and how many may wait.

A connection waits either for us (a request is being answered) or for its client: for the rest of a request,
for the client to read a response, or for its next request. Waiting for a client costs an attacker nothing, so
only such connections have deadlines and limits. If there are too many, those that have waited longest without
a complete request are closed. A connection with a complete request is never closed in favour of another.
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

#: Delay before excess connections are closed, so that a request that is arriving still counts.
_SETTLE_S = 0.05


class Phase(Enum):
    """What a connection waits for. None, instead of a phase, means that it waits for us."""

    HEAD = "the head of a request"
    BODY = "the body of a request"
    READER = "its client to read the answer"
    NEXT = "the next request"
    ANSWER = "us"


#: Phases in the middle of a request or a response, in which the client must act.
UNFINISHED = (Phase.HEAD, Phase.BODY, Phase.READER)


class ConnectionGroup:
    """Connections in similar phases, oldest first, in total and by address."""

    def __init__(self) -> None:
        self._all: OrderedDict[BoundedProtocol, str] = OrderedDict()
        self._of_address: dict[str, OrderedDict[BoundedProtocol, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, connection: BoundedProtocol) -> bool:
        return connection in self._all

    def at(self, address: str) -> int:
        """The number of connections from an address."""
        return len(self._of_address.get(address, ()))

    def join(self, connection: BoundedProtocol, address: str) -> None:
        """Add a connection as the newest."""
        self._all[connection] = address
        self._of_address.setdefault(address, OrderedDict())[connection] = None

    def leave(self, connection: BoundedProtocol) -> None:
        """Remove a connection."""
        address = self._all.pop(connection)
        mine = self._of_address[address]
        del mine[connection]
        if not mine:
            del self._of_address[address]

    def oldest(self) -> BoundedProtocol:
        """The connection that has waited longest."""
        return next(iter(self._all))

    def beyond(self, limit: int) -> list[BoundedProtocol]:
        """For each address with more than ``limit`` connections, the oldest ones above the limit."""
        groups = [mine for mine in self._of_address.values() if len(mine) > limit]
        return [one for mine in groups for one in islice(mine, len(mine) - limit)]


class Connections:
    """The open connections of one server that wait for their clients."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.deadlines: dict[Phase | None, float] = {
            Phase.HEAD: limits.head_seconds,
            Phase.BODY: limits.body_seconds,
            Phase.READER: limits.read_seconds,
            Phase.NEXT: limits.read_seconds,  # if it reads, the keep-alive timeout ends it sooner
        }
        #: The number of connections closed because of a limit.
        self.closed = 0
        self._unfinished, self._idle = ConnectionGroup(), ConnectionGroup()
        self._trim: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._unfinished) + len(self._idle)

    def move(self, connection: BoundedProtocol, address: str, phase: Phase | None) -> None:
        """Record the new phase of a connection; None if it waits for us or is closed."""
        before = next((group for group in (self._unfinished, self._idle) if connection in group), None)
        after = self._unfinished if phase in UNFINISHED else self._idle if phase is Phase.NEXT else None
        if before is after:
            return
        if before is not None:
            before.leave(connection)
        if after is not None:
            after.join(connection, address)
            if self._trim is None and self._too_many(after, address):
                self._trim = asyncio.get_running_loop().call_later(_SETTLE_S, self._close_oldest)

    def _too_many(self, group: ConnectionGroup, address: str) -> bool:
        return group.at(address) > self.limits.connections_per_address or len(self) > self.limits.connections

    def _close_oldest(self) -> None:
        self._trim = None
        for group in (self._unfinished, self._idle):
            for connection in group.beyond(self.limits.connections_per_address):
                self._close(connection)
        while len(self) > self.limits.connections:
            self._close(max(self._unfinished, self._idle, key=len).oldest())

    def _close(self, connection: BoundedProtocol) -> None:
        self.closed += 1
        connection.abort()

    def stop(self) -> None:
        """Cancel the timer when the server stops."""
        if self._trim is not None:
            self._trim.cancel()
            self._trim = None


class BoundedProtocol(H11Protocol):
    """The server's HTTP protocol, which reports its phases to ``Connections`` and keeps its deadlines."""

    registry: ClassVar[Connections]
    _address = ""
    _phase: Phase | None = None
    _deadline: asyncio.TimerHandle | None = None
    #: Bytes received for a request that was answered before its end.
    _idle_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base
        """Start the deadline for the head of the first request."""
        super().connection_made(transport)
        self._address = network_of(self.client[0]) if self.client else "local"
        self._wait_for(Phase.HEAD)

    def data_received(self, data: bytes) -> None:
        """Process received bytes and update the phase."""
        super().data_received(data)
        self._look(begun=True)
        self._bound_rest(len(data))

    def _bound_rest(self, size: int) -> None:
        """Limit what is read after a response that did not wait for the body. Reading on for a while lets the
        client see the response, but no handler applies backpressure to that body."""
        answered = self.cycle is not None and self.cycle.response_complete
        if self._phase is not Phase.BODY or not answered:
            self._idle_bytes = 0
            return
        self._idle_bytes += size
        if self._idle_bytes > self.registry.limits.body_bytes:
            self.abort()

    def on_response_complete(self) -> None:
        """Update the phase after a response. The next request may have begun already."""
        super().on_response_complete()
        self._look(begun=bool(self.conn.trailing_data[0]))

    def pause_writing(self) -> None:
        """Start the deadline for a client that does not read the response."""
        super().pause_writing()
        self._wait_for(Phase.READER)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._look(begun=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        super().connection_lost(exc)
        self._wait_for(None)

    def abort(self) -> None:
        """Close the connection at once. Unsent data is dropped."""
        self._wait_for(None)
        self.transport.abort()

    def _look(self, *, begun: bool) -> None:
        """Derive the phase from the state of the parser. ``begun``: bytes of a request have arrived."""
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
    """A protocol class bound to ``connections``."""

    class Protocol(BoundedProtocol):
        registry = connections

    return Protocol
