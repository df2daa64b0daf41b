"""Memory limits of child processes.

Two ways. ``rlimit`` (the default) caps the child's private writable memory (``RLIMIT_DATA``; ``RLIMIT_AS``,
the address space, where the first is not enforced): an allocation over it raises ``MemoryError`` in the
handler, or makes native code abort. ``rss`` lets the child allocate what it likes and measures what it really
uses; the parent kills it when that is over the limit. Neither is a wall against hostile code.
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
    """A limit in bytes (``None``: no limit), or ``ConfigError``."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < MIN_MEMORY_LIMIT:
        raise ConfigError(option, f"at least {MIN_MEMORY_LIMIT} bytes ({MIN_MEMORY_LIMIT // MB} MB)", value)
    return value


def check_memory_mode(value: object) -> MemoryMode:
    """A mode that works on this system, or ``ConfigError``."""
    if value == "rlimit":
        return "rlimit"
    if value == "rss" and rss_bytes(os.getpid()) is not None:
        return "rss"
    raise ConfigError("memory_mode", "'rlimit', or 'rss' where /proc shows memory use", value)


def show_limit(limit: int) -> str:
    """A limit for people."""
    return f"{limit // MB} MB" if limit % MB == 0 else f"{limit} bytes"


def limit_memory(limit: int) -> Callable[[], None]:
    """Cap this process; the returned function lifts the cap again, so that a failure can be reported."""
    which = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    before = resource.getrlimit(which)
    hard = before[1]
    resource.setrlimit(which, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))

    def lift() -> None:
        resource.setrlimit(which, before)

    return lift


def rss_bytes(pid: int) -> int | None:
    """The resident memory of a process, where ``/proc`` shows it; ``None`` when it cannot be known."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return None
