"""Sign-in through a proxy, an OpenID provider or the host application."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from windlass.core.patterns import matches
from windlass.dashboard.users import Identity
from windlass.errors import ConfigError

if TYPE_CHECKING:
    from windlass.dashboard.users import Role

_SECRET_CHARACTERS = 16
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Which users and groups are operators and readers; ``*`` and ``?`` match. Everyone else is refused."""

    operator_users: Sequence[str] = ()
    operator_groups: Sequence[str] = ()
    reader_users: Sequence[str] = ()
    reader_groups: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("operator_users", "operator_groups", "reader_users", "reader_groups"):
            if isinstance(getattr(self, name), str):
                raise ConfigError(f"roles.{name}", "a list of names", getattr(self, name))

    def identity(self, name: str, groups: Iterable[str] = ()) -> Identity | None:
        """The user with their highest role; None if they have none."""
        mine = tuple(groups)
        role: Role
        for role, users, allowed in (
            ("operator", self.operator_users, self.operator_groups),
            ("reader", self.reader_users, self.reader_groups),
        ):
            if name and (_any(users, [name]) or _any(allowed, mine)):
                return Identity(name, role, mine)
        return None


def _any(patterns: Iterable[str], names: Sequence[str]) -> bool:
    return any(matches(name, pattern) for pattern in patterns for name in names)


def _address(hop: str) -> str | None:
    """The address in a forwarding header, without port or brackets; None if it is invalid."""
    text = hop.strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedProxy:
    """A proxy in front of this server that reports the client's address and the signed-in user.

    ``addresses`` are addresses or networks of the proxy. With ``secret``, the proxy must also send it in
    ``secret_header``, so that another program on its machine is not trusted. With ``user_header=None``, only
    the client's address is used.
    """

    addresses: Sequence[str]
    user_header: str | None = "X-Forwarded-User"
    groups_header: str | None = "X-Forwarded-Groups"
    secret: str | None = field(default=None, repr=False)
    secret_header: str = "X-Windlass-Proxy-Secret"
    roles: Roles = field(default_factory=Roles)

    def __post_init__(self) -> None:
        if isinstance(self.addresses, str) or not self.addresses:
            raise ConfigError("proxy.addresses", "a list of addresses or networks", self.addresses)
        if self.secret is not None and len(self.secret) < _SECRET_CHARACTERS:
            raise ConfigError("proxy.secret", f"a text of {_SECRET_CHARACTERS} characters at least")
        self._networks()

    def _networks(self) -> list[Network]:
        try:
            return [ipaddress.ip_network(address) for address in self.addresses]
        except ValueError:
            raise ConfigError("proxy.addresses", "addresses or networks such as 10.0.0.0/8") from None

    @property
    def own_headers(self) -> frozenset[str]:
        """The headers that only the proxy may send."""
        names = (self.user_header, self.groups_header, self.secret_header)
        return frozenset(name.lower() for name in names if name)

    def knows(self, address: str) -> bool:
        """Whether it is an address of the proxy."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._networks())

    def sent(self, peer: str, headers: Mapping[str, str]) -> bool:
        """Whether the proxy sent the request."""
        if not self.knows(peer):
            return False
        given = headers.get(self.secret_header.lower(), "")
        return self.secret is None or hmac.compare_digest(given.encode("latin-1"), self.secret.encode())

    def client(self, peer: str, headers: Mapping[str, str]) -> str:
        """The client's address: the last one of X-Forwarded-For that is not the proxy's own.

        If it is not an address, the proxy's address is used. Ports are removed; otherwise each connection of
        a client would count as another client.
        """
        hops = [_address(hop.strip()) for hop in headers.get("x-forwarded-for", "").split(",") if hop.strip()]
        for hop in reversed(hops):
            if hop is None or not self.knows(hop):
                return hop or peer
        return (hops[0] if hops else None) or peer

    def user(self, headers: Mapping[str, str]) -> Identity | None:
        """The user who signed in at the proxy."""
        if self.user_header is None:
            return None
        named = headers.get((self.groups_header or "").lower(), "").split(",")
        groups = [group.strip() for group in named if group.strip()]
        return self.roles.identity(headers.get(self.user_header.lower(), ""), groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenID:
    """Sign-in at an OpenID Connect provider. Needs ``windlass[oidc]``.

    ``public_url`` is where browsers reach this dashboard. Register
    ``<public_url>/api/session/openid/callback`` at the provider. ``user_claim`` names the user: choose a
    claim that users cannot change.
    """

    issuer: str
    client_id: str
    public_url: str
    client_secret: str | None = field(default=None, repr=False)
    scopes: Sequence[str] = ("openid", "profile", "email")
    user_claim: str = "sub"
    groups_claim: str = "groups"
    roles: Roles = field(default_factory=Roles)

    def __post_init__(self) -> None:
        for name in ("issuer", "public_url"):
            url = urlsplit(getattr(self, name))
            local = url.hostname in ("localhost", "127.0.0.1", "::1")
            if url.scheme != "https" and not (url.scheme == "http" and local):
                raise ConfigError(f"openid.{name}", "an address that begins with https://")

    @property
    def redirect_uri(self) -> str:
        """Where the provider redirects browsers."""
        return f"{self.public_url.rstrip('/')}/api/session/openid/callback"
