"""A nightly report as a Windlass job: the queue runs its own pipeline.

    python examples/spark_nightly_report.py

The task copies new history into the lake, writes a page with charts, and adds itself for the next night.
Spark runs in a child process, so that its JVM comes and goes with the job. A report's id is its date: a night
that is added twice has one report.

Prints::

    190 completed and 10 failed mails are in the report
    1 report is scheduled for the next night
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from windlass import JobState, Windlass, Worker
from windlass.pipeline.gold import Gold

FOLDER = Path(tempfile.mkdtemp(prefix="windlass-nightly-"))
URL = f"sqlite:///{FOLDER / 'jobs.db'}"
LAKE, PAGE = FOLDER / "lake", FOLDER / "report.html"
app = Windlass(URL)


@app.task(queue="mail")
async def send_mail(to: str) -> str:
    if to.startswith("broken"):
        raise ValueError("no such address")
    return f"sent to {to}"


@app.task(queue="reports", timeout=900, max_attempts=2)
async def nightly_report(day: date) -> str:
    """Bring the lake up to date, write the page, and see to tomorrow's."""
    await pipeline("run", "--url", URL, "--lake", str(LAKE))
    await pipeline("report", "--lake", str(LAKE), "--html", str(PAGE))
    await schedule(day + timedelta(days=1))
    return str(PAGE)


async def pipeline(*words: str) -> None:
    """``windlass pipeline ...``"""
    command = [sys.executable, "-m", "windlass", "pipeline", *words]
    child = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr)
    if await child.wait():
        raise RuntimeError(f"windlass pipeline {words[0]} failed with {child.returncode}")


async def schedule(day: date) -> None:
    """The report of ``day``, at two o'clock in the morning."""
    at = datetime.combine(day, time(hour=2), UTC)
    await nightly_report.options(job_id=f"report-{day}", run_at=at).enqueue(day)


async def main() -> None:
    today = datetime.now(UTC).date()
    async with app:
        for n in range(200):
            name = "broken" if n % 20 == 0 else "ada"
            await send_mail.options(max_attempts=1).enqueue(f"{name}-{n}@example.com")
        await Worker("mail", url_or_app=app, burst=True).run()

        tonight = await nightly_report.options(job_id=f"report-{today}").enqueue(today)  # do not wait for two
        worker = Worker("reports", url_or_app=app)
        await worker.start()
        await tonight.result(timeout=600)
        await worker.close()

        (mail,) = Gold(str(LAKE)).totals(by=("queue",))
        print(f"{mail['completed']} completed and {mail['failed']} failed mails are in the report")
        counts = await app.queue("reports").get_job_counts()
        print(f"{counts[JobState.SCHEDULED]} report is scheduled for the next night")


if __name__ == "__main__":
    asyncio.run(main())
