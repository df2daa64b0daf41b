"""Follow a queue: callbacks, an async iterator, and replay from an event's id.

Prints::

    callback: failed broken (ValueError: no such file)
    the life of the good job: enqueued, started, progress, completed
    after event 3: 5 more
"""

from __future__ import annotations

import asyncio
import os

from windlass import Event, QueueEvents, Windlass, Worker, current_job

app = Windlass(os.environ.get("WINDLASS_URL") or "memory://")


@app.task(name="good", queue="files")
async def good() -> None:
    await current_job().update_progress({"current": 1, "total": 1})


@app.task(name="broken", queue="files", max_attempts=1)
async def broken() -> None:
    raise ValueError("no such file")


async def main() -> None:
    failed = asyncio.Event()

    def on_failed(event: Event) -> None:
        print(f"callback: failed {event.task} ({event.data['error_class']}: {event.data['message']})")
        failed.set()

    async with app, QueueEvents("files", app, after=0) as events:
        events.on("failed", on_failed)
        job = await good.enqueue()
        await broken.enqueue()
        await Worker("files", url_or_app=app, concurrency=1).drain()
        await failed.wait()

        life: list[str] = []
        async for event in app.queue("files").events(after=0):
            if event.job_id == job.id:
                life.append(event.type.value)
            if event.type == "failed":
                last = event.id
                break
        print(f"the life of the good job: {', '.join(life)}")

        rest = 0
        async for event in app.queue("files").events(after=3):  # a reader that continued after a restart
            rest += 1
            if event.id == last:
                break
        print(f"after event 3: {rest} more")


if __name__ == "__main__":
    asyncio.run(main())
