"""What can be told of a store from outside, without opening it: for ``windlass doctor``.

A backend whose store is made of files may offer two functions beside its ``from_url``:
``examine(url, deep)`` yields what it finds in them, ``repair(url)`` mends what can be mended and tells what
it did. Both may be called while processes use the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from windlass.backend.urls import backend_module, parse_url
from windlass.errors import UnsupportedByBackendError

Level = Literal["fact", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen, and what to do about it."""

    level: Level
    text: str
    advice: str = ""


def fact(text: str) -> Finding:
    """Good to know."""
    return Finding("fact", text)


def warning(text: str, advice: str) -> Finding:
    """Somebody should look at it."""
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
    """Mend the files of a store; ``UnsupportedByBackendError`` where that cannot be done."""
    mend = getattr(backend_module(url), "repair", None)
    if mend is None:
        raise UnsupportedByBackendError(parse_url(url).scheme, "repair", "restore a backup instead")
    found: Iterable[Finding] = mend(parse_url(url))
    return list(found)
