"""A task that is started again when other code cancels it.

An application shares the event loop with Windlass and may cancel every task that it finds there. A task that
others depend on is then started again, with a growing delay while it keeps ending. The same happens after an
error. No such task ends unnoticed.

When the event loop itself ends, the task is not started again: the loop is gone before that is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from windlass.core.clock import Clock, Timer
from windlass.core.text import printable

log: logging.Logger = logging.getLogger("windlass.tasks")

#: The delay before a task is restarted: the first, and the maximum. A task that ran for longer than the
#: maximum starts with the first delay again.
_FIRST_RESTART_MS, _MAX_RESTART_MS = 100, 5_000

Main = Callable[[], Coroutine[Any, Any, None]]


def _log_restart(name: str, reason: str) -> None:
    log.warning("the task windlass-%s ended unexpectedly and is started again: %s", name, reason)


class LastingTask:
    """Runs ``main`` on the running event loop until it returns or is stopped.

    The asyncio task is called ``windlass-name``. ``on_restart`` is called with the name and the reason.
    """

    def __init__(
        self,
        name: str,
        main: Main,
        clock: Clock,
        *,
        on_restart: Callable[[str, str], None] = _log_restart,
        on_over: Callable[[], object] = lambda: None,
    ) -> None:
        self.name: str = name
        self._main: Main = main
        self._clock = clock
        self._on_restart = on_restart
        self._on_over = on_over
        #: Done when the task has ended for good.
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Whether the task is no longer restarted.
        self.released: bool = False
        #: Set while the task waits for its restart: the timer, and why the task ended.
        self._timer: Timer | None = None
        self._reason = ""
        self._task: asyncio.Task[None] | None = None
        self._since_ms: float = 0
        self._failures = 0
        self._begin()

    def restart_now(self) -> None:
        """Restart the task at once if it waits for its restart."""
        if self._timer is not None:
            self._timer.cancel()
            self._restart()

    def cancel(self) -> None:
        """Cancel the task and do not restart it."""
        self.released = True
        if self._task is not None:
            self._task.cancel()
        else:
            self._end()

    async def stop(self) -> None:
        """Cancel the task and wait for its end."""
        self.cancel()
        await asyncio.wait([self.over])

    def _begin(self) -> None:
        self._timer, self._since_ms = None, self._clock.monotonic_ms()
        self._task = asyncio.create_task(self._main(), name=f"windlass-{self.name}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception()
        if self.released or error is None:
            self._end()
            return
        if self._clock.monotonic_ms() - self._since_ms > _MAX_RESTART_MS:
            self._failures = 0
        delay_ms = min(_FIRST_RESTART_MS * 2**self._failures, _MAX_RESTART_MS)
        self._failures = min(self._failures + 1, 10)
        self._reason = printable(str(error) or type(error).__name__)
        self._timer = self._clock.call_later(delay_ms, self._restart)

    def _restart(self) -> None:
        self._on_restart(self.name, self._reason)
        self._begin()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.over.done():
            self._on_over()
            self.over.set_result(None)
