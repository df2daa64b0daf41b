"""Pause Python's cyclic garbage collection while code creates many objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage() -> Iterator[None]:
    """Disable the cyclic garbage collector in the block.

    For code that creates very many objects of which none is garbage: the search would take longer than the
    work itself.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
