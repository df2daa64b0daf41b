"""Session cookies: who signed in, until when, signed. Nothing about them is stored in the server."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Literal

import msgspec

from windlass.dashboard.settings import Identity

COOKIE = "windlass_session"
LIFETIME_MS = 12 * 3_600_000


class _Claims(msgspec.Struct, array_like=True):
    name: str
    role: Literal["operator", "reader"]
    until_ms: int


class Sessions:
    """Makes and reads session cookies."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, identity: Identity, now_ms: int) -> str:
        """The value of a cookie for ``identity``."""
        claims = msgspec.json.encode(_Claims(identity.name, identity.role, now_ms + LIFETIME_MS))
        body = base64.urlsafe_b64encode(claims).decode().rstrip("=")
        return f"{body}.{self._sign(body)}"

    def read(self, header: str, now_ms: int) -> Identity | None:
        """Whose session a Cookie header holds; None when it holds none that is valid."""
        try:
            found = SimpleCookie(header).get(COOKIE)
        except CookieError:
            return None
        if found is None:
            return None
        body, _, signature = found.value.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(body).encode()):
            return None
        try:
            data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            claims = msgspec.json.decode(data, type=_Claims)
        except (binascii.Error, msgspec.MsgspecError, ValueError):
            return None
        return Identity(claims.name, claims.role) if claims.until_ms > now_ms else None

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def set_cookie(value: str | None, path: str, secure: bool) -> str:
    """A Set-Cookie header; None takes the cookie away."""
    age = LIFETIME_MS // 1000 if value is not None else 0
    parts = [
        f"{COOKIE}={value or ''}",
        f"Path={path or '/'}",
        f"Max-Age={age}",
        "HttpOnly",
        "SameSite=Strict",
    ]
    return "; ".join([*parts, "Secure"] if secure else parts)
