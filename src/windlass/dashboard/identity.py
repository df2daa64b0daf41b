"""Who asks: the application's own check, a token, a password, a session."""

from __future__ import annotations

import base64
import binascii
import inspect
import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from windlass.dashboard.allowance import Allowance
from windlass.dashboard.desk import Desk
from windlass.dashboard.problems import ApiError
from windlass.dashboard.scope import BASE, IDENTITY, Scope, address_of
from windlass.dashboard.sessions import Sessions, set_cookie
from windlass.dashboard.settings import ROLES, Identity

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ANYONE = Identity("local", "operator")


class Reception:
    """Finds out who asks, and begins and ends their sessions."""

    def __init__(self, desk: Desk, allowance: Allowance) -> None:
        self._desk = desk
        self._settings = desk.settings
        self._allowance = allowance
        self._sessions = Sessions(desk.settings.cookie_key)

    async def identify(self, scope: Scope, headers: Mapping[str, str]) -> Identity | None:
        """Who asks; None for a stranger."""
        address = address_of(scope)
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
            return self._sessions.read(cookie, self._desk.now_ms()) if cookie else None
        self._allowance.check_refusals(address)
        if kind.lower() == "bearer":
            found = self._settings.by_token(rest.strip())
        else:
            found = self._by_basic(rest)
        if found is None:
            with suppress(ApiError):
                self._allowance.refusal(address)
        return found

    def _by_basic(self, encoded: str) -> Identity | None:
        with suppress(binascii.Error, UnicodeDecodeError, ValueError):
            name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
            return self._settings.by_password(name, password)
        return None

    def unauthenticated(self, headers: Mapping[str, str]) -> ApiError:
        """The refusal of a stranger."""
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

    def sign_in(self, scope: Any, token: str, username: str, password: str) -> Identity:
        """Whose token or password it is; the rest of this request is theirs. 401 when it is no one's."""
        found = self._settings.by_token(token) if token else None
        if found is None and username:
            found = self._settings.by_password(username, password)
        if found is None:
            self._allowance.refusal(address_of(scope))
            raise ApiError(401, "unauthenticated", "wrong token or password", "Check what you typed.")
        scope[IDENTITY] = found
        return found

    def cookie(self, scope: Mapping[str, Any], identity: Identity | None) -> str:
        """The Set-Cookie header that begins a session, or ends it."""
        value = None if identity is None else self._sessions.make(identity, self._desk.now_ms())
        return set_cookie(value, scope.get(BASE, ""), scope.get("scheme") == "https")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
