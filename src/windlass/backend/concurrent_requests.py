"""Send several requests to a store concurrently, so that the caller waits only once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")
#: Requests in flight at once. One page of the dashboard must not take every connection of the pool.
LIMIT = 32


async def gather_limited(requests: Iterable[Coroutine[Any, Any, T]], limit: int = LIMIT) -> list[T]:
    """Return the answers in the order of the requests; at most ``limit`` requests are in flight."""
    left = iter(requests)
    answers: list[T] = []
    while part := list(islice(left, limit)):
        answers += await asyncio.gather(*part)
    return answers
