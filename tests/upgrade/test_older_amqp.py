"""An earlier release and this one on one broker: each runs the jobs of the other, and takes over from it.

The earlier one is ``OLDEST``; it runs in processes of its own. Its packed source is what
``git archive 13a842a src/windlass`` gives, without packages that a client and a worker on AMQP do not need:
the test needs no history of the repository.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tarfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backends.amqp.servers import fresh_url
from tests.faults.kit import until

backend_name = "amqp"
pytestmark = pytest.mark.service("rabbitmq")

ROOT = Path(__file__).resolve().parents[2]
ACTOR = Path(__file__).with_name("amqp_actor.py")
#: The earliest revision whose clients work beside this one.
OLDEST = Path(__file__).parent / "released" / "windlass-13a842a-amqp.tar.xz"
SOON = {"type": "fixed", "delay": 0.05, "jitter": 0}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the earlier release."""
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(OLDEST) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class Actor:
    """A process with one client, of one of the two releases."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def __call__(self, operation: str, **arguments: Any) -> Any:
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([operation, arguments]).encode() + b"\n")
        answer = json.loads(await process.stdout.readline())
        assert "ok" in answer, f"{operation}: {answer['error']}"
        return answer["ok"]

    async def leave(self) -> None:
        """Close the client in good order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await self.process.wait() == 0

    async def die(self) -> None:
        """End without a word."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def acting(source: Path, url: str) -> AsyncIterator[Actor]:
    """A client with the code of ``source``; killed at the end if it still runs."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ACTOR), url, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
    )
    actor = Actor(process)
    try:
        assert (await actor("code")).startswith(str(source))
        yield actor
    finally:
        if process.returncode is None:
            await actor.die()


@asynccontextmanager
async def pair(older: Path, names: tuple[str, str]) -> AsyncIterator[tuple[Actor, Actor]]:
    """Two clients on a fresh namespace. The first coordinates."""
    url, sources = fresh_url(), {"old": older, "new": ROOT / "src"}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(acting(sources[names[0]], url))
        await first("counts")
        second = await stack.enter_async_context(acting(sources[names[1]], url))
        await second("counts")
        yield first, second


def done(name: str, data: Any, attempt: int = 1) -> dict[str, Any]:
    return {"by": name, "data": data, "attempt": attempt}


BOTH = [("old", "new"), ("new", "old")]


@pytest.mark.parametrize("names", BOTH, ids="-coordinates-".join)
@pytest.mark.parametrize("producer", [0, 1], ids=["producer-coordinates", "worker-coordinates"])
async def test_each_release_runs_the_jobs_of_the_other(
    older: Path, names: tuple[str, str], producer: int
) -> None:
    async with pair(older, names) as both:
        client, worker = both[producer], both[1 - producer]
        waiting = await client("add", name="plain", data="early")
        late = await client("add", name="plain", data="late", delay=0.3)
        cancelled = await client("add", name="plain", delay=600)
        flaky = await client("add", name="flaky", data=1, max_attempts=3, backoff=SOON)
        bad = await client("add", name="bad", max_attempts=1)
        many = await client("bulk", count=20)
        await client("cancel", id=cancelled)
        await worker("work")
        assert await client("wait", name="plain", data="call") == done("plain", "call")
        assert await client("result", id=waiting) == done("plain", "early")
        assert await client("result", id=late) == done("plain", "late")
        assert await client("result", id=flaky) == done("flaky", 1, attempt=2)
        assert [await client("result", id=id) for id in many] == [done("plain", n) for n in range(20)]
        wanted = {"completed": 24, "failed": 1, "cancelled": 1}

        async def all_ended() -> bool:
            return bool(await client("counts") == wanted)

        await until(all_ended, "all jobs have ended")
        for actor in both:
            assert await actor("state", id=bad) == "failed"
            assert await actor("state", id=cancelled) == "cancelled"
        await worker("rest")
        await client("clear")


@pytest.mark.parametrize("names", BOTH, ids="-before-".join)
@pytest.mark.parametrize("ending", ["leave", "die"])
async def test_each_release_takes_over_from_the_other(
    older: Path, names: tuple[str, str], ending: str
) -> None:
    async with pair(older, names) as (first, second):
        await first("work")
        ended = await first("add", name="plain", data="before")
        assert await first("result", id=ended) == done("plain", "before")
        bad = await first("add", name="bad", max_attempts=1)

        async def is_dead() -> bool:
            return bool(await first("state", id=bad) == "failed")

        await until(is_dead, "the job is dead")
        retrying = await first("add", name="flaky", data=2, max_attempts=3, backoff={**SOON, "delay": 2})

        async def is_retrying() -> bool:
            return bool(await first("state", id=retrying) == "retrying")

        await until(is_retrying, "the job waits for its next attempt")
        await first("rest")
        await first("pause")
        waiting = await first("add", name="plain", data="waits")
        late = await first("add", name="plain", data="late", delay=2)
        far = await first("add", name="plain", delay=600)
        before = await first("counts")
        assert before == {"completed": 1, "failed": 1, "retrying": 1, "waiting": 1, "scheduled": 2}
        await getattr(first, ending)()
        await second("work")
        assert (await second("counts"))["completed"] == 1, "the queue is still paused"
        await second("cancel", id=far)
        await second("resume")
        assert await second("result", id=waiting) == done("plain", "waits")
        assert await second("result", id=late) == done("plain", "late")
        assert await second("result", id=retrying) == done("flaky", 2, attempt=2)
        assert await second("result", id=ended) == done("plain", "before")
        assert await second("counts") == {"completed": 4, "failed": 1, "cancelled": 1}
        await second("clear")
