"""Open the backend of a URL. The module of a backend is imported only when it is needed.

``memory://`` · ``sqlite:///relative.db`` · ``sqlite:////absolute.db`` · ``file:///directory`` ·
``valkey://host:port/db``, ``redis://`` (+``s`` for TLS, ``+cluster``, ``+sentinel``) ·
``amqp://user:password@host:port/vhost``, ``amqps://``. Every URL takes ``?namespace=``, which separates
applications that share a store.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from windlass.backend.protocol import Backend
from windlass.core.ids import check_queue_name, is_text
from windlass.core.option_values import check_known
from windlass.core.text import printable
from windlass.errors import ConfigError

DEFAULT_URL = "sqlite:///windlass.db"
DEFAULT_NAMESPACE = "default"

#: scheme -> (module, the package to install if its import fails)
_SCHEMES = {
    "memory": ("windlass.backends.memory", ""),
    "sqlite": ("windlass.backends.sqlite", ""),
    "file": ("windlass.backends.file", ""),
    "amqp": ("windlass.backends.amqp", "windlass[amqp]"),
    "amqps": ("windlass.backends.amqp", "windlass[amqp]"),
    **{
        family + ending: ("windlass.backends.valkey", "windlass[valkey]")
        for family in ("valkey", "redis")
        for ending in ("", "s", "+cluster", "s+cluster", "+sentinel", "s+sentinel")
    },
}


#: Schemes whose URLs contain no host and no credentials. ``@`` has no meaning in them.
_LOCAL: Final = frozenset({"memory", "sqlite", "file"})
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")
#: ``host``, ``host:port`` or ``[address]:port``. Commas separate the hosts of a cluster.
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\[\]:@\s\\]*)(?::([0-9]{1,5}))?")
_SECRET_SETTING: Final = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)
_HIDDEN: Final = "***"


@dataclass(frozen=True, slots=True, repr=False)
class BackendUrl:
    """A parsed URL. ``options`` are the settings of the query except the namespace.

    ``username`` and ``password`` are None if the URL does not contain them.
    """

    text: str
    scheme: str
    #: The server without credentials: one host, or several separated by commas.
    host: str
    path: str
    namespace: str = DEFAULT_NAMESPACE
    options: dict[str, str] = field(default_factory=dict)
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"<BackendUrl {self.shown}>"

    @property
    def shown(self) -> str:
        """The URL without secrets, for errors and logs."""
        return hide_secrets(self.text)

    def check_options(self, known: set[str]) -> None:
        """Raise ``ConfigError`` for a setting that is not in ``known``."""
        check_known(self.options, known, f"setting of {self.scheme}:// URLs")

    def timeout(self) -> float:
        """The ``?timeout=`` of a call in seconds, 5 by default. Used by stores on this machine."""
        value = self.options.get("timeout", "5")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0.01 <= seconds <= 3_600:
            raise ConfigError("timeout", "a number of seconds from 0.01 to 3600", value)
        return seconds


def default_url() -> str:
    """The URL of the store that is used when none is named: ``$WINDLASS_URL``, or a file in this folder.

    An empty variable is refused. It is mostly one that a deployment did not fill in, and jobs in a local file
    would be missed.
    """
    url = os.environ.get("WINDLASS_URL", DEFAULT_URL)
    if not url:
        advice = f"set it to the URL of your store, or unset it to use {DEFAULT_URL}"
        raise ConfigError("url", message=f"$WINDLASS_URL is empty: {advice}")
    return url


def parse_url(url: str) -> BackendUrl:
    """Split and check ``url``. Raises ``ConfigError``; it leaves out parts that may be a password."""
    if not isinstance(url, str):
        raise ConfigError("url", "like sqlite:///jobs.db or memory://", type(url).__name__)
    found = _SCHEME.match(url)
    if found is None:
        raise ConfigError(
            "url",
            message="url must begin with the kind of store, as in sqlite:///jobs.db, "
            "valkey://localhost:6379 or memory://",
        )
    if not is_text(url) or printable(url) != url:
        raise _unreadable(url, "it has control characters, or is not valid Unicode")
    try:
        parts = urlsplit(url)
    except ValueError:  # for example brackets without an address
        raise _unreadable(url, "it is not a valid URL") from None
    credentials, hosts = "", parts.netloc
    if parts.scheme not in _LOCAL:
        credentials, hosts = _authority(url, parts)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    namespace = check_queue_name(query.pop("namespace", DEFAULT_NAMESPACE), "namespace")
    username, colon, password = credentials.partition(":")
    return BackendUrl(
        url,
        parts.scheme,
        hosts,
        unquote(parts.path),
        namespace,
        query,
        unquote(username) if username else None,
        unquote(password) if colon else None,
    )


def _authority(url: str, parts: SplitResult) -> tuple[str, str]:
    """The credentials and the hosts of a server's URL.

    A ``/``, ``?`` or ``#`` in a password ends the authority too early: then the ``@`` is in a later part.
    """
    if "@" in parts.path or "@" in parts.query or "#" in url:
        raise _unreadable(
            url,
            "encode special characters of the user, the password and the path: "
            "/ is %2F, ? is %3F, # is %23 and @ is %40",
        )
    credentials, _, hosts = parts.netloc.rpartition("@")
    for host in hosts.split(","):
        fits = _HOST.fullmatch(host)
        if fits is None or (fits[1] and not 0 < int(fits[1]) < 65_536):
            raise _unreadable(url, "write hosts as host:port, with a port from 1 to 65535")
    return credentials, hosts


def _unreadable(url: str, why: str) -> ConfigError:
    """The error for a URL of which only the scheme may be shown."""
    return ConfigError(
        "url", message=f"cannot use the url {_only_scheme(url)!r}: {why}", got=_only_scheme(url)
    )


def _only_scheme(url: str) -> str:
    found = _SCHEME.match(url)
    return f"{found[1]}://{_HIDDEN}" if found else _HIDDEN


def hide_secrets(url: str) -> str:
    """``url`` with its credentials, and settings such as ``password`` or ``token``, replaced by stars.

    A URL that cannot be parsed is reduced to its scheme. Text that is not a URL is returned unchanged, or as
    stars if it contains an ``@``.
    """
    if "://" not in url:
        return _HIDDEN if "@" in url else url
    try:
        parse_url(url)
    except ConfigError:
        return _only_scheme(url)
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in _LOCAL:
        _, at, place = rest.rpartition("@")
        rest = f"{_HIDDEN}@{place}" if at else rest
    return _SECRET_SETTING.sub(rf"\1{_HIDDEN}", f"{scheme}://{rest}")


def register_scheme(scheme: str, module: str, install: str = "") -> None:
    """Open URLs that begin with ``scheme://`` with ``module.from_url(BackendUrl)``.

    ``install`` is the package to name in the error if the import of ``module`` fails.
    """
    _SCHEMES[scheme] = (module, install)


def _known_schemes(scheme: str) -> str:
    """Advice for a URL with an unknown scheme: which one was probably meant, or all known ones."""
    if scheme.startswith(("postgres", "mysql", "mariadb", "mongodb")):
        instead = "sqlite:///jobs.db on one machine, valkey://host on many"
        return f"{scheme} is not supported yet; use {instead}"
    near = difflib.get_close_matches(scheme, _SCHEMES, 1)
    if near:
        return f"did you mean {near[0]}://?"
    return f"known are {', '.join(f'{known}://' for known in sorted(_SCHEMES))}"


def backend_module(url: str) -> ModuleType:
    """Import the module for the scheme of ``url``. Raises ``ConfigError`` if there is none."""
    parsed = parse_url(url)
    found = _SCHEMES.get(parsed.scheme)
    if found is None:
        raise ConfigError(
            "url",
            message=f"there is no store for the url {parsed.shown!r}: {_known_schemes(parsed.scheme)}",
            got=parsed.shown,
        )
    module, install = found
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        advice = f"; run: pip install '{install}'" if install else ""
        raise ConfigError(
            "url", message=f"cannot open {parsed.shown!r}: {exc}{advice}", got=parsed.shown
        ) from exc


def open_backend(url: str) -> Backend:
    """Return the backend for ``url``, not yet opened. Raises ``ConfigError`` if there is none."""
    backend: Backend = backend_module(url).from_url(parse_url(url))
    return backend
