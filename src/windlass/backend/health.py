"""What can be said about a store from outside, without opening it: for ``windlass doctor``.

A backend whose store is made of files may offer two functions beside its ``from_url``:
``examine(url, deep)`` yields what it finds in them, ``repair(url)`` sets aside what cannot be read and tells
what it did. Both may be called while processes use the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from windlass.backend.urls import backend_module, parse_url

Level = Literal["fact", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen, and what to do about it."""

    level: Level
    text: str
    advice: str = ""
    #: What it is about, for programs: the stable name of the check, and what it concerns.
    check: str = ""
    queue: str | None = None
    worker: str | None = None
    group: str | None = None
    #: How many jobs, and since when, where that is known.
    count: int | None = None
    since_ms: int | None = None


def fact(text: str) -> Finding:
    """Good to know."""
    return Finding("fact", text)


def warning(text: str, advice: str) -> Finding:
    """Something that an operator should look at."""
    return Finding("warning", text, advice)


def problem(text: str, advice: str = "") -> Finding:
    """Something is wrong."""
    return Finding("problem", text, advice)


def examine(url: str, *, deep: bool) -> list[Finding]:
    """What the files of a store look like, if it has any of its own. ``deep``: it may take long."""
    look = getattr(backend_module(url), "examine", None)
    found: Iterable[Finding] = look(parse_url(url), deep) if look is not None else ()
    return list(found)


def repair(url: str) -> list[Finding]:
    """Set aside what cannot be read of the files of a store, if it has any of its own."""
    put_right = getattr(backend_module(url), "repair", None)
    found: Iterable[Finding] = put_right(parse_url(url)) if put_right is not None else ()
    return list(found)
