"""A client of Windlass on AMQP that is driven by lines of JSON; earlier releases can run it too.

``python amqp_actor.py URL``: each line of the input is ``[operation, {arguments}]``, each line of the output
is the answer. It uses only the public interface, as it was in the earliest release that the test names.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import windlass
from windlass import Job, Windlass, Worker

QUEUE = "q"


async def handle(job: Job[Any]) -> Any:
    """What the jobs of the test do, by their names."""
    if job.name == "flaky" and job.attempt < 2:
        raise ConnectionError("busy")
    if job.name == "bad":
        raise ValueError("never")
    return {"by": job.name, "data": job.data, "attempt": job.attempt}


class Actor:
    """One app, and the worker that it may run."""

    def __init__(self, app: Windlass) -> None:
        self.app = app
        self.worker: Any = None

    async def code(self) -> str:
        """Where the code of this client is."""
        return str(windlass.__file__)

    async def add(self, name: str, data: Any = None, **options: Any) -> str:
        return (await self.app.queue(QUEUE).add(name, data, **options)).id

    async def bulk(self, count: int) -> list[str]:
        jobs = await self.app.queue(QUEUE).add_bulk({"name": "plain", "data": n} for n in range(count))
        return [job.id for job in jobs]

    async def result(self, id: str) -> Any:
        job = await self.app.queue(QUEUE).get_job(id)
        assert job is not None, f"{id} is not known"
        return await job.result(timeout=30)

    async def wait(self, name: str, data: Any) -> Any:
        """Add a job and wait for its result."""
        job = await self.app.queue(QUEUE).add(name, data)
        return await job.result(timeout=30)

    async def state(self, id: str) -> str | None:
        job = await self.app.queue(QUEUE).get_job(id)
        return None if job is None else job.state.value

    async def cancel(self, id: str) -> None:
        job = await self.app.queue(QUEUE).get_job(id)
        assert job is not None, f"{id} is not known"
        await job.cancel()

    async def pause(self) -> None:
        await self.app.queue(QUEUE).pause()

    async def resume(self) -> None:
        await self.app.queue(QUEUE).resume()

    async def counts(self) -> dict[str, int]:
        counts = await self.app.queue(QUEUE).get_job_counts()
        return {state.value: count for state, count in counts.items() if count}

    async def work(self) -> None:
        self.worker = Worker(QUEUE, handle, url_or_app=self.app, concurrency=4)
        await self.worker.__aenter__()

    async def rest(self) -> None:
        """Stop the worker."""
        await self.worker.__aexit__(None, None, None)

    async def clear(self) -> None:
        await self.app.store.backend.remove_all()  # type: ignore[attr-defined]


async def main(url: str) -> None:
    async with Windlass(url) as app:
        actor = Actor(app)
        while line := await asyncio.to_thread(sys.stdin.readline):
            operation, arguments = json.loads(line)
            try:
                answer = {"ok": await getattr(actor, operation)(**arguments)}
            except Exception as exc:
                answer = {"error": f"{type(exc).__name__}: {exc}"}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
