"""How the API meets requests that are nearly right: unknown parameters, HEAD, addresses without a page."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from windlass.core.text import clean_text
from windlass.dashboard.problems import ApiError
from windlass.dashboard.scope import Receive, Scope, Send

_SHOWN_CHARS = 100


def parameters_of(handler: HTTPRouteHandler) -> frozenset[str]:
    """The names of the query parameters that a handler takes."""
    found = handler.parsed_fn_signature.parameters.items()
    return frozenset(
        field.kwarg_definition.name or name
        for name, field in found
        if isinstance(field.kwarg_definition, QueryParameter)
    )


def check_parameters(given: Mapping[str, Any] | Iterable[str], known: frozenset[str]) -> None:
    """Refuse a parameter that the route does not take: a filter that is misspelt would return everything."""
    for name in given:
        if name not in known:
            shown = clean_text(name, _SHOWN_CHARS)
            near = difflib.get_close_matches(shown, known, 1)
            listed = ", ".join(sorted(known)) or "none"
            advice = f"Did you mean {near[0]!r}?" if near else f"This route takes: {listed}."
            raise ApiError(422, "unknown_parameter", f"there is no parameter {shown!r} here", advice)


class Headless:
    """A GET request that was sent as HEAD: the same answer without its body.

    A stream sees its client leave as soon as its head was sent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope: Scope = {**scope, "method": "GET"}
        self._receive = receive
        self._send = send
        self._begun = False

    async def receive(self) -> Any:
        """What the client sends: nothing but that it leaves."""
        return {"type": "http.disconnect"} if self._begun else await self._receive()

    async def send(self, message: Any) -> None:
        """The head of the answer, and its end at once."""
        if message["type"] == "http.response.start":
            self._begun = True
            await self._send(message)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
