"""Readers of events on a server that loses its data: they begin anew, and say that something is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.backends.valkey.servers import own_server
from tools.services.valkey import Server
from windlass import Event, QueueEvents, Windlass
from windlass.jobs import EventType

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, without a file: what it held is gone with it."""
    with own_server(request.param, tmp_path, "--appendonly", "no") as started:
        yield started


@pytest.fixture
async def app(server: Server) -> AsyncIterator[Windlass]:
    async with Windlass(server.url) as made:
        yield made


def _flush(server: Server) -> None:
    with server.client() as admin:
        admin.flushall()


def _restart(server: Server) -> None:
    server.kill()
    server.start()


async def _heard(events: AsyncIterator[Event], job_id: str) -> list[tuple[EventType, str]]:
    """What comes, up to the adding of a job."""
    found: list[tuple[EventType, str]] = []
    async with asyncio.timeout(30):
        async for event in events:
            found.append((event.type, event.job_id))
            if event.job_id == job_id:
                return found
    return found


@pytest.mark.parametrize("lose", [_flush, _restart])
@pytest.mark.parametrize("added", [1, 30])
async def test_a_reader_of_events_starts_over_when_the_server_lost_its_data(
    app: Windlass, server: Server, lose: Callable[[Server], None], added: int
) -> None:
    queue = app.queue("q")
    async with aclosing(queue.events(0)) as events:
        await queue.add_bulk([{"name": "n", "job_id": f"old{n}"} for n in range(10)])
        assert len(await _heard(events, "old9")) == 10
        await asyncio.to_thread(lose, server)
        # Few events: their numbers are below those of before. Many: they go past them at once.
        await queue.add_bulk([{"name": "n", "job_id": f"new{n}"} for n in range(added)])
        expected = [(EventType.GAP, ""), *((EventType.ENQUEUED, f"new{n}") for n in range(added))]
        assert await _heard(events, f"new{added - 1}") == expected
        await queue.add("n", job_id="later")
        assert await _heard(events, "later") == [(EventType.ENQUEUED, "later")]


async def test_callbacks_hear_of_the_gap_and_of_what_is_there(app: Windlass, server: Server) -> None:
    queue = app.queue("q")
    heard: asyncio.Queue[Event] = asyncio.Queue()
    async with QueueEvents("q", app) as events:
        events.on("*", heard.put_nowait)
        await events.wait_until_ready()
        await queue.add_bulk([{"name": "n"} for _ in range(5)])
        async with asyncio.timeout(30):
            for _ in range(5):
                await heard.get()
            await asyncio.to_thread(_flush, server)
            gap = await heard.get()
            assert (gap.type, gap.id, gap.data) == (EventType.GAP, 0, {"oldest": 1, "reason": "lost"})
            job = await queue.add("n")
            assert (await heard.get()).job_id == job.id
        assert events.last_id == 1
