"""Requests to a store from Spark processes. Each use has its own event loop and client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from windlass.backend import requests as rq
from windlass.backend.protocol import Backend
from windlass.backend.urls import open_backend, parse_url
from windlass.errors import UnsupportedByBackendError

R = TypeVar("R")


def with_store(url: str, work: Callable[[Backend], Awaitable[R]]) -> R:
    """Open the store, await ``work`` with it, and close it."""

    async def run() -> R:
        backend = open_backend(url)
        await backend.open()
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


@contextmanager
def ask_many(url: str) -> Iterator[Callable[[rq.Request[Any]], Any]]:
    """Yields a function that executes requests one after the other on one connection."""
    # Not asyncio.Runner: its Ctrl-C handling builds the repr of every result, which took longer than reading.
    loop = asyncio.new_event_loop()
    try:
        backend = open_backend(url)
        loop.run_until_complete(backend.open())
        try:
            yield lambda request: loop.run_until_complete(backend.execute(request))
        finally:
            loop.run_until_complete(backend.close())
    finally:
        loop.close()


def absolute_url(url: str) -> str:
    """``url`` with an absolute path, so that every process of a cluster can use it.

    Raises ``UnsupportedByBackendError`` for a store that other processes cannot open.
    """
    parsed = parse_url(url)
    if not open_backend(url).capabilities.shared:
        raise UnsupportedByBackendError(parsed.scheme, "a pipeline", "Spark works in other processes")
    if parsed.scheme != "sqlite" or parsed.path.startswith("//"):
        return url
    absolute = quote(str(Path(parsed.path.removeprefix("/")).absolute()))
    query = url.partition("?")[2]
    return f"{parsed.scheme}:///{absolute}" + (f"?{query}" if query else "")
