"""What a request carries from one part of the server to the next, in its ASGI scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from windlass.dashboard.settings import Identity

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]

#: The path under which the dashboard is mounted.
BASE = "windlass.base"
IDENTITY = "windlass.identity"
#: Methods that change nothing.
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def identity_of(scope: Mapping[str, Any]) -> Identity | None:
    """Who asks; None for a stranger."""
    return scope.get(IDENTITY)


def address_of(scope: Mapping[str, Any]) -> str:
    """The address of the client."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"
