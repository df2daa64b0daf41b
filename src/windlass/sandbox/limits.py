"""Memory limits of child processes.

There are two modes. ``rlimit`` (the default) limits the child's private writable memory (``RLIMIT_DATA``; the
address space, ``RLIMIT_AS``, where that is not enforced). An allocation over the limit raises ``MemoryError``
in the handler, or makes native code abort. ``rss`` measures the resident memory; the parent kills the child
when it exceeds the limit. Neither protects against hostile code.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Literal

from windlass.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

MemoryMode = Literal["rlimit", "rss"]

MB = 1024 * 1024
#: A bare child needs about half of this; below it nothing would run.
MIN_MEMORY_LIMIT = 64 * MB


def check_memory_limit(value: object, option: str = "memory_limit") -> int | None:
    """Return a limit in bytes (None: no limit). Raises ``ConfigError``."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < MIN_MEMORY_LIMIT:
        raise ConfigError(option, f"at least {MIN_MEMORY_LIMIT} bytes ({MIN_MEMORY_LIMIT // MB} MB)", value)
    return value


def check_memory_mode(value: object) -> MemoryMode:
    """Return a mode that works on this system. Raises ``ConfigError``."""
    if value == "rlimit":
        return "rlimit"
    if value == "rss" and rss_bytes(os.getpid()) is not None:
        return "rss"
    raise ConfigError("memory_mode", "'rlimit', or 'rss' where /proc shows memory use", value)


def show_limit(limit: int) -> str:
    """Return a limit as text."""
    return f"{limit // MB} MB" if limit % MB == 0 else f"{limit} bytes"


def limit_memory(limit: int) -> Callable[[], None]:
    """Limit the memory of this process. Returns a function that lifts the limit, to report a failure."""
    which = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    before = resource.getrlimit(which)
    hard = before[1]
    resource.setrlimit(which, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))

    def lift() -> None:
        resource.setrlimit(which, before)

    return lift


def rss_bytes(pid: int) -> int | None:
    """Return the resident memory of a process; None when ``/proc`` does not show it."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return None
