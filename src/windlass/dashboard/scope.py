"""Values that parts of the server store in the ASGI scope of a request."""

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
#: Whether the route's access check has passed.
ADMITTED = "windlass.admitted"
#: The option of handlers with streamed responses. They are not compressed, because that would delay them.
STREAMED = "streamed"
#: An ``ExitStack`` that is closed when the request has ended, also after an error.
AT_END = "windlass.at_end"
#: Methods that change nothing.
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def identity_of(scope: Mapping[str, Any]) -> Identity | None:
    """The caller; None if unknown."""
    return scope.get(IDENTITY)


def address_of(scope: Mapping[str, Any]) -> str:
    """The address of the client."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def client_of(scope: Mapping[str, Any]) -> str:
    """The key for rate limits: a user at an address, or all unknown callers there."""
    identity, network = identity_of(scope), network_of(address_of(scope))
    return network if identity is None else f"{identity.name}@{network}"
