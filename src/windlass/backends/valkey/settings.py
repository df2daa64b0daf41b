"""Parse and check the URL of a store on Valkey or Redis."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from windlass.backend.urls import BackendUrl
from windlass.errors import ConfigError

Kind = Literal["standalone", "cluster", "sentinel"]

_OPTIONS = {"timeout", "connections", "ca", "cert", "key", "verify", "sentinel_username", "sentinel_password"}

#: Options that name files.
_FILES = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Paths of certificates and keys, and how the server's certificate is verified."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: str = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValkeySettings:
    """How to reach the server or servers."""

    name: str
    kind: Kind
    addresses: tuple[tuple[str, int], ...]
    namespace: str
    tls: Tls | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    primary: str = ""
    #: The most time for a request. A listening connection is pinged after twice this time.
    timeout_s: float = 5.0
    connections: int = 8
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)


def parse(url: BackendUrl) -> ValkeySettings:
    """The settings in ``url``. Raises ``ConfigError``."""
    url.check_options(_OPTIONS)
    base, _, suffix = url.scheme.partition("+")
    tls = base in ("valkeys", "rediss")
    kind: Kind = "cluster" if suffix == "cluster" else "sentinel" if suffix == "sentinel" else "standalone"
    if url.username is not None and url.password is None:
        raise ConfigError(
            "url",
            message=f"the url {url.shown!r} has a user but no password: write user:password@ or :password@ "
            "before the host",
            got=url.shown,
        )
    primary, db = _path(url, kind)
    options = url.options
    return ValkeySettings(
        name=base.removesuffix("s") if tls and base == "valkeys" else "redis" if base == "rediss" else base,
        kind=kind,
        addresses=tuple(
            _address(host, 26379 if kind == "sentinel" else 6379) for host in url.host.split(",")
        ),
        namespace=url.namespace,
        tls=_tls(options, base, tls),
        username=url.username,
        password=url.password or None,
        db=db,
        primary=primary,
        timeout_s=_number(options.get("timeout", "5"), "timeout", 0.05, 3_600),
        connections=int(_number(options.get("connections", "8"), "connections", 1, 1_000)),
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
    )


def _path(url: BackendUrl, kind: Kind) -> tuple[str, int]:
    parts = [part for part in url.path.split("/") if part]
    primary = ""
    if kind == "sentinel":
        if not parts:
            raise ConfigError("url", "like valkey+sentinel://host1,host2/name-of-the-primary/0", url.shown)
        primary = parts.pop(0)
    if not parts:
        return primary, 0
    number = len(parts) == 1 and parts[0].isascii() and parts[0].isdigit() and len(parts[0]) <= 6
    if not number or (kind == "cluster" and parts[0] != "0"):
        raise ConfigError(
            "url",
            message=f"the url {url.shown!r} does not end with the number of a database (in a cluster, 0)",
            got=url.shown,
        )
    return primary, int(parts[0])


def _address(text: str, default_port: int) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text.split("]")[-1] else (text, "", "")
    return (host or text).strip("[]") or "127.0.0.1", int(port) if port else default_port


def _number(text: str, option: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not low <= value <= high:
        raise ConfigError(option, f"a number from {low:g} to {high:g}", text)
    return value


def _tls(options: dict[str, str], base: str, tls: bool) -> Tls | None:
    given = sorted({*_FILES, "verify"} & options.keys())
    if not tls:
        if given:
            raise ConfigError(given[0], message=f"?{given[0]}= needs TLS: begin the URL with {base}s")
        return None
    verify = options.get("verify", "full")
    if verify not in ("full", "ca", "none"):
        raise ConfigError("verify", "full, ca (no check of the host's name) or none", verify)
    return Tls(verify=verify, **{name: _readable(name, options[name]) for name in given if name != "verify"})


def _readable(option: str, path: str) -> str:
    if not os.access(path, os.R_OK):
        raise ConfigError(option, "the path of a file that can be read", path)
    return path
