"""Runs handlers with ``isolation="process"`` in sandboxed child processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.worker.attempt import Attempt
from windlass.worker.options import WorkerOptions

if TYPE_CHECKING:
    from windlass.sandbox import ProcessPool


class SandboxRunner:
    """Starts the pool of child processes when the first isolated job comes.

    Cancelling a run (timeout, cancel, shutdown) ends the child that runs it. The next job gets a new one.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._pool: ProcessPool | None = None

    async def run(self, attempt: Attempt) -> Any:
        """Run ``attempt`` in a child process and return its result."""
        from windlass.sandbox import ProcessPool, SandboxCall, requests_to, target_of  # only when needed

        if self._pool is None:
            self._pool = ProcessPool(
                self._options.process_slots, max_jobs_per_child=self._options.max_jobs_per_child
            )
        handler, taken = attempt.handler, attempt.call
        filled = taken.filled() if taken is not None and taken.takes is not None else None
        call = SandboxCall(
            target=target_of(handler.task or handler.call),
            record=attempt.queue.app.codecs.bare(attempt.record, filled),  # the child does not get the keys
            takes_job=handler.takes_job,
            memory_limit=handler.memory_limit,
        )
        # The time limit starts when a child has the job. Waiting for a free child does not count.
        return await self._pool.run(
            call,
            requests_to(attempt.job),
            on_start=attempt.start_timer,
            why_stopped=lambda: attempt.stopped_for,
        )

    async def close(self) -> None:
        """End all child processes."""
        if self._pool is not None:
            await self._pool.close()
