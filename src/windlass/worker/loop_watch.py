"""Detects code that blocks the worker's event loop, and names the task.

While jobs run, a thread schedules a callback on the loop twice a second. When the loop has not run it for two
seconds, the thread reads the stack of the loop's thread and logs one warning. There is no warning after the
machine slept, or while it is too busy to run this thread on time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final

from windlass.core.clock import SYSTEM_CLOCK, Clock
from windlass.core.text import printable
from windlass.worker.attempt import Attempt

log: Final = logging.getLogger("windlass.worker")

EVERY_MS = 500
#: A loop that does not answer for this long counts as blocked.
LIMIT_MS = 2_000
_REMEDY: Final = (
    "no other job of this worker continues. Write the task as a plain def, which runs in a thread, "
    "or await asyncio.to_thread(...) around what blocks"
)


class LoopWatch:
    """Watches the loop on which it is started. ``attempts`` are the jobs that run there."""

    def __init__(self, attempts: Mapping[str, Attempt], clock: Clock = SYSTEM_CLOCK) -> None:
        self._attempts = attempts
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        #: When the last callback was scheduled, and whether the loop has run it.
        self._asked_ms = 0.0
        self._answered = True
        self._reported = False
        self._looked_ms: float | None = None

    def start(self) -> None:
        """Start the thread. Call this on the event loop to watch."""
        self.attach()
        self._thread = threading.Thread(target=self._run, name="windlass-loop-watch", daemon=True)
        self._thread.start()

    def attach(self) -> None:
        """Watch the running event loop, without a thread."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._loop is not None
        while not self._stop.wait(EVERY_MS / 1000) and not self._loop.is_closed():
            try:
                self.look()
            except RuntimeError:  # the loop has been closed
                return

    def look(self) -> None:
        """Schedule a callback on the loop, or check how long the last one has been pending."""
        now_ms, before_ms = self._clock.monotonic_ms(), self._looked_ms
        self._looked_ms = now_ms
        if before_ms is not None and now_ms - before_ms > 2 * EVERY_MS:
            self._asked_ms = now_ms  # this thread did not run either: start the time again
        if self._answered:
            self._reported = False
            if self._attempts and self._loop is not None:
                self._asked_ms, self._answered = now_ms, False
                self._loop.call_soon_threadsafe(self._answer)
        elif now_ms - self._asked_ms >= LIMIT_MS and not self._reported:
            self._reported = True
            self._report(now_ms - self._asked_ms)

    def _answer(self) -> None:
        self._answered = True

    def _report(self, silent_ms: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        running = asyncio.current_task(self._loop)
        if frame is None or running is None:
            return  # no task is running, so the machine is slow
        seconds = silent_ms / 1000
        for attempt in list(self._attempts.values()):
            if attempt.task is running:
                record = attempt.record
                log.warning(
                    "task %s has blocked the event loop for %.1f s (job %s of queue %s, at %s): %s",
                    *(printable(record.task), seconds, record.id, record.queue),
                    *(_place(frame, attempt.handler.call), _REMEDY),
                    extra={"job_id": record.id, "task": record.task, "queue": record.queue},
                )
                return
        tasks = sorted({printable(attempt.record.task) for attempt in list(self._attempts.values())})
        log.warning(
            "code outside of a handler has blocked the event loop for %.1f s (at %s); these tasks ran: %s",
            *(seconds, _place(frame, None), ", ".join(tasks[:10])),
        )


def _place(frame: FrameType, fn: Any) -> str:
    """Return the innermost line of the handler's own file, else the innermost line of the stack."""
    code = getattr(inspect.unwrap(fn), "__code__", None) if fn is not None else None
    own: FrameType | None = frame
    while own is not None and code is not None and own.f_code.co_filename != code.co_filename:
        own = own.f_back
    shown = own or frame
    return f"{shown.f_code.co_filename}:{shown.f_lineno} in {shown.f_code.co_name}"
