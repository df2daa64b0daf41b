"""Checks of query parameters, and HEAD requests."""

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
    """Refuse a parameter that the route does not take: a misspelt filter would return everything."""
    for name in given:
        if name not in known:
            shown = clean_text(name, _SHOWN_CHARS)
            near = difflib.get_close_matches(shown, known, 1)
            listed = ", ".join(sorted(known)) or "none"
            advice = f"Did you mean {near[0]!r}?" if near else f"This route takes: {listed}."
            raise ApiError(422, "unknown_parameter", f"there is no parameter {shown!r} here", advice)


class HeadRequest:
    """Handles a HEAD request like GET, without the body of the response.

    A stream sees its client disconnect as soon as the head is sent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope: Scope = {**scope, "method": "GET"}
        self._receive = receive
        self._send = send
        self._begun = False

    async def receive(self) -> Any:
        """Only reports that the client disconnects."""
        return {"type": "http.disconnect"} if self._begun else await self._receive()

    async def send(self, message: Any) -> None:
        """Send the head of the response and end it."""
        if message["type"] == "http.response.start":
            self._begun = True
            await self._send(message)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
