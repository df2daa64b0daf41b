"""Records, calls and recorders for tests that run real child processes."""

from __future__ import annotations

import asyncio
import os
import select
from typing import TYPE_CHECKING, Any

import pytest

from windlass.core.job import JobRecord
from windlass.jobs.payload import pack_call
from windlass.sandbox import JobRequest, ProcessPool, SandboxCall, target_of
from windlass.serde import get_codec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def call_to(
    fn: Callable[..., Any],
    *args: Any,
    takes_job: bool = False,
    memory_limit: int | None = None,
    **kwargs: Any,
) -> SandboxCall:
    """A call of ``fn`` with these arguments, as a job."""
    return SandboxCall(
        target=target_of(fn),
        record=record(fn.__name__, *args, **kwargs),
        takes_job=takes_job,
        memory_limit=memory_limit,
    )


def record(task: str, *args: Any, **kwargs: Any) -> JobRecord:
    payload = get_codec("json").encode(pack_call(args, kwargs))
    return JobRecord(queue="q", id="job-1", task=task, payload=payload, token="run-1", deliveries=1)


class Recorder:
    """Keeps the requests of a handler; ``started`` is set by the first one."""

    def __init__(self) -> None:
        self.requests: list[JobRequest] = []
        self.started = asyncio.Event()

    async def __call__(self, request: JobRequest) -> None:
        self.requests.append(request)
        self.started.set()


def wait_for_end(pid: int, timeout: float = 10) -> None:
    """Block until process ``pid``, of whoever it is, has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([pidfd], [], [], timeout)
        assert ended, f"process {pid} is still there"
    finally:
        os.close(pidfd)


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    """One child, little grace."""
    async with ProcessPool(1, grace=0.3) as made:
        yield made
