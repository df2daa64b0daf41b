"""Functions that the conformance suite runs in child processes, which must be able to import them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from windlass import Depends, Snooze, UnrecoverableError, Windlass, current_job

app = Windlass("memory://")
locale: ContextVar[str] = ContextVar("locale")
app.carry(locale)


def pid() -> int:
    """The process that runs it."""
    return os.getpid()


def double(n: int) -> int:
    return n * 2


def report() -> str:
    """Use the verbs of a running job from a child."""
    job: Any = current_job()
    job.sync.log("from the child")
    job.sync.update_progress(50)
    return f"attempt {job.attempt}"


def fail() -> None:
    raise ValueError("in the child")


def give_up() -> None:
    raise UnrecoverableError("in the child")


def snooze_once() -> str:
    if current_job().deliveries == 1:
        raise Snooze(30)
    return "after the snooze"


def crash() -> None:
    """Die as a fault in native code would."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang(path: str) -> None:
    """Hold the interpreter busy for ever, once ``path`` tells that it began."""
    with open(path, "w"):
        pass
    while True:
        time.sleep(60)


def resource() -> Iterator[str]:
    """Something that is opened and closed around a run; its job's log tells."""
    job: Any = current_job()
    job.log("opened")
    yield "open"
    job.log("closed")


@app.task
def greet(name: str, state: str = Depends(resource)) -> str:
    """What came along with the job, and what the child made for it."""
    return f"{locale.get('nothing')}: {name}, {state}"
