"""Identifies the caller: by the application's own check, a token, a password or a session."""

from __future__ import annotations

import base64
import binascii
import inspect
import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from windlass.dashboard.allowance import Allowance
from windlass.dashboard.headers import FORWARDING, PROXIED, Headers, headers_of
from windlass.dashboard.problems import ApiError, not_found
from windlass.dashboard.scope import BASE, IDENTITY, Scope, address_of, client_of, identity_of
from windlass.dashboard.sessions import ATTEMPT, Sessions, key_in, set_cookie
from windlass.dashboard.store_view import StoreView
from windlass.dashboard.users import ROLES, Identity
from windlass.errors import not_installed

if TYPE_CHECKING:
    from windlass.dashboard.openid import Provider

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ANYONE = Identity("local", "operator")
_BY_SESSION = "windlass.by_session"
#: When the application's own check last accepted the caller.
_HOOK_ASKED = "windlass.hook_asked"
_ASK_AGAIN_MS = 60_000


class Authenticator:
    """Identifies callers, and creates and ends their sessions."""

    def __init__(self, store_view: StoreView, allowance: Allowance) -> None:
        self._view = store_view
        self._settings = store_view.settings
        self._allowance = allowance
        self._sessions = Sessions()
        self.provider: Provider | None = None
        if self._settings.openid is not None:
            try:
                from windlass.dashboard.openid import Provider
            except ImportError as exc:
                raise not_installed("openid", "sign-in with OpenID Connect", "windlass[oidc]") from exc
            self.provider = Provider(self._settings.openid, store_view.now_ms)

    async def identify(self, scope: Scope, headers: Headers) -> Identity | None:
        """The caller; None if unknown."""
        if not self._settings.methods:
            return self._local(scope, headers)
        found = await self._by_hook(scope) if self._settings.auth is not None else None
        if found is not None:
            scope[_HOOK_ASKED] = self._view.app.clock.monotonic_ms()
        if found is None and self._settings.proxy is not None and scope[PROXIED]:
            found = self._settings.proxy.user(headers)
        if found is None and not _has_credentials(headers):
            found = self._by_session(headers)
            scope[_BY_SESSION] = found is not None
            return found
        return found or self._by_credentials(headers, address_of(scope))

    def _local(self, scope: Scope, headers: Headers) -> Identity:
        """Without any sign-in, only this machine is served, under its own name and without a proxy. So no
        other site can reach it, and no proxy can make remote requests look local."""
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        named = host in _LOOPBACK_NAMES | set(self._settings.allowed_hosts)
        forwarded = not FORWARDING.isdisjoint(headers) or scope.get("http_version") == "1.0"
        if forwarded or not named or not _is_loopback(address_of(scope)):
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

    def _by_credentials(self, headers: Headers, address: str) -> Identity | None:
        kind, _, rest = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._settings.by_token(rest.strip())
        return self._by_basic(rest, address)

    def _by_session(self, headers: Headers) -> Identity | None:
        if not self._settings.has_form:
            return None
        return self._sessions.find(headers.get("cookie", ""), self._view.now_ms())

    async def still_knows(self, scope: Any) -> bool:
        """Whether the caller of a long request is still signed in. The session may have ended. The check of
        the application runs again once a minute, and may refuse the user or return other groups."""
        if scope.get(_BY_SESSION):
            return self._by_session(headers_of(scope)) is not None
        now_ms = self._view.app.clock.monotonic_ms()
        if now_ms - scope.get(_HOOK_ASKED, now_ms) < _ASK_AGAIN_MS:
            return True
        scope[_HOOK_ASKED] = now_ms
        found, before = await self._by_hook(scope), identity_of(scope)
        return found is not None and before is not None and _rights(found) == _rights(before)

    def _by_basic(self, encoded: str, address: str) -> Identity | None:
        try:
            name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return None
        return self._by_password(name, password, address)

    def _by_password(self, name: str, password: str, address: str) -> Identity | None:
        """Check a password. It is counted before it is compared: a guess above the limit learns nothing."""
        self._allowance.password(name, address)
        found = self._settings.by_password(name, password)
        if found is not None:
            self._allowance.right_password(name, address)
        return found

    def sign_in(self, scope: Any, token: str, username: str, password: str) -> Identity:
        """Identify the owner of a token or password, and use this identity for the rest of the request.

        Raises 401 if it is invalid. The request is counted for that user, so that unknown clients do not use
        up a user's rate.
        """
        found = self._settings.by_token(token) if token else None
        if found is None and username:
            found = self._by_password(username, password, address_of(scope))
        scope[IDENTITY] = found
        self._allowance.request(client_of(scope))
        if found is None:
            raise ApiError(401, "unauthenticated", "wrong token or password", "Check what you typed.")
        return found

    async def begin_openid(self, scope: Mapping[str, Any]) -> tuple[str, str]:
        """The URL at which a browser signs in at the provider, and the Set-Cookie header for its return."""
        url, cookie = await self._provider().begin()
        # Lax, because the browser returns from another site.
        return url, set_cookie(cookie, scope.get(BASE, ""), self._is_https(scope), ATTEMPT, "Lax")

    async def finish_openid(self, scope: Any, state: str, code: str) -> str:
        """Create the session of a user who returns from the provider; returns its Set-Cookie header."""
        cookie = key_in(headers_of(scope).get("cookie", ""), ATTEMPT.name)
        scope[IDENTITY] = found = await self._provider().finish(cookie, state, code)
        return self.begin_session(scope, found)

    def _provider(self) -> Provider:
        if self.provider is None:
            raise not_found("there is no sign-in provider here", "Sign in at /api/session.")
        return self.provider

    def begin_session(self, scope: Mapping[str, Any], identity: Identity) -> str:
        """Create a session that replaces the browser's old one; returns its Set-Cookie header."""
        self._sessions.end(headers_of(scope).get("cookie", ""))
        return self._cookie(scope, self._sessions.begin(identity, self._view.now_ms()))

    def end_session(self, scope: Mapping[str, Any], everywhere: bool) -> str:
        """End the session of this browser, or all sessions of its user; returns the Set-Cookie header."""
        identity = identity_of(scope)
        if everywhere and identity is not None:
            self._sessions.end_all(identity.name)
        self._sessions.end(headers_of(scope).get("cookie", ""))
        return self._cookie(scope, None)

    def _cookie(self, scope: Mapping[str, Any], key: str | None) -> str:
        return set_cookie(key, scope.get(BASE, ""), self._is_https(scope))

    def _is_https(self, scope: Mapping[str, Any]) -> bool:
        """Whether browsers use HTTPS, as far as is known."""
        openid = self._settings.openid
        public = openid is not None and openid.public_url.startswith("https:")
        return public or scope.get("scheme") == "https"


def _has_credentials(headers: Headers) -> bool:
    """Whether a request has its own token or password."""
    return headers.get("authorization", "").partition(" ")[0].lower() in ("bearer", "basic")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _rights(identity: Identity) -> tuple[str, str, frozenset[str]]:
    """Everything that decides what a user sees. Rules may name groups, whose order does not matter."""
    return identity.name, identity.role, frozenset(identity.groups)
