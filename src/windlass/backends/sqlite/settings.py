"""The settings in a ``sqlite://`` URL: file, namespace, durability, timeout and file mode."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from windlass.backend.local.modes import PRIVATE, parse_mode
from windlass.backend.urls import DEFAULT_NAMESPACE, BackendUrl
from windlass.errors import ConfigError

Synchronous = Literal["full", "normal"]


@dataclass(frozen=True, slots=True)
class SqliteSettings:
    """The settings of a database. Clients with equal settings share threads and connections."""

    path: str
    namespace: str = DEFAULT_NAMESPACE
    synchronous: Synchronous = "full"
    #: Seconds that a call may wait before it raises ``StorageError``.
    timeout: float = 5.0
    #: The file mode for a store that does not exist yet.
    mode: int = field(default=PRIVATE, compare=False)

    @property
    def shown(self) -> str:
        """The name of the file for messages."""
        return f"database {self.path!r}"


def parse(url: BackendUrl) -> SqliteSettings:
    """Return the settings of ``url``; raises ``ConfigError``."""
    url.check_options({"mode", "synchronous", "timeout"})
    if url.host:
        raise ConfigError(
            "url", "like sqlite:///relative.db or sqlite:////absolute.db (three slashes)", url.text
        )
    path = url.path.removeprefix("/")
    if not path or path.endswith("/") or "\0" in path:
        raise ConfigError("url", "a path to a file, like sqlite:///jobs.db", url.text)
    if path == ":memory:":
        raise ConfigError("url", "a path to a file (for jobs in memory use memory://)", url.text)
    return SqliteSettings(
        path=os.path.realpath(path),
        namespace=url.namespace,
        synchronous=_synchronous(url.options.get("synchronous", "full")),
        timeout=url.timeout(),
        mode=parse_mode(url.options.get("mode")),
    )


def _synchronous(value: str) -> Synchronous:
    if value == "full":
        return "full"
    if value == "normal":
        return "normal"
    raise ConfigError("synchronous", "full or normal", value)
