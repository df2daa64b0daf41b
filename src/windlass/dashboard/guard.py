"""The door of the API, around all routes: sizes, hosts, sign-in, rates, cross-site requests, roles, audit.

Nothing of a request reaches a route before it passed. A refusal is a problem document like any other error.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from litestar import Request

from windlass.dashboard import problems
from windlass.dashboard.desk import Desk
from windlass.dashboard.problems import ApiError
from windlass.dashboard.sessions import Sessions, set_cookie
from windlass.dashboard.settings import ROLES, Identity
from windlass.dashboard.shapes.server import AuditEntry
from windlass.dashboard.throttle import Buckets

log = logging.getLogger("windlass.dashboard")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]

CSRF_HEADER = "x-windlass-csrf"
_IDENTITY = "windlass.identity"
_FACTS = "windlass.facts"
BASE = "windlass.base"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_PUBLIC = frozenset({"/live", "/ready", "/health", "/api/session"})
_PATH_BYTES = 4_096
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ANYONE = Identity("local", "operator")

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


def identity_of(scope: Mapping[str, Any]) -> Identity | None:
    """Who asks; None when nobody signed in."""
    return scope.get(_IDENTITY)


def note(request: Request[Any, Any, Any], **facts: str | int | float | bool | None) -> None:
    """Put facts into the audit entry of this request."""
    scope: Any = request.scope
    scope.setdefault(_FACTS, {}).update(facts)


class StreamPlace:
    """A place among the open event streams."""

    def __init__(self, guard: Guard, client: str) -> None:
        self._guard = guard
        self._client = client
        self._open = True

    def free(self) -> None:
        """Give it back. Idempotent."""
        if self._open:
            self._open = False
            self._guard.streams[self._client] -= 1
            if not self._guard.streams[self._client]:
                del self._guard.streams[self._client]


class Guard:
    """The ASGI application that servers and other applications see."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.inner: ASGIApp | None = None
        self.is_page: Callable[[str, Mapping[str, str]], bool] = lambda path, headers: False
        self.methods_of: Callable[[str], set[str]] = lambda path: set()
        self.on_startup: Callable[[], Awaitable[None]] | None = None
        self.on_shutdown: Callable[[], Awaitable[None]] | None = None
        #: Open event streams by client.
        self.streams: dict[str, int] = {}
        settings, limits = desk.settings, desk.settings.limits
        self._settings = settings
        self._sessions = Sessions(settings.cookie_key)
        self._requests = Buckets(limits.burst, limits.per_second)
        self._changes = Buckets(limits.change_burst, limits.changes_per_second)
        self._refusals = Buckets(limits.refusal_burst, limits.refusals_per_second)

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
        if inside["method"] not in _SAFE and watched.status != 429:
            self._audit(inside, watched.status)

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
        address = _address(scope)
        self._throttle(self._requests, address, "requests")
        public = scope["path"] in _PUBLIC or self.is_page(scope["path"], headers)
        identity = await self._identify(scope, headers, address)
        if identity is None and not (public and self._settings.auth is None):
            raise self._unauthenticated(headers)
        scope[_IDENTITY] = identity
        if scope["method"] not in _SAFE:
            self._check_change(scope, headers, identity, address)

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

    def _check_change(
        self, scope: Scope, headers: Mapping[str, str], identity: Identity | None, address: str
    ) -> None:
        who = address if identity is None else f"{identity.name}@{address}"
        self._throttle(self._changes, who, "changes")
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

    # --- who asks ----------------------------------------------------------------------------------

    async def _identify(self, scope: Scope, headers: Mapping[str, str], address: str) -> Identity | None:
        if not self._settings.methods:
            return self._local(headers, address)
        found = await self._by_hook(scope) if self._settings.auth is not None else None
        return found or self._by_credentials(headers, address)

    def _local(self, headers: Mapping[str, str], address: str) -> Identity:
        """Without any sign-in only this machine is served, under its own name: no other site can reach it."""
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if not _is_loopback(address) or host not in _LOOPBACK_NAMES | set(self._settings.allowed_hosts):
            raise ApiError(
                403,
                "not_local",
                "without a sign-in this dashboard serves only this machine",
                "Give it tokens, users or an auth hook.",
            )
        return _ANYONE

    async def _by_hook(self, scope: Scope) -> Identity | None:
        assert self._settings.auth is not None
        answer = self._settings.auth(scope)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None or isinstance(answer, Identity):
            return answer
        return Identity("user", answer) if answer in ROLES else None

    def _by_credentials(self, headers: Mapping[str, str], address: str) -> Identity | None:
        kind, _, rest = headers.get("authorization", "").partition(" ")
        if kind.lower() not in ("bearer", "basic"):
            cookie = headers.get("cookie", "")
            return self._sessions.read(cookie, self.desk.now_ms()) if cookie else None
        if self._refusals.level(address, self._now_ms()) < 1:
            raise ApiError(429, "too_many_refusals", "too many failed sign-ins", "Wait a minute.")
        if kind.lower() == "bearer":
            found = self._settings.by_token(rest.strip())
        else:
            found = self._by_basic(rest)
        if found is None:
            self._refusals.take(address, self._now_ms())
        return found

    def _by_basic(self, encoded: str) -> Identity | None:
        with suppress(binascii.Error, UnicodeDecodeError, ValueError):
            name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
            return self._settings.by_password(name, password)
        return None

    def _unauthenticated(self, headers: Mapping[str, str]) -> ApiError:
        challenge = "Bearer"
        if "basic" in self._settings.methods and "sec-fetch-mode" not in headers:
            challenge = 'Basic realm="windlass", charset="UTF-8"'
        return ApiError(
            401,
            "unauthenticated",
            "sign in first",
            "Send a token (Authorization: Bearer ...), or sign in at /api/session.",
            {"WWW-Authenticate": challenge},
        )

    def count_refusal(self, scope: Mapping[str, Any]) -> None:
        """A sign-in failed; too many of them are refused unseen."""
        wait_ms = self._refusals.take(_address(scope), self._now_ms())
        if wait_ms:
            raise _too_many("failed sign-ins", wait_ms)

    def become(self, scope: Any, identity: Identity) -> None:
        """The rest of this request is that user's."""
        scope[_IDENTITY] = identity

    def cookie(self, scope: Mapping[str, Any], identity: Identity | None) -> str:
        """The Set-Cookie header that begins a session, or ends it."""
        value = None if identity is None else self._sessions.make(identity, self.desk.now_ms())
        return set_cookie(value, scope.get(BASE, ""), scope.get("scheme") == "https")

    # --- how much ------------------------------------------------------------------------------------

    def _now_ms(self) -> float:
        return self.desk.app.clock.monotonic_ms()

    def _throttle(self, buckets: Buckets, client: str, what: str) -> None:
        wait_ms = buckets.take(client, self._now_ms())
        if wait_ms:
            raise _too_many(what, wait_ms)

    def take_stream(self, scope: Mapping[str, Any]) -> StreamPlace:
        """A place for one more event stream; 429 when there is none."""
        limits = self._settings.limits
        client = _address(scope)
        mine = self.streams.get(client, 0)
        if mine >= limits.streams_per_client or sum(self.streams.values()) >= limits.streams:
            raise _too_many("open event streams", 5_000)
        self.streams[client] = mine + 1
        return StreamPlace(self, client)

    # --- answers -------------------------------------------------------------------------------------

    async def _refuse(self, scope: Scope, refusal: ApiError, send: Send) -> None:
        path = f"{scope[BASE]}{scope['path']}"
        document = problems.problem(refusal.status, refusal.code, refusal.detail, refusal.advice, path)
        body = problems.encode(document)
        headers = [(b"content-type", problems.MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        headers += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _audit(self, scope: Scope, status: int) -> None:
        identity = identity_of(scope)
        template = scope.get("path_template") or scope["path"]
        outcome = "ok" if status < 400 else "refused" if status < 500 else "failed"
        self.desk.audit.add(
            AuditEntry(
                id=0,
                at_ms=self.desk.now_ms(),
                who=identity.name if identity is not None else "",
                role=identity.role if identity is not None else "none",
                client=_address(scope),
                method=scope["method"],
                action=f"{scope['method']} {template}",
                target=scope["path"],
                status=status,
                outcome=outcome,
                facts=scope.get(_FACTS, {}),
            )
        )


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


def _too_many(what: str, wait_ms: float) -> ApiError:
    seconds = max(round(wait_ms / 1000 + 0.5), 1)
    advice = f"Wait {seconds} s; lists and bulk changes take many jobs at once."
    return ApiError(429, "too_many", f"too many {what}", advice, {"Retry-After": str(seconds)})


def _address(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
