"""Functions that the conformance suite runs in child processes, which must be able to import them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from windlass import Cancel, Depends, Snooze, UnrecoverableError, WaitForChildren, Windlass, current_job

app = Windlass("memory://")
locale: ContextVar[str] = ContextVar("locale")
app.carry(locale)


def pid() -> int:
    """The id of the process that runs it."""
    return os.getpid()


def double(n: int) -> int:
    return n * 2


def report() -> str:
    """Use the verbs of a running job from a child."""
    job: Any = current_job()
    job.sync.log("from the child")
    job.sync.update_progress(50)
    return f"attempt {job.attempt}"


def split() -> int:
    """Add children from a child process, wait for them, and return the sum of their results."""
    job: Any = current_job()
    values = job.sync.get_children_values()
    if not values:
        for n in (1, 2):
            job.sync.add_child("double", {"n": n}, job_id=f"{job.id}-{n}")
        raise WaitForChildren
    job.sync.stream("all", "there")
    return int(sum(values.values())) + len(job.sync.get_failed_children())


def ask() -> str:
    """Suspend from a child process."""
    job: Any = current_job()
    if "yes" not in job.signals:
        job.suspend("yes", timeout=3_600)
    return f"received {job.signals['yes']}"


def stop_with(path: str, what: str) -> str:
    """Wait until asked to stop, then return or raise as ``what`` says."""
    job: Any = current_job()
    try:
        with open(path, "w") as file:
            file.write("begun")
        while True:
            time.sleep(0.02)
    except SystemExit:
        if what == "return":
            job.abort_signal.wait(5)  # the reason comes by another way than the signal
            return str(job.abort_signal.reason)
        raise ValueError("broken by the stop") from None


def fail() -> None:
    raise ValueError("in the child")


class Claims(Exception):
    """An error of an application with attributes that Windlass uses, too."""

    error_class = 5
    remote_traceback = b"\xff"


def fail_oddly(kind: str) -> None:
    """Raise an error that cannot be sent to another process unchanged."""
    match kind:
        case "surrogate":
            raise ValueError(os.fsdecode(b"caf\xe9.txt"))
        case "attributes":
            raise Claims("x")
        case "exit":
            raise SystemExit("x")
        case "cancel":
            raise Cancel("\ud800")


def give_up() -> None:
    raise UnrecoverableError("in the child")


def snooze_once() -> str:
    if current_job().deliveries == 1:
        raise Snooze(30)
    return "after the snooze"


def crash() -> None:
    """End the process like a fault in native code."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang(path: str) -> None:
    """Create ``path``, then never return."""
    with open(path, "w"):
        pass
    while True:
        time.sleep(60)


def resource() -> Iterator[str]:
    """A dependency that is opened and closed around a run and writes that to the log of the job."""
    job: Any = current_job()
    job.log("opened")
    yield "open"
    job.log("closed")


@app.task
def greet(name: str, state: str = Depends(resource)) -> str:
    """Return the context that came with the job and the dependency that the child created."""
    return f"{locale.get('nothing')}: {name}, {state}"
