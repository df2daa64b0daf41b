"""The settings of a ``file://`` URL: directory, namespace, durability, timeout, mode."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from windlass.backend.local.modes import PRIVATE, parse_mode
from windlass.backend.urls import DEFAULT_NAMESPACE, BackendUrl
from windlass.errors import ConfigError

Synchronous = Literal["full", "off"]


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The settings of a store. Clients with equal settings share threads and memory."""

    path: str
    namespace: str = DEFAULT_NAMESPACE
    synchronous: Synchronous = "full"
    #: Seconds that a call may wait before it raises ``StorageError``.
    timeout: float = 5.0
    #: The mode of the files if the store is created.
    mode: int = field(default=PRIVATE, compare=False)

    @property
    def directory(self) -> str:
        """The directory of this namespace."""
        return os.path.join(self.path, self.namespace)

    @property
    def shown(self) -> str:
        """The name of the store in messages."""
        return f"directory {self.path!r}"


def parse(url: BackendUrl) -> FileSettings:
    """Return the settings of ``url``. Raises ``ConfigError``."""
    url.check_options({"mode", "synchronous", "timeout"})
    if url.host:
        raise ConfigError("url", "like file:///absolute/directory (three slashes)", url.text)
    if not url.path.strip("/") or "\0" in url.path:
        raise ConfigError("url", "a path to a directory, like file:///var/lib/jobs", url.text)
    return FileSettings(
        path=os.path.realpath(url.path),
        namespace=url.namespace,
        synchronous=_synchronous(url.options.get("synchronous", "full")),
        timeout=url.timeout(),
        mode=parse_mode(url.options.get("mode")),
    )


def _synchronous(value: str) -> Synchronous:
    if value == "full":
        return "full"
    if value == "off":
        return "off"
    raise ConfigError("synchronous", "full or off", value)
