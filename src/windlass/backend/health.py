"""Examine and repair the files of a store without opening it, for ``windlass doctor``.

A backend whose store consists of files may define two functions beside its ``from_url``:
``examine(url, deep)`` yields findings about the files. ``repair(url)`` sets aside what cannot be read, and
yields what it did. Both may be called while processes use the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from windlass.backend.urls import backend_module, parse_url

Level = Literal["fact", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation about a store, and what to do about it."""

    level: Level
    text: str
    advice: str = ""
    #: For programs: the stable name of the check, and the queue, worker or group that it concerns.
    check: str = ""
    queue: str | None = None
    worker: str | None = None
    group: str | None = None
    #: The number of jobs that are affected, and since when, if known.
    count: int | None = None
    since_ms: int | None = None


def fact(text: str) -> Finding:
    """A finding that needs no action."""
    return Finding("fact", text)


def warning(text: str, advice: str) -> Finding:
    """A finding that an operator should look at."""
    return Finding("warning", text, advice)


def problem(text: str, advice: str = "") -> Finding:
    """A finding that must be fixed."""
    return Finding("problem", text, advice)


def examine(url: str, *, deep: bool) -> list[Finding]:
    """Return findings about the files of a store; none if it has no files. ``deep`` checks may take long."""
    examine_files = getattr(backend_module(url), "examine", None)
    found: Iterable[Finding] = examine_files(parse_url(url), deep) if examine_files is not None else ()
    return list(found)


def repair(url: str) -> list[Finding]:
    """Set aside what cannot be read in the files of a store, and return what was done."""
    repair_files = getattr(backend_module(url), "repair", None)
    found: Iterable[Finding] = repair_files(parse_url(url)) if repair_files is not None else ()
    return list(found)
