"""The settings of a dashboard: users, visible queues, limits."""

from __future__ import annotations

import hmac
import logging
import warnings
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from windlass._renamed import old_names
from windlass.core.masks import DEFAULT_MASK as DEFAULT_MASK
from windlass.core.patterns import matches
from windlass.dashboard.signin import OpenID, TrustedProxy
from windlass.dashboard.users import Identity, Role
from windlass.errors import ConfigError

log = logging.getLogger("windlass.dashboard")

#: The length of 128 random bits. A token is looked up without counting, so it must be too long to guess.
_TOKEN_CHARACTERS = 22
#: The minimum of earlier releases. Such tokens still work, with a warning.
_OLD_TOKEN_CHARACTERS = 16
_PASSWORD_CHARACTERS = 8

#: Possible actions. ``limits`` are those of queues and groups; ``clear`` deletes many jobs.
Action = Literal[
    "read",
    "add",
    "retry",
    "trigger",
    "cancel",
    "delete",
    "change",
    "signal",
    "pause",
    "clear",
    "limits",
    "schedules",
    "workers",
    "marks",
    "audit",
]
ACTIONS: frozenset[str] = frozenset(get_args(Action))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Allows users by name or group some actions on some queues; ``*`` and ``?`` match.

    A rule with a user and a group applies to that user in that group. Without ``read`` no action is possible,
    because hidden queues are treated as missing.
    """

    user: str = "*"
    group: str | None = None
    queues: Sequence[str] = ("*",)
    actions: Collection[str] = ("read",)

    def __post_init__(self) -> None:
        unknown = set(self.actions) - ACTIONS - {"*"}
        if unknown or isinstance(self.actions, str):
            raise ConfigError("rules.actions", f"some of {', '.join(sorted(ACTIONS))}, or *", self.actions)
        if isinstance(self.queues, str) or not self.queues:
            raise ConfigError("rules.queues", "a list of names, such as ['mail', 'shop-*']", self.queues)

    def names(self, identity: Identity) -> bool:
        """Whether the rule applies to this user."""
        if not matches(identity.name, self.user):
            return False
        return self.group is None or any(matches(group, self.group) for group in identity.groups)

    def allows(self, action: str) -> bool:
        """Whether the rule includes the action."""
        return action in self.actions or "*" in self.actions


#: The application's own check of an ASGI scope. None refuses; a role or an ``Identity`` admits the caller.
AuthHook = Callable[[Mapping[str, Any]], "Answer | Awaitable[Answer]"]
Answer = Identity | Role | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The load that one server accepts. Rates are per client: the user if known, else the address."""

    body_bytes: int = 4_194_304
    query_bytes: int = 32_768
    #: Requests: this many at once, and this many more each second.
    burst: int = 200
    per_second: float = 50.0
    #: Changes, in the same way.
    change_burst: int = 100
    changes_per_second: float = 20.0
    #: Wrong passwords from one address, and for one account from addresses that it never signed in from.
    refusal_burst: int = 20
    refusals_per_second: float = 0.2
    account_burst: int = 100
    accounts_per_second: float = 1.0
    #: Open event streams, of all clients and of one.
    streams: int = 200
    streams_per_client: int = 20
    #: For our own server (``windlass dashboard``): seconds for the head of a request, for its body, and for
    #: a client to read the response.
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    read_seconds: float = 30.0
    #: Connections that wait for their clients, from all addresses. From one address (IPv6: one /64 network)
    #: this many in the middle of a request, and this many between two.
    connections: int = 1_000
    connections_per_address: int = 100
    #: Requests that are processed at the same time.
    requests: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """The validated arguments of ``create_app``."""

    operator_tokens: Mapping[str, str] = field(default_factory=dict)
    reader_tokens: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict)
    reader_users: Mapping[str, str] = field(default_factory=dict)
    auth: AuthHook | None = None
    read_only: bool = False
    mask: tuple[str, ...] = DEFAULT_MASK
    prefix: str = ""
    lake: str | None = None
    #: Names of visible queues, with ``*`` and ``?``; None: all.
    queues: tuple[str, ...] | None = None
    allowed_hosts: tuple[str, ...] = ()
    trusted_origins: tuple[str, ...] = ()
    #: Rules for users and queues. None: operators may do everything, readers may read. Empty: no rights.
    rules: tuple[Rule, ...] | None = None
    proxy: TrustedProxy | None = None
    openid: OpenID | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)
    audit_file: Path | None = None
    #: The URL of a job's trace in another tool: a template with ``{trace_id}`` and the like.
    trace_url: str = ""
    #: The names of all stores of this dashboard, and of this one; empty if there is only one.
    stores: tuple[str, ...] = ()
    store: str = ""

    def __post_init__(self) -> None:
        for option in ("operator_tokens", "reader_tokens"):
            for token in getattr(self, option).values():
                _check_token(option, token)
        for option in ("users", "reader_users"):
            for name, password in getattr(self, option).items():
                if not name or ":" in name or len(password) < _PASSWORD_CHARACTERS:
                    raise ConfigError(
                        option,
                        f"names without a colon, with passwords of at least {_PASSWORD_CHARACTERS} "
                        "characters",
                    )
        if self.prefix and (not self.prefix.startswith("/") or self.prefix.endswith("/")):
            raise ConfigError("prefix", "empty, or a path such as /jobs", self.prefix)
        if self.trace_url and not self.trace_url.startswith(("http://", "https://")):
            raise ConfigError(
                "trace_url", "an address such as https://traces.example/trace/{trace_id}", self.trace_url
            )

    @property
    def methods(self) -> list[str]:
        """The ways to sign in; empty if there is none, and only this machine is served."""
        found = ["token"] if self.operator_tokens or self.reader_tokens else []
        found += ["basic"] if self.users or self.reader_users else []
        found += ["openid"] if self.openid is not None else []
        found += ["proxy"] if self.proxy is not None and self.proxy.user_header is not None else []
        return found + (["hook"] if self.auth is not None else [])

    @property
    def has_form(self) -> bool:
        """Whether the pages have a sign-in form, and may be loaded before it. If not, no session exists."""
        return not {"token", "basic", "openid"}.isdisjoint(self.methods)

    def shows(self, queue: str) -> bool:
        """Whether this dashboard shows a queue."""
        return self.queues is None or any(matches(queue, pattern) for pattern in self.queues)

    def by_token(self, given: str) -> Identity | None:
        """The owner of a token. Compares every known token, to take the same time for each."""
        found: Identity | None = None
        for role, tokens in (("reader", self.reader_tokens), ("operator", self.operator_tokens)):
            for name, token in tokens.items():
                if _same(given, token):
                    found = Identity(name, "operator" if role == "operator" else "reader")
        return found

    def by_password(self, name: str, password: str) -> Identity | None:
        """The user of that name, if the password is correct."""
        known = self.users.get(name) or self.reader_users.get(name)
        if not _same(password, known or "-"):
            return None
        return None if known is None else Identity(name, "operator" if name in self.users else "reader")


def _check_token(option: str, token: object) -> None:
    """Refuse a token that can be guessed. Warn about one that the next release will refuse."""
    want = f"random texts of {_TOKEN_CHARACTERS} characters at least, such as secrets.token_urlsafe() makes"
    if not isinstance(token, str) or len(token) < _OLD_TOKEN_CHARACTERS:
        raise ConfigError(option, want)
    if len(token) < _TOKEN_CHARACTERS:
        advice = f"{option} must be {want}: the next release refuses shorter ones"
        log.warning("%s", advice)  # operators do not see deprecation warnings
        warnings.warn(advice, DeprecationWarning, stacklevel=5)


def to_tokens(given: str | Sequence[str] | Mapping[str, str] | None, name: str) -> dict[str, str]:
    """Tokens by the name in the audit log, from one text, several, or a mapping."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {name: given}
    if isinstance(given, Mapping):
        return dict(given)
    return {f"{name}-{number}": token for number, token in enumerate(given, 1)}


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
