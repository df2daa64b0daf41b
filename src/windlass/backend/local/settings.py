"""The settings that every store on this machine has, and how they are read from its URL."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from windlass.backend.local.modes import PRIVATE, parse_mode
from windlass.backend.urls import DEFAULT_NAMESPACE, BackendUrl
from windlass.errors import ConfigError

Synchronous = Literal["full", "normal", "off"]


@dataclass(frozen=True)
class LocalSettings:
    """The settings of a store. Equal settings mean the same store: its clients share threads and memory."""

    #: What ``path`` is, in messages, and the values of ``synchronous`` that the store has.
    what: ClassVar[str]
    levels: ClassVar[tuple[Synchronous, ...]]

    path: str
    namespace: str = DEFAULT_NAMESPACE
    synchronous: Synchronous = "full"
    #: Seconds that a call may wait before it raises ``StorageError``.
    timeout: float = 5.0
    #: The mode of the files if the store is created.
    mode: int = field(default=PRIVATE, compare=False)

    @property
    def shown(self) -> str:
        """The name of the store in messages."""
        return f"{self.what} {self.path!r}"

    @classmethod
    def at(cls, path: str, url: BackendUrl) -> Self:
        """The settings of ``url``, whose store is at ``path``. Raises ``ConfigError``."""
        url.check_options({"mode", "synchronous", "timeout"})
        given = url.options.get("synchronous", "full")
        synchronous = next((level for level in cls.levels if level == given), None)
        if synchronous is None:
            raise ConfigError("synchronous", " or ".join(cls.levels), given)
        mode = parse_mode(url.options.get("mode"))
        return cls(os.path.realpath(path), url.namespace, synchronous, url.timeout(), mode)
