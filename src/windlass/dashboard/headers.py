"""The head of a request, parsed once, so that every part of the server sees the same headers and path.

A header that affects access may occur only once. A second one is refused, so that no two readers can pick
different ones. ``Cookie`` is joined with ``; ``, every other header with ``, ``, as RFC 9110 says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from windlass.dashboard.problems import ApiError, not_found
from windlass.dashboard.scope import BASE, Scope, address_of
from windlass.dashboard.signin import TrustedProxy

HEADERS = "windlass.headers"
#: Whether a trusted proxy sent the request.
PROXIED = "windlass.proxied"
CSRF_HEADER = "x-windlass-csrf"
#: Headers that indicate a proxy.
FORWARDING = frozenset(
    {
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-forwarded-server",
        "x-real-ip",
    }
)
#: Headers that may occur only once.
ONCE = frozenset(
    {
        CSRF_HEADER,
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "last-event-id",
        "origin",
        "sec-fetch-mode",
        "sec-fetch-site",
        "transfer-encoding",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-real-ip",
    }
)
_PATH_CHARACTERS = 4_096
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z._-]{1,253})(:[0-9]{1,5})?|")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
#: Text that no valid path contains: empty and dot segments, backslashes, control characters.
_ODD_PATH = re.compile(r"//|/\.{1,2}(/|\Z)|[\x00-\x1f\x7f\\]")
#: Encoded slashes, backslashes and control characters.
_ODD_RAW_PATH = re.compile(rb"%(2f|5c|[01][0-9a-f]|7f)", re.IGNORECASE)


class Headers(Mapping[str, str]):
    """The headers of a request by lower-case name, each with one value."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]], once: frozenset[str] = ONCE) -> None:
        self._values: dict[str, str] = {}
        for given, value in raw:
            self._add(given.decode("latin-1").lower(), value.decode("latin-1").strip(), once)
        if not _HOST.fullmatch(self.get("host", "")):
            raise ApiError(400, "bad_host", "the Host header is not a host name or an address")

    def _add(self, name: str, value: str, once: frozenset[str]) -> None:
        if _CONTROL.search(value):
            raise ApiError(400, "bad_header", "a header holds control characters")
        if name not in self._values:
            self._values[name] = value
        elif name in once:
            raise ApiError(400, "duplicate_header", "a header that may be given only once is given twice")
        else:
            self._values[name] += ("; " if name == "cookie" else ", ") + value

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def raw(self) -> list[tuple[bytes, bytes]]:
        """The headers in the form of an ASGI scope."""
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._values.items()]

    def set_host(self, host: str) -> None:
        """Use the host name under which the client reached a trusted proxy."""
        if not _HOST.fullmatch(host):
            raise ApiError(400, "bad_host", "the X-Forwarded-Host header is not a host name or an address")
        self._values["host"] = host

    @property
    def wants_page(self) -> bool:
        """Whether a browser requests a page."""
        return "text/html" in self.get("accept", "")


def read_head(scope: Scope, proxy: TrustedProxy | None) -> Headers:
    """Parse the headers of a request, and find its client's address, also behind a trusted proxy."""
    headers = Headers(scope["headers"], ONCE if proxy is None else ONCE | proxy.own_headers)
    peer = address_of(scope)
    scope[PROXIED] = proxy is not None and proxy.sent(peer, headers)
    if proxy is not None and scope[PROXIED]:
        scope["client"] = (proxy.client(peer, headers), 0)
        scope["scheme"] = headers.get("x-forwarded-proto", scope.get("scheme", "http"))
        if "x-forwarded-host" in headers:
            headers.set_host(headers["x-forwarded-host"])
    scope[HEADERS] = headers
    scope["headers"] = headers.raw()
    return headers


def headers_of(scope: Mapping[str, Any]) -> Headers:
    """The headers of a request that passed ``Guard``."""
    found: Headers = scope[HEADERS]
    return found


def inside(scope: Scope, prefix: str) -> Scope:
    """The scope for routes: without the path under which the dashboard is mounted."""
    path, base = scope["path"], scope.get("root_path", "").rstrip("/")
    if base and (path == base or path.startswith(f"{base}/")):
        path = path[len(base) :]
    if prefix and (path == prefix or path.startswith(f"{prefix}/")):
        path = path[len(prefix) :]
    if prefix and not base.endswith(prefix):
        base += prefix
    return {**scope, "path": path or "/", "root_path": "", BASE: base}


def check_path(scope: Mapping[str, Any]) -> None:
    """Refuse a path that is not in canonical form, for all callers alike."""
    path: str = scope["path"]
    if len(path) > _PATH_CHARACTERS:
        raise ApiError(414, "too_long", "the address is too long", "Use fewer or shorter parameters.")
    trailing = path != "/" and path.endswith("/")
    if not path.startswith("/") or trailing or _ODD_PATH.search(path) or _odd_raw(scope):
        raise not_found("there is no such path", "The paths are in /api/openapi.json.")


def _odd_raw(scope: Mapping[str, Any]) -> bool:
    raw = scope.get("raw_path") or b""
    return _ODD_RAW_PATH.search(raw.partition(b"?")[0]) is not None
