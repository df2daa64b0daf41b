"""Browser sessions. The cookie holds only a random key; the session is kept here.

Sessions are in the memory of this process: a restart ends all of them, and processes do not share them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from windlass.dashboard.users import Identity

COOKIE = "windlass_session"
LIFETIME_MS = 12 * 3_600_000


@dataclass(frozen=True, slots=True)
class CookieKind:
    """A cookie: its name and how long a browser keeps it."""

    name: str
    seconds: int


SESSION = CookieKind(COOKIE, LIFETIME_MS // 1000)
#: Used during the sign-in at a provider.
ATTEMPT = CookieKind("windlass_signin", 600)
#: Maximum number of sessions: in total, and for one user. The oldest ends first.
KEPT = 10_000
KEPT_PER_USER = 50
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class _BrowserSession:
    identity: Identity
    until_ms: int


class Sessions:
    """The sessions of one server, by the hash of their key, so that a copy of this table is of no use."""

    def __init__(self, kept: int = KEPT, per_user: int = KEPT_PER_USER) -> None:
        self._kept = kept
        self._per_user = per_user
        self._sessions: OrderedDict[bytes, _BrowserSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, identity: Identity, now_ms: int) -> str:
        """Create a session and return its key."""
        self._drop_expired(now_ms)
        mine = [digest for digest, one in self._sessions.items() if one.identity.name == identity.name]
        for digest in mine[: max(len(mine) - self._per_user + 1, 0)]:
            del self._sessions[digest]
        while len(self._sessions) >= self._kept:
            self._sessions.popitem(last=False)
        key = secrets.token_urlsafe(_KEY_BYTES)
        self._sessions[_digest(key)] = _BrowserSession(identity, now_ms + LIFETIME_MS)
        return key

    def find(self, cookies: str, now_ms: int) -> Identity | None:
        """The user of the session in a Cookie header; None if it names no valid one, or several."""
        session = self._sessions.get(_digest(key_in(cookies)))
        return session.identity if session is not None and session.until_ms > now_ms else None

    def end(self, cookies: str) -> None:
        """End the session in a Cookie header."""
        self._sessions.pop(_digest(key_in(cookies)), None)

    def end_all(self, name: str) -> int:
        """End every session of a user; returns how many there were."""
        mine = [digest for digest, session in self._sessions.items() if session.identity.name == name]
        for digest in mine:
            del self._sessions[digest]
        return len(mine)

    def _drop_expired(self, now_ms: int) -> None:
        """Remove expired sessions. The dictionary is ordered by age."""
        while self._sessions:
            first = next(iter(self._sessions))
            if self._sessions[first].until_ms > now_ms:
                break
            del self._sessions[first]


def key_in(cookies: str, name: str = COOKIE) -> str:
    """The value of a cookie in a Cookie header; empty if there is none, or more than one."""
    pairs = (part.strip().partition("=") for part in cookies.split(";"))
    keys = [value.strip() for given, _, value in pairs if given == name]
    return keys[0] if len(keys) == 1 else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def set_cookie(
    value: str | None, path: str, secure: bool, kind: CookieKind = SESSION, same_site: str = "Strict"
) -> str:
    """A Set-Cookie header. ``key`` None deletes the cookie."""
    age = kind.seconds if value is not None else 0
    parts = [
        f"{kind.name}={value or ''}",
        f"Path={path or '/'}",
        f"Max-Age={age}",
        "HttpOnly",
        f"SameSite={same_site}",
    ]
    return "; ".join([*parts, "Secure"] if secure else parts)
