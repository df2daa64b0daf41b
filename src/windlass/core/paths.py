"""The special paths of production, by name, in one list.

A special path does for some requests, in fewer steps, what the general path does for all. Code that enters it
says so with ``took``. The conformance suite counts every path on every store that has it, and a whole run of
the suite fails when one of them was never taken: a path that no test takes is a path that no test checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Path(NamedTuple):
    """Which stores have the path (their names, as in a URL), and what it does."""

    stores: tuple[str, ...]
    what: str


#: Every special path. Keep it sorted; say in one line what the path does that the general one does not.
PATHS: Mapping[str, Path] = MappingProxyType(
    {
        "sqlite.add_alone": Path(("sqlite",), "one new plain job in a transaction of its own"),
    }
)

#: How often each path was taken in this process. Threads may lose a count to each other; only zero matters.
counts: dict[str, int] = dict.fromkeys(PATHS, 0)


def took(name: str) -> None:
    """Count that the path ``name`` of ``PATHS`` is taken."""
    counts[name] += 1
