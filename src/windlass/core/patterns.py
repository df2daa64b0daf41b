"""Patterns in searches: ``*`` stands for any text, ``?`` for one character, everything else for itself."""

from __future__ import annotations

from fnmatch import fnmatchcase


def to_glob(pattern: str) -> str:
    """``pattern`` as a glob in which brackets are not special (for ``fnmatch`` and SQL's ``GLOB``)."""
    return pattern.replace("[", "[[]")


def shortest_fit(pattern: str) -> int:
    """The length of the shortest text that matches ``pattern``."""
    return len(pattern) - pattern.count("*")


def matches(text: str, pattern: str) -> bool:
    """Whether ``text`` matches ``pattern``."""
    if shortest_fit(pattern) > len(text):  # a very long pattern would take seconds to prepare
        return False
    return fnmatchcase(text, to_glob(pattern))
