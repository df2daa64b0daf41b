"""Handlers that the sandbox tests run in child processes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from windlass.errors import Cancel, LeaseLostError, RateLimitError, Retry, Snooze, UnrecoverableError
from windlass.jobs.context import current_job

if TYPE_CHECKING:
    from decimal import Decimal

    from windlass.sandbox.job import SandboxJob

#: Changed by a test in its own process, to see that children are not copies of it.
STATE = "fresh"
_blocks: list[bytearray] = []


@dataclass
class Order:
    id: int
    at: datetime


class CardDeclinedError(ValueError):
    pass


class BadCardError(UnrecoverableError):
    pass


def job() -> Any:
    return current_job()


def add(a: int, b: int = 0) -> int:
    return a + b


async def add_later(a: int, b: int = 0) -> int:
    await asyncio.sleep(0)
    return a + b


def returns_coroutine(a: int) -> Any:
    return add_later(a, 1)


def pid() -> int:
    return os.getpid()


def echo(value: Any = None) -> Any:
    return value


def typed(order: Order, day: date, wait: timedelta) -> list[str]:
    return [type(order).__name__, type(order.at).__name__, type(day).__name__, type(wait).__name__]


def checker_only(price: Decimal) -> str:
    return type(price).__name__


def state() -> list[Any]:
    return [STATE, sorted(thread.name for thread in threading.enumerate())]


def facts(job: SandboxJob) -> dict[str, Any]:
    return {
        "id": job.id,
        "queue": job.queue_name,
        "name": job.name,
        "data": job.data,
        "attempt": job.attempt,
        "deliveries": job.deliveries,
        "tags": job.tags,
        "trace": job.trace,
        "run_id": job.run_id,
        "current": current_job() is job,  # type: ignore[comparison-overlap]
        "logger": job.logger.extra,
    }


# --- ways to go wrong ----------------------------------------------------------------------------------


def raises(kind: str) -> NoReturn:
    errors: dict[str, BaseException] = {
        "ValueError": ValueError("bad value"),
        "KeyError": KeyError("key"),
        "ConnectionResetError": ConnectionResetError("peer"),
        "CardDeclinedError": CardDeclinedError("declined"),
        "BadCardError": BadCardError("stolen"),
        "SystemExit": SystemExit(3),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "CancelledError": asyncio.CancelledError(),
        "StopIteration": StopIteration(1),
        "ExceptionGroup": ExceptionGroup("many", [ValueError("one")]),
        "UnicodeDecodeError": UnicodeDecodeError("utf-8", b"x", 0, 1, "no"),
        "TimeoutError": TimeoutError("slow service"),
    }
    raise errors[kind]


async def raises_later(kind: str) -> NoReturn:
    await asyncio.sleep(0)
    raises(kind)


def signals(kind: str) -> NoReturn:
    raise {
        "snooze": Snooze(1.5),
        "retry": Retry(2, reason="busy"),
        "rate_limit": RateLimitError(3),
        "cancel": Cancel("no longer wanted"),
    }[kind]


def crash(how: str) -> None:
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)


def spin() -> None:
    job().log("started")
    while True:
        pass


def spin_stubborn() -> None:
    """Survives SIGTERM, as C code that never returns would."""
    told = False
    while True:
        try:
            if not told:
                told = True
                job().log("started")
            while True:
                pass
        except SystemExit:
            continue


def tidy(path: str) -> None:
    try:
        job().log("started")
        threading.Event().wait()
    finally:
        Path(path).write_text("tidied")


async def tidy_later(path: str) -> None:
    note = Path(path)
    try:
        await job().log("started")
        await asyncio.Event().wait()
    finally:
        await asyncio.to_thread(note.write_text, "tidied")


def hold_memory(megabytes: int) -> int:
    _blocks.extend(bytearray(b"x" * 1024 * 1024) for _ in range(megabytes))
    return len(_blocks)


def grow_and_wait(megabytes: int) -> None:
    hold_memory(megabytes)
    job().log("started")
    threading.Event().wait()


def unstorable() -> object:
    return object()


def large(size: int) -> str:
    return "x" * size


def _pipe() -> int:
    """The file descriptor of this process's only socket: the way to its parent."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if number > 2 and stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
    raise LookupError("no socket")


def scribble() -> None:
    """Write nonsense where messages belong."""
    os.write(_pipe(), b"\x00\x00\x00\x04oops")
    threading.Event().wait()


def announce_too_much() -> None:
    os.write(_pipe(), b"\xff\xff\xff\xff")
    threading.Event().wait()


def close_the_pipe() -> None:
    os.close(_pipe())


def interrupt() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "still here"


def with_grandchild() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    job().log(str(child.pid))
    child.wait()


_DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


def leave_a_daemon(path: str, how: str) -> str:
    """Start a process that leaves its group, its session and its parent, then end as ``how`` says."""
    subprocess.run([sys.executable, "-c", _DAEMON, path], check=True)
    while not os.path.exists(path):
        time.sleep(0.01)
    if how == "fail":
        raise ValueError("on purpose")
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(0)
    while how == "hang":
        time.sleep(0.01)
    return "done"


def fork_and_return() -> int:
    """Leaves a forked copy of this process behind, which must not keep the pipe open."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    return child


# --- the job's verbs -----------------------------------------------------------------------------------


def reports() -> str:
    held = job()
    held.log("one")
    held.update_progress({"current": 1, "total": 2})
    held.update_data({"a": 2})
    held.discard()
    return f"{held.progress['current']} {held.data['a']} {held.discarded}"


async def reports_later() -> str:
    held = job()
    await held.log("one")
    await held.update_progress({"current": 1, "total": 2})
    held.update_data({"a": 2})  # not awaited: sent all the same
    await held.discard()
    return f"{held.progress['current']} {held.data['a']} {held.discarded}"


def many_reports(count: int) -> int:
    for number in range(count):
        job().update_progress(number)
    return count


async def many_unawaited(count: int) -> int:
    for number in range(count):
        job().update_progress(number)
    return count


def report_from_threads() -> None:
    held = job()
    threads = [threading.Thread(target=held.log, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def lost_lease() -> str:
    try:
        job().update_progress(1)
    except LeaseLostError as exc:
        return f"lost: {exc}"
    return "kept"


_go = threading.Event()
_late: list[str] = []


def leave_thread() -> None:
    """Return, with a thread behind that reports when ``free_thread`` says so."""
    held = job()

    def late() -> None:
        _go.wait()
        try:
            held.log("from an ended job")
        except RuntimeError as exc:
            _late.append(str(exc))

    threading.Thread(target=late, name="late", daemon=True).start()


def free_thread() -> list[str]:
    _go.set()
    next(thread for thread in threading.enumerate() if thread.name == "late").join()
    return _late


def unstorable_progress() -> None:
    job().update_progress(object())


async def leave_task() -> int:
    leftover = asyncio.create_task(asyncio.Event().wait(), name="leftover")
    await asyncio.sleep(0)
    return len(asyncio.all_tasks()) if not leftover.done() else 0


async def count_tasks() -> int:
    return len(asyncio.all_tasks())


def now() -> datetime:
    return datetime(2020, 1, 1, tzinfo=UTC)
