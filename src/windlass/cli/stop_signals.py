"""Signals of a worker process: the first stops gracefully, the second at once, the third exits."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.worker import Worker

log = logging.getLogger("windlass.cli")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopper:
    """Closes a worker when the process receives a stop signal. ``asked``: the number of signals."""

    def __init__(self, worker: Worker) -> None:
        self.asked = 0
        self._worker = worker
        self._lifeline: int | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def install(self, lifeline: int | None = None) -> None:
        """Handle signals, and detect the end of a parent process."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.ask)
        if lifeline is not None:
            self._lifeline = lifeline
            loop.add_reader(lifeline, self._orphaned)

    def uninstall(self) -> None:
        """Stop watching the parent. Signal handlers stay, so that a late signal does not cut the clean-up."""
        if self._lifeline is not None:
            asyncio.get_running_loop().remove_reader(self._lifeline)
            self._lifeline = None

    def ask(self) -> None:
        """Handle one stop signal."""
        self.asked += 1
        if self.asked == 1:
            busy = self._worker.busy
            log.info("stopping%s", f": {busy} running jobs may finish; again to stop at once" if busy else "")
        elif self.asked == 2:
            log.warning("stopping at once: running jobs are given back")
        else:
            os._exit(130)
        task = asyncio.ensure_future(self._worker.close(force=self.asked > 1))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _orphaned(self) -> None:
        self.uninstall()
        if not self.asked:
            log.warning("the parent process is gone")
            self.ask()
