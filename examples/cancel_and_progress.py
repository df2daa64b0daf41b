"""Watch a running job and stop it, from another place than where it runs.

Prints::

    progress: 20
    cancel says: cancelling
    async job: cancelled because the customer left
    cleaned up on the way out
    progress: 30
    thread job: cancelled, stopped itself at 30
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from windlass import Event, QueueEvents, Windlass, Worker, current_job

app = Windlass(os.environ.get("WINDLASS_URL") or "memory://")


@app.task(queue="exports")
async def export() -> None:
    """An async handler is cancelled: it may clean up, and lets the cancellation through."""
    try:
        for percent in range(10, 101, 10):
            await current_job().update_progress(percent)
            if percent == 20:
                await asyncio.Event().wait()
    finally:
        await current_job().log("cleaned up on the way out")


@app.task(queue="exports")
def export_in_thread() -> str:
    """A thread cannot be interrupted: it looks at the signal, or waits with it instead of sleeping."""
    job = current_job()
    job.sync.update_progress(30)
    assert job.abort_signal is not None
    if job.abort_signal.wait(30):
        job.sync.log("stopped itself at 30")
        raise InterruptedError
    return "exported"


async def cancel_at(events: QueueEvents, job: Any, percent: int, reason: str) -> str:
    """Wait for the job's progress, then cancel it; what ``cancel`` answered."""
    reached = asyncio.Event()

    def on_progress(event: Event) -> None:
        if event.job_id == job.id and event.data["progress"] == percent:
            reached.set()

    events.on("progress", on_progress)
    await reached.wait()
    print(f"progress: {percent}")
    return str(await job.cancel(reason))


async def main() -> None:
    async with app, QueueEvents("exports", app, after=0) as events:
        worker = Worker("exports", url_or_app=app)
        await worker.start()

        job = await export.enqueue()
        print(f"cancel says: {await cancel_at(events, job, 20, 'the customer left')}")
        print(f"async job: {await job.wait_until_finished()} because {job.reason}")
        print((await app.queue("exports").get_job_logs(job.id))[0][0])

        threaded = await export_in_thread.enqueue()
        await cancel_at(events, threaded, 30, "enough")
        state = await threaded.wait_until_finished()
        print(f"thread job: {state}, {(await app.queue('exports').get_job_logs(threaded.id))[0][0]}")
        await worker.close()


if __name__ == "__main__":
    asyncio.run(main())
