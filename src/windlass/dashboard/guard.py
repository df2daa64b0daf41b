"""The door of the API, around all routes: sizes, hosts, sign-in, rates, cross-site requests, roles, audit.

Nothing of a request reaches a route before it passed. A refusal is a problem document like any other error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from windlass.dashboard import problems
from windlass.dashboard.allowance import Allowance
from windlass.dashboard.audit import entry_of
from windlass.dashboard.desk import Desk
from windlass.dashboard.identity import Reception
from windlass.dashboard.problems import ApiError
from windlass.dashboard.scope import BASE, IDENTITY, SAFE, ASGIApp, Receive, Scope, Send, address_of
from windlass.dashboard.settings import Identity

log = logging.getLogger("windlass.dashboard")

CSRF_HEADER = "x-windlass-csrf"
_PUBLIC = frozenset({"/live", "/ready", "/health", "/api/session"})
_PATH_BYTES = 4_096

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class Guard:
    """The ASGI application that servers and other applications see."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.inner: ASGIApp | None = None
        self.is_page: Callable[[str, Mapping[str, str]], bool] = lambda path, headers: False
        self.methods_of: Callable[[str], set[str]] = lambda path: set()
        self.on_startup: Callable[[], Awaitable[None]] | None = None
        self.on_shutdown: Callable[[], Awaitable[None]] | None = None
        self._settings = desk.settings
        self.allowance = Allowance(desk.settings.limits, desk.app.clock.monotonic_ms)
        self.reception = Reception(desk, self.allowance)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            hook = self.on_startup if kind == "lifespan.startup" else self.on_shutdown
            try:
                if hook is not None:
                    await hook()
            except Exception as exc:
                log.exception("%s failed", kind)
                await send({"type": f"{kind}.failed", "message": str(exc)})
                return
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    # --- one request -------------------------------------------------------------------------------

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.inner is not None
        inside = self._inside(scope)
        watched = _Watched(send)
        try:
            await self._check(inside)
            if inside["method"] == "OPTIONS":
                await self._tell_methods(inside["path"], watched)
                return
        except ApiError as refusal:
            await self._refuse(inside, refusal, watched)
        else:
            await self.inner(inside, receive, watched)
        if inside["method"] not in SAFE and watched.status != 429:
            self.desk.audit.add(entry_of(inside, watched.status, self.desk.now_ms()))

    async def _tell_methods(self, path: str, send: Send) -> None:
        methods = self.methods_of(path)
        if not methods:
            raise problems.not_found("there is no such path", "The paths are in /api/openapi.json.")
        headers = [(b"allow", ", ".join([*sorted(methods), "OPTIONS"]).encode())]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _inside(self, scope: Scope) -> Scope:
        """The scope as routes see it: without the prefix under which we are mounted."""
        path, base = scope["path"], scope.get("root_path", "").rstrip("/")
        if base and (path == base or path.startswith(f"{base}/")):
            path = path[len(base) :]
        prefix = self._settings.prefix
        if prefix and (path == prefix or path.startswith(f"{prefix}/")):
            path = path[len(prefix) :]
        if prefix and not base.endswith(prefix):
            base += prefix
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        return {**scope, "path": path or "/", "root_path": "", BASE: base, "windlass.headers": headers}

    async def _check(self, scope: Scope) -> None:
        headers: dict[str, str] = scope["windlass.headers"]
        self._check_size(scope, headers)
        self.allowance.request(address_of(scope))
        public = scope["path"] in _PUBLIC or self.is_page(scope["path"], headers)
        identity = await self.reception.identify(scope, headers)
        if identity is None and not (public and self._settings.auth is None):
            raise self.reception.unauthenticated(headers)
        scope[IDENTITY] = identity
        if scope["method"] not in SAFE:
            self._check_change(scope, headers, identity)

    def _check_size(self, scope: Scope, headers: Mapping[str, str]) -> None:
        limits = self._settings.limits
        if len(scope["path"]) > _PATH_BYTES or len(scope.get("query_string", b"")) > limits.query_bytes:
            self._check_method(scope)
            raise ApiError(414, "too_long", "the address is too long", "Use fewer or shorter parameters.")
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise ApiError(400, "bad_length", "Content-Length is not a number")
        if int(length) > limits.body_bytes:
            raise ApiError(
                413, "too_large", f"the body is larger than {limits.body_bytes} bytes", "Send less at once."
            )

    def _check_method(self, scope: Scope) -> None:
        methods = self.methods_of(scope["path"])
        if methods and scope["method"] not in methods:
            allow = {"Allow": ", ".join([*sorted(methods), "OPTIONS"])}
            raise ApiError(405, "method_not_allowed", "there is no such method here", "", allow)

    def _check_change(self, scope: Scope, headers: Mapping[str, str], identity: Identity | None) -> None:
        address = address_of(scope)
        self.allowance.change(address if identity is None else f"{identity.name}@{address}")
        self._check_origin(headers)
        bearer = headers.get("authorization", "").lower().startswith("bearer ")
        if not bearer and headers.get(CSRF_HEADER) != "1":
            raise ApiError(
                403, "csrf", "the request may come from another site", "Send the header X-Windlass-CSRF: 1."
            )
        if scope["path"] == "/api/session":
            return
        if self._settings.read_only:
            raise ApiError(403, "read_only", "this dashboard is read-only", "Use one that is not.")
        if identity is None or identity.role != "operator":
            raise ApiError(403, "forbidden", "you may look, not change", "Sign in as an operator.")

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse what a page of another site sends."""
        origin = headers.get("origin")
        if origin is not None and origin in self._settings.trusted_origins:
            return
        site = headers.get("sec-fetch-site", "none")
        same = origin is None or urlsplit(origin).netloc == headers.get("host", "")
        if site not in ("none", "same-origin") or not same:
            raise ApiError(
                403, "cross_site", "the request comes from another site", "Use the dashboard's own pages."
            )

    # --- answers -------------------------------------------------------------------------------------

    async def _refuse(self, scope: Scope, refusal: ApiError, send: Send) -> None:
        path = f"{scope[BASE]}{scope['path']}"
        document = problems.problem(refusal.status, refusal.code, refusal.detail, refusal.advice, path)
        body = problems.encode(document)
        headers = [(b"content-type", problems.MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        headers += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class _Watched:
    """A ``send`` that adds the security headers and remembers the status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 500

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message.get("headers", []))
            names = {name.lower() for name, _ in given}
            given += [header for header in _HEADERS if header[0] not in names]
            if b"cache-control" not in names:
                given.append((b"cache-control", b"no-store"))
            message = {**message, "headers": given}
        await self._send(message)
