"""What a request carries from one part of the server to the next, in its ASGI scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from windlass.dashboard.throttle import network_of
from windlass.dashboard.users import Identity

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]

#: The path under which the dashboard is mounted.
BASE = "windlass.base"
IDENTITY = "windlass.identity"
#: Whether the route's own needs were met.
LET_IN = "windlass.let_in"
#: The option of handlers whose answers are streams: they are not compressed, which would hold them up.
STREAMED = "streamed"
#: An ``ExitStack`` of what is done when the request has ended, however it ended.
AT_END = "windlass.at_end"
#: Methods that change nothing.
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def identity_of(scope: Mapping[str, Any]) -> Identity | None:
    """Who asks; None for a stranger."""
    return scope.get(IDENTITY)


def address_of(scope: Mapping[str, Any]) -> str:
    """The address of the client."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def client_of(scope: Mapping[str, Any]) -> str:
    """Whose requests are counted together: those of a user at an address, or of all strangers there."""
    identity, network = identity_of(scope), network_of(address_of(scope))
    return network if identity is None else f"{identity.name}@{network}"
