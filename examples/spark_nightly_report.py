"""A nightly report as a Windlass job: the queue runs its own pipeline.

    python examples/spark_nightly_report.py

Every night at two, a schedule adds a job that copies new history into the lake and writes a page with charts.
Spark runs in a child process, so that its JVM comes and goes with the job. This example does not wait for the
night: it runs the schedule by hand.

Prints::

    190 completed and 10 failed mails are in the report
    nightly_report runs again at 02:00 UTC
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from windlass import Windlass, Worker
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


@app.task(name="nightly_report", queue="reports", cron="0 2 * * *", timeout=900, max_attempts=2)
async def nightly_report() -> str:
    """Bring the lake up to date and write the page."""
    await pipeline("run", "--url", URL, "--lake", str(LAKE))
    await pipeline("report", "--lake", str(LAKE), "--html", str(PAGE))
    return str(PAGE)


async def pipeline(*words: str) -> None:
    """``windlass pipeline ...``"""
    command = [sys.executable, "-m", "windlass", "pipeline", *words]
    child = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr)
    if await child.wait():
        raise RuntimeError(f"windlass pipeline {words[0]} failed with {child.returncode}")


async def main() -> None:
    async with app:
        for n in range(200):
            name = "broken" if n % 20 == 0 else "ada"
            await send_mail.options(max_attempts=1).enqueue(f"{name}-{n}@example.com")
        await Worker("mail", url_or_app=app, burst=True).run()

        reports = app.queue("reports")
        async with Worker("reports", url_or_app=app):  # a worker that starts brings its app's schedules along
            job = await reports.run_job_scheduler("nightly_report")
            await job.result(timeout=600)

        mail = next(row for row in Gold(str(LAKE)).totals(by=("queue",)) if row["queue"] == "mail")
        print(f"{mail['completed']} completed and {mail['failed']} failed mails are in the report")
        for info in await reports.get_job_schedulers():
            print(f"{info.name} runs again at {info.next_run:%H:%M} UTC")


if __name__ == "__main__":
    asyncio.run(main())
