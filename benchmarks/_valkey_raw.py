"""The same server functions without Windlass: bare loops over redis-py, with prepared arguments."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from redis.asyncio import Redis

from windlass import Windlass
from windlass.backend.urls import parse_url
from windlass.backends.valkey import loader, sent_records
from windlass.backends.valkey.keys import Keys
from windlass.core.job import NewJob

QUEUE = "bench"
_EMPTY = "#!lua name=bench_empty\nredis.register_function('bench_empty', function() return 0 end)"


async def _noop(stored: bytes) -> None:
    """A job without Windlass: its arguments are decoded, and that is all."""
    start = 15 + stored[14]
    msgspec.json.decode(stored[start + 4 + int.from_bytes(stored[start : start + 4], "big") :])


class BareCalls:
    """Bare FCALLs to the server of ``url``, on which the library is loaded."""

    def __init__(self, url: str, text: str) -> None:
        self._url = url
        self._root = Keys(parse_url(url).namespace).queue(QUEUE)
        self._queue = Windlass("memory://").queue(QUEUE)
        self._text = text

    def _jobs(self, count: int) -> list[NewJob]:
        return [self._queue.prepare("noop", {"text": self._text}) for _ in range(count)]

    async def _connect(self) -> Any:
        async with Windlass(self._url) as app:
            await app.queue(QUEUE).add("noop", {"text": self._text})  # the library is there, the queue known
        return Redis.from_url(self._url.replace("valkey://", "redis://", 1), protocol=2)

    def _add(self, jobs: list[NewJob]) -> tuple[Any, ...]:
        parts: list[str | bytes] = []
        for job in jobs:
            text = sent_records.plain_job(job)
            assert text is not None
            parts += [job.id, text]
        return ("FCALL", loader.function_name("add_plain"), 1, self._root, "", *parts)

    async def adds(self, count: int, batch: int) -> float:
        """Jobs per second: the calls that ``add`` (batch 1) or ``add_bulk`` make, awaited in turn."""
        client = await self._connect()
        calls = [self._add(self._jobs(batch)) for _ in range(count // batch)]
        started = time.perf_counter()
        for call in calls:
            await client.execute_command(*call)
        elapsed = time.perf_counter() - started
        await client.aclose()
        return count / elapsed

    async def empty(self, count: int) -> float:
        """Calls per second of a function that does nothing, with as many bytes."""
        client = await self._connect()
        await client.function_load(_EMPTY, replace=True)
        call = ("FCALL", "bench_empty", *self._add(self._jobs(1))[2:])
        started = time.perf_counter()
        for _ in range(count):
            await client.execute_command(*call)
        elapsed = time.perf_counter() - started
        await client.aclose()
        return count / elapsed

    async def wait_for_listener(self) -> None:
        """Wait until a worker listens for jobs."""
        client: Any = Redis.from_url(self._url.replace("valkey://", "redis://", 1), protocol=2)
        ask = ("PUBSUB", "SHARDNUMSUB", f"{self._root}:ready")
        while not (await client.execute_command(*ask))[1]:  # noqa: ASYNC110 - the server is what we wait for
            await asyncio.sleep(0.05)
        await client.aclose()

    async def drain(self, count: int, batch: int, *, tasks: bool = False) -> float:
        """Jobs per second: complete a batch and claim the next, until ``count`` are done; no handlers.

        ``tasks``: with a task for each job that decodes its arguments and does nothing: the least that any
        worker does.
        """
        client = await self._connect()
        name = loader.function_name("work")
        ends: list[Any] = []
        done = number = 0
        started = time.perf_counter()
        while done < count:
            number += 1
            claim_id = f"{number:032x}"
            claim = ("bare", 30_000, claim_id, batch, [(1, batch, batch, 0)])
            answer = await client.execute_command(
                "FCALL", name, 1, self._root, "", sent_records.pack((ends, claim))
            )
            done += len(ends[0][1]) if ends else 0
            if len(answer) == 5:
                break
            ids, stored = answer[6:8]
            if tasks:
                await asyncio.gather(*(_noop(record) for record in stored))
            size = len(ids)
            tokens = [f"{claim_id}.{place}" for place in range(size)]
            ends = [(1, [job_id.decode() for job_id in ids], tokens, [0] * size, [0] * size)]
        elapsed = time.perf_counter() - started
        await client.aclose()
        return done / elapsed
