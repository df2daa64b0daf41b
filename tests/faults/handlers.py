"""Tasks that tell the test where they are, by files in ``$STAGE_DIRECTORY``."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

from windlass import LeaseLostError, Suspend, Windlass, current_job

app = Windlass()
directory = Path(os.environ.get("STAGE_DIRECTORY", "."))
ROLE = os.environ.get("STAGE_ROLE", "")
#: In a process with the role ``victim``: run so many jobs, then hang in every one.
HANG_AFTER = int(os.environ.get("STAGE_HANG_AFTER", "0"))
ran = 0
_never = threading.Event()


def note(name: str, line: str) -> None:
    """Add a line to a file, in one write, so that processes may share it."""
    with (directory / name).open("a") as file:
        file.write(line + "\n")


async def file_exists(name: str) -> None:
    """Wait for the test to create a file."""
    while not (directory / name).exists():  # noqa: ASYNC110 - it is the test, in another process, that sets it
        await asyncio.sleep(0.01)


@app.task(name="noop", queue="q")
async def noop(n: int, text: str = "") -> int:
    """Next to nothing; a victim hangs after its first ``STAGE_HANG_AFTER`` jobs."""
    global ran
    ran += 1
    if ROLE == "victim" and ran > HANG_AFTER:
        note("hanging", str(n))
        await asyncio.Event().wait()
    return n


@app.task(name="tell", queue="q")
async def tell(n: int) -> int:
    """Writes down that it ran, and where."""
    note("ran", f"{n} {current_job().queue_name} {os.getpid()}")
    return n


@app.task(name="hold", queue="q")
async def hold() -> str:
    """A victim stays inside until ``go`` appears, and goes on even when it is told to stop."""
    if ROLE != "victim":
        return "taken over"
    note("holding", str(os.getpid()))
    try:
        await file_exists("go")
    except asyncio.CancelledError:
        note("holding", "stopped")
    try:
        await current_job().update_progress(50)
        note("late", "progress accepted")
    except LeaseLostError:
        note("late", "LeaseLostError")
    return "late result"


@app.task(name="linger", queue="q")
async def linger() -> str:
    """Runs until ``go`` appears; obeys when it is cancelled."""
    note("lingering", str(os.getpid()))
    try:
        await file_exists("go")
    except asyncio.CancelledError:
        note("lingering", "cancelled")
        raise
    return "done"


@app.task(name="stubborn", queue="q")
def stubborn() -> None:
    """A thread that does not look at its abort signal."""
    note("stubborn", str(os.getpid()))
    while not (directory / "go").exists():
        _never.wait(0.01)


@app.task(name="suicide", queue="q")
async def suicide() -> None:
    """Takes its whole worker along."""
    note("died", str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="gather", queue="q")
async def gather() -> dict[str, object]:
    """The parent of a flow: writes down that it ran, and returns what it found of its children."""
    job = current_job()
    note("gathered", job.id)
    values, failed = await job.get_children_values(), await job.get_failed_children()
    return {"values": sorted(values.values()), "failed": sorted(failed)}


@app.task(name="fail", queue="q", max_attempts=1)
async def fail() -> None:
    raise ValueError("for good")


@app.task(name="ask", queue="q")
async def ask() -> object:
    """Waits for an answer from outside."""
    job = current_job()
    note("asked", str(os.getpid()))
    if "answer" not in job.signals:
        raise Suspend("answer")
    return job.signals["answer"]


@app.task(name="talk", queue="q")
async def talk(chunks: int, hold_at: int) -> None:
    """Puts out numbers; waits for ``go`` once it has put out ``hold_at`` of them."""
    job = current_job()
    for n in range(chunks):
        await job.stream(n)
        if n + 1 == hold_at:
            await file_exists("go")
