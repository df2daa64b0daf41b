"""Waiting for many jobs: all of them in order, or each as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar, overload

from windlass.errors import WindlassError
from windlass.jobs.job import Job

R = TypeVar("R")
_Timeout = float | timedelta | None


@overload
async def gather(
    jobs: Iterable[Job[R]], *, timeout: _Timeout = 30, return_errors: Literal[False] = False
) -> list[R]: ...
@overload
async def gather(
    jobs: Iterable[Job[R]], *, timeout: _Timeout = 30, return_errors: Literal[True]
) -> list[R | WindlassError]: ...
async def gather(jobs: Iterable[Job[R]], *, timeout: _Timeout = 30, return_errors: bool = False) -> list[Any]:
    """Return the results of ``jobs``, in their order. ``timeout`` applies to all of them together.

    Raises the error of ``Job.result`` for the first job that did not complete; the other jobs continue. With
    ``return_errors`` the list contains such errors instead of raising them.
    """
    waiting = [asyncio.ensure_future(job.result(timeout)) for job in jobs]
    try:
        if not return_errors:
            return list(await asyncio.gather(*waiting))
        results = await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        await _cancel(waiting)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, WindlassError):
            raise result
    return list(results)


async def as_completed(jobs: Iterable[Job[R]], *, timeout: _Timeout = 30) -> AsyncGenerator[Job[R], None]:
    """Iterate over ``jobs`` as they end, in any outcome. ``await job.result()`` then returns at once.

    Raises ``WaitTimeoutError`` when not all have ended within ``timeout``.
    """
    waiting = {asyncio.ensure_future(job.wait_until_finished(timeout)): job for job in jobs}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in [future for future in waiting if future in done]:
                future.result()
                yield waiting.pop(future)
    finally:
        await _cancel(list(waiting))


async def _cancel(futures: Sequence[asyncio.Future[Any]]) -> None:
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


__all__ = ["as_completed", "gather"]
