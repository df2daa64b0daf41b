"""From a URL to a backend, imported only when asked for.

``memory://`` · ``sqlite:///relative.db`` · ``sqlite:////absolute.db`` · ``file:///directory`` ·
``valkey://host:port/db``, ``redis://`` (+``s`` for TLS, ``+cluster``, ``+sentinel``) ·
``amqp://user:password@host:port/vhost``, ``amqps://``. Every URL takes ``?namespace=``, so that two
applications or two tests on one store never meet.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from types import ModuleType
from urllib.parse import parse_qsl, unquote, urlsplit

from windlass.backend.protocol import Backend
from windlass.core.ids import check_queue_name, is_text
from windlass.core.options import check_known
from windlass.errors import ConfigError

DEFAULT_URL = "sqlite:///windlass.db"
DEFAULT_NAMESPACE = "default"

#: scheme -> (module, what to install when its import fails)
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


@dataclass(frozen=True, slots=True)
class BackendUrl:
    """A parsed URL. ``options`` are the query's settings other than the namespace."""

    text: str
    scheme: str
    host: str
    path: str
    namespace: str = DEFAULT_NAMESPACE
    options: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The URL as errors and logs may show it: without what is secret."""
        return hide_secrets(self.text)

    def check_options(self, known: set[str]) -> None:
        """Refuse settings that the backend does not know."""
        check_known(self.options, known, f"setting of {self.scheme}:// URLs")

    def timeout(self) -> float:
        """Seconds that a call of a store on this machine may take: ``?timeout=``, or 5."""
        value = self.options.get("timeout", "5")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0.01 <= seconds <= 3_600:
            raise ConfigError("timeout", "a number of seconds from 0.01 to 3600", value)
        return seconds


def parse_url(url: str) -> BackendUrl:
    """Split and check ``url``, or ``ConfigError``."""
    if not isinstance(url, str) or "://" not in url:
        raise ConfigError("url", "like sqlite:///jobs.db or memory://", url)
    if not is_text(url):
        raise ConfigError("url", "proper Unicode text")
    try:
        parts = urlsplit(url)
    except ValueError as exc:  # brackets that are no address, say
        raise ConfigError("url", f"a proper URL ({exc})", hide_secrets(url)) from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    namespace = check_queue_name(query.pop("namespace", DEFAULT_NAMESPACE), "namespace")
    return BackendUrl(url, parts.scheme, parts.netloc, unquote(parts.path), namespace, query)


def hide_secrets(url: str) -> str:
    """``url`` with stars in place of its credentials and of settings whose name speaks of a password."""
    without_user = re.sub(r"://[^/?#]*@", "://***@", url)
    return re.sub(r"([?&][^=&]*password[^=&]*=)[^&]*", r"\1***", without_user, flags=re.IGNORECASE)


def register_scheme(scheme: str, module: str, install: str = "") -> None:
    """Make URLs that begin with ``scheme://`` open ``module.from_url(BackendUrl)``."""
    _SCHEMES[scheme] = (module, install)


def backend_module(url: str) -> ModuleType:
    """The module that knows the scheme of ``url``, or ``ConfigError``."""
    parsed = parse_url(url)
    found = _SCHEMES.get(parsed.scheme)
    if found is None:
        raise ConfigError("url", f"one of {', '.join(f'{s}://' for s in sorted(_SCHEMES))}", parsed.shown)
    module, install = found
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        advice = f"pip install '{install}' first" if install else "its module does not load"
        raise ConfigError("url", f"usable here: {advice} ({exc})", parsed.shown) from exc


def open_backend(url: str) -> Backend:
    """The backend that ``url`` names, not yet opened."""
    backend: Backend = backend_module(url).from_url(parse_url(url))
    return backend
