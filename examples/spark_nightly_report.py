"""A nightly report as a Windlass job: the queue runs its own pipeline.

    python examples/spark_nightly_report.py

The task copies new history into the lake and writes a page with charts. Spark runs in a child process, so
that its JVM comes and goes with the job. A cron line (or a schedule) adds the job once a night; its id is the
date, so a second add of the same night changes nothing.

Prints::

    190 completed and 10 failed mails are in the report
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from windlass import Windlass, Worker
from windlass.pipeline.gold import Gold

FOLDER = Path(tempfile.mkdtemp(prefix="windlass-nightly-"))
URL = f"sqlite:///{FOLDER / 'jobs.db'}"
app = Windlass(URL)


@app.task(queue="mail")
async def send_mail(to: str) -> str:
    if to.startswith("broken"):
        raise ValueError("no such address")
    return f"sent to {to}"


@app.task(queue="reports", timeout=900, max_attempts=2)
def nightly_report(lake: str, page: str) -> str:
    """Bring the lake up to date and write the page."""
    windlass = [sys.executable, "-m", "windlass", "pipeline"]
    for words in (["run", "--url", URL, "--lake", lake], ["report", "--lake", lake, "--html", page]):
        subprocess.run([*windlass, *words], check=True, stdout=sys.stderr)
    return page


async def main() -> None:
    tonight = datetime.now(UTC).strftime("%Y-%m-%d")
    async with app:
        for n in range(200):
            name = "broken" if n % 20 == 0 else "ada"
            await send_mail.options(max_attempts=1).enqueue(f"{name}-{n}@example.com")
        worker = Worker(["mail", "reports"], url_or_app=app, concurrency=16)
        await worker.start()
        job = await nightly_report.options(job_id=f"report-{tonight}", delay=2).enqueue(
            str(FOLDER / "lake"), str(FOLDER / "report.html")
        )
        await job.result(timeout=600)
        (mail,) = Gold(str(FOLDER / "lake")).totals(by=("queue",))
        print(f"{mail['completed']} completed and {mail['failed']} failed mails are in the report")
        await worker.close()


if __name__ == "__main__":
    asyncio.run(main())
