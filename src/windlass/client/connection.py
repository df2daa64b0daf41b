"""Requests to the HTTP API with the standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from windlass.errors import WindlassError


class Response(NamedTuple):
    """What a server answered."""

    status: int
    content: bytes


#: Sends a request: method, address, headers, body. For servers that are reached another way.
Transport = Callable[[str, str, Mapping[str, str], bytes | None], Response]


class ApiProblemError(WindlassError):
    """The server refused a request. ``problem`` is a stable word for programs, ``advice`` says what to do."""

    code = "api_problem"

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status: int = status
        self.problem: str = str(problem.get("code", ""))
        self.detail: str = str(problem.get("detail", ""))
        self.advice: str = str(problem.get("advice", ""))
        reason = self.detail or "no reason given"
        super().__init__(
            f"the server answered {status}: {reason}{f' ({self.advice})' if self.advice else ''}"
        )


class Connection:
    """How requests get to a server. ``token`` is a bearer token of it; ``timeout`` is in seconds."""

    def __init__(
        self, url: str, *, token: str = "", timeout: float = 30.0, transport: Transport | None = None
    ) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._transport = transport or self._over_network
        self._headers = {"Accept": "application/json", "X-Windlass-CSRF": "1"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    @staticmethod
    def part(value: str) -> str:
        """A value as one segment of a path."""
        return quote(value, safe="")

    @classmethod
    def name(cls, value: str) -> str:
        """A name that may hold anything as one segment of a path."""
        return cls.part(value.replace("~", "~0").replace("/", "~1").replace(".", "~2"))

    def send(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """Send a request; the decoded answer, None when it has no content. Raises ``ApiProblemError``."""
        pairs = [pair for name, value in (query or {}).items() for pair in _pairs(name, value)]
        address = f"{self._url}{path}{f'?{urlencode(pairs)}' if pairs else ''}"
        headers, content = dict(self._headers), None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        answer = self._transport(method, address, headers, content)
        if answer.status >= 400:
            raise ApiProblemError(answer.status, _problem(answer.content))
        return json.loads(answer.content) if answer.content else None

    def _over_network(
        self, method: str, address: str, headers: Mapping[str, str], body: bytes | None
    ) -> Response:
        request = urllib.request.Request(address, data=body, headers=dict(headers), method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                return Response(answer.status, answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return Response(refused.code, refused.read())


def _pairs(name: str, value: Any) -> list[tuple[str, str]]:
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [(name, str(one)) for one in value]
    return [(name, str(value).lower() if isinstance(value, bool) else str(value))]


def _problem(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
