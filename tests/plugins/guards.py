"""Fail a test that leaves a thread or an asyncio task behind, and drop the memory stores that it opened.

Both guards check after the last fixture of the test was torn down, so a fixture may own threads and tasks.
Threads get at most ``THREAD_TIMEOUT`` seconds to end; tasks get a few turns of the event loop.

A test may leave threads of the whole process running if it is marked with
``@pytest.mark.keeps_threads("windlass-portal*", reason="...")``.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from fnmatch import fnmatch
from typing import TYPE_CHECKING

import pytest

from windlass.backends.memory import backend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

#: Seconds that threads may take to end after the test.
THREAD_TIMEOUT = 5.0
#: Turns of the event loop that cancelled tasks may take to end.
LOOP_TURNS = 10


@pytest.fixture(autouse=True)
def no_thread_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if a thread that it started is still running afterwards."""
    before = set(threading.enumerate())
    yield
    marks = request.node.iter_markers("keeps_threads")
    allowed = [pattern for mark in marks for pattern in mark.args]
    left = leaked_threads(before, allowed, timeout=THREAD_TIMEOUT)
    if left:
        pytest.fail(f"threads left behind: {', '.join(left)}", pytrace=False)


@pytest.fixture(autouse=True)
def own_memory_stores() -> Iterator[None]:
    """Remove the memory stores that a test opened, which otherwise exist as long as the process."""
    before = set(backend._stores)
    yield
    for name in set(backend._stores) - before:
        del backend._stores[name]


@pytest.fixture
async def no_task_leaks() -> AsyncIterator[None]:
    """Fail the test if an asyncio task that it started is still running afterwards."""
    before = asyncio.all_tasks()
    yield
    left = await leaked_tasks(before)
    if left:
        pytest.fail(f"tasks left behind: {', '.join(left)}", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Put the task guard in front of the fixtures of every coroutine test."""
    if collector.istestfunction(obj, name) and inspect.iscoroutinefunction(obj) and not _guarded(obj):
        pytest.mark.usefixtures("no_task_leaks")(obj)


def leaked_threads(before: set[threading.Thread], allowed: list[str], *, timeout: float) -> list[str]:
    """The names of threads that started since ``before`` and do not end within ``timeout`` seconds each."""
    started = [thread for thread in threading.enumerate() if thread not in before]
    suspects = [thread for thread in started if not any(fnmatch(thread.name, name) for name in allowed)]
    for thread in suspects:
        thread.join(timeout)
    return sorted(thread.name for thread in suspects if thread.is_alive())


async def leaked_tasks(before: set[asyncio.Task[object]]) -> list[str]:
    """The names of tasks of this loop that started since ``before`` and do not end by themselves."""
    for _ in range(LOOP_TURNS):
        if not _open_tasks(before):
            break
        await asyncio.sleep(0)
    return sorted(_describe(_open_tasks(before)))


def _open_tasks(before: set[asyncio.Task[object]]) -> set[asyncio.Task[object]]:
    current = asyncio.current_task()
    return {task for task in asyncio.all_tasks() - before if task is not current and not _is_runner(task)}


def _is_runner(task: asyncio.Task[object]) -> bool:
    """Whether it is the task of anyio that runs tests and fixtures."""
    return getattr(task.get_coro(), "__qualname__", "").startswith("TestRunner.")


def _describe(tasks: Iterable[asyncio.Task[object]]) -> list[str]:
    return [f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')})" for task in tasks]


def _guarded(obj: object) -> bool:
    marks: list[pytest.Mark] = getattr(obj, "pytestmark", [])
    return any(mark.name == "usefixtures" and "no_task_leaks" in mark.args for mark in marks)
