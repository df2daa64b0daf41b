"""Turns a struct into another that differs only in its encoding.

**What.** The file store decodes a job from an array. The rest of the package uses a class with the same
fields that is encoded as a map. ``recast`` assigns ``__class__`` instead of making a second object of 36
fields.

**Why it is safe.** Python refuses to assign a class with another layout. And ``recast_to`` compares the names
and the order of the fields once, when the store is imported.

**Its plain twin**, ``plain``, makes the second object, field by field.

**What it wins**: 1.36 times as many jobs in a second of processor time when a directory with 40,000 jobs is
opened (median of 7 interleaved rounds, 1.23 to 1.44).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from windlass.speedups import enabled

A = TypeVar("A", bound=msgspec.Struct)
B = TypeVar("B", bound=msgspec.Struct)


def recast_to(new: type[B], old: type[A]) -> Callable[[A], B]:
    """Return a function that turns an ``old`` into a ``new``. The old value must not be used after that."""
    if new.__struct_fields__ != old.__struct_fields__:
        raise TypeError(f"{old.__name__} and {new.__name__} differ in their fields")

    def quick(value: A) -> B:
        value.__class__ = new  # type: ignore[assignment]
        return value  # type: ignore[return-value]

    def plain(value: A) -> B:
        return new(**msgspec.structs.asdict(value))

    return quick if enabled("recast") else plain
