"""The outer ASGI layer of the API: validates requests, identifies the caller and writes the audit log.

It does not decide what the caller may do: ``access.AccessGuard`` does that after routing. A refusal is a
problem document, like any other error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from windlass.dashboard import problems
from windlass.dashboard.access import AccessGuard
from windlass.dashboard.allowance import Allowance
from windlass.dashboard.audit import entry_of, is_recorded
from windlass.dashboard.headers import Headers, check_path, inside, read_head
from windlass.dashboard.identity import Authenticator
from windlass.dashboard.problems import ApiError
from windlass.dashboard.request_checks import HeadRequest
from windlass.dashboard.scope import (
    ADMITTED,
    AT_END,
    BASE,
    IDENTITY,
    ASGIApp,
    Receive,
    Scope,
    Send,
    client_of,
)
from windlass.dashboard.settings import DashboardSettings
from windlass.dashboard.store_view import StoreView

log = logging.getLogger("windlass.dashboard")

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
    """The ASGI application that ``create_app`` returns. It wraps the Litestar application (``inner``)."""

    def __init__(self, store_view: StoreView) -> None:
        self.store_view = store_view
        self.inner: ASGIApp | None = None
        self.on_startup: Callable[[], Awaitable[None]] | None = None
        self.on_shutdown: Callable[[], Awaitable[None]] | None = None
        self._settings = store_view.settings
        self.allowance = Allowance(store_view.settings.limits, store_view.app.clock.monotonic_ms)
        self.authenticator = Authenticator(store_view, self.allowance)
        self.access_guard = AccessGuard(store_view.settings, self.allowance)

    @property
    def settings(self) -> DashboardSettings:
        """The arguments of ``create_app``."""
        return self._settings

    @property
    def desk(self) -> StoreView:
        """The old name of ``store_view``."""
        return self.store_view

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
        found = inside(scope, self._settings.prefix)
        found[AT_END] = at_end = ExitStack()
        watched = _Watched(send)
        try:
            with at_end:
                await self._answer(found, receive, watched)
        finally:  # also if the server cancels the request: its changes stay
            if is_recorded(found, watched.status):
                entry = entry_of(found, watched.status, self.store_view.now_ms())
                self.store_view.audit.add(entry, admitted=found.get(ADMITTED, False))

    def count_stream(self, scope: Any) -> None:
        """Count a stream until its request ends, even if nothing is sent. Raises 429 for too many streams."""
        scope[AT_END].callback(self.allowance.stream(client_of(scope)).free)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.inner is not None
        try:
            await self._check(scope)
        except ApiError as refusal:
            await self._refuse(scope, refusal, send)
        else:
            if scope["method"] == "HEAD":
                head = HeadRequest(scope, receive, send)
                await self.inner(head.scope, head.receive, head.send)
            else:
                await self.inner(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        """Run the checks that do not depend on the route. ``AccessGuard`` runs the others."""
        headers = read_head(scope, self._settings.proxy)
        check_path(scope)
        self._check_size(scope, headers)
        scope[IDENTITY] = await self.authenticator.identify(scope, headers)

    def _check_size(self, scope: Scope, headers: Headers) -> None:
        limits = self._settings.limits
        if len(scope.get("query_string", b"")) > limits.query_bytes:
            raise ApiError(414, "too_long", "the address is too long", "Use fewer or shorter parameters.")
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise ApiError(400, "bad_length", "Content-Length is not a number")
        if int(length) > limits.body_bytes:
            raise ApiError(
                413, "too_large", f"the body is larger than {limits.body_bytes} bytes", "Send less at once."
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


def with_headers(send: Send) -> Send:
    """A ``send`` that adds the security headers, for responses outside of a dashboard."""
    return _Watched(send)


class _Watched:
    """A ``send`` that adds the security headers and records the status."""

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
