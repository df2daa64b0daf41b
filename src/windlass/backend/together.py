"""Several questions to a store at the same time: it answers them in one go, and the caller waits once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")
#: Questions that are under way at once.
MOST = 32


async def at_once(questions: Iterable[Coroutine[Any, Any, T]], most: int = MOST) -> list[T]:
    """The answers, in the order of the questions; at most ``most`` are under way."""
    left = iter(questions)
    found: list[T] = []
    while part := list(islice(left, most)):
        found += await asyncio.gather(*part)
    return found
