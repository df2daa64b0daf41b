"""A parent process that keeps worker processes running.

Children are started as new processes (never forked), each in its own process group, so that Ctrl-C reaches
only the parent, which passes it on. A child that dies is replaced, with a longer delay each time while it
keeps dying. If the parent is killed, its children see the end of a pipe and stop gracefully.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from windlass.cli.watch import SourceWatch
from windlass.core.clock import SYSTEM_CLOCK

log = logging.getLogger("windlass.supervisor")

INTERRUPTED = 130
_NOT_STARTED, _WRONG_USAGE = 1, 2
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0
#: A child that lived at least this long did not fail at its start.
_HEALTHY_MS = 30_000
_LOOK_EVERY = 1.0


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """The processes to run. ``command(number, lifeline)`` returns a child's argument list."""

    command: Callable[[int, int], list[str]]
    processes: int = 1
    burst: bool = False
    #: Restart the children when the sources of this module change.
    watch: str | None = None


class ProcessSupervisor:
    """Starts, replaces and stops the processes of a plan."""

    def __init__(self, plan: ProcessPlan) -> None:
        self._plan = plan
        self._children: dict[int, Process] = {}
        self._reloading: set[int] = set()
        self._asked = 0
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._lifeline = os.pipe()

    async def run(self) -> int:
        """Run until all children have ended and none is replaced; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        watcher = asyncio.create_task(self._watch()) if self._plan.watch else None
        try:
            codes = await asyncio.gather(*(self._keep(n) for n in range(self._plan.processes)))
        finally:
            if watcher is not None:
                watcher.cancel()
                with suppress(asyncio.CancelledError):
                    await watcher
            for end in self._lifeline:
                os.close(end)
        return self._exit_code(codes)

    def _exit_code(self, codes: list[int]) -> int:
        if self._asked > 1 or INTERRUPTED in codes:
            return INTERRUPTED
        if self._asked:  # the signal kills a child that has no handler yet
            codes = [code for code in codes if code != -signal.SIGTERM]
        return _WRONG_USAGE if _WRONG_USAGE in codes else int(any(codes))

    # --- one child -----------------------------------------------------------------------------------

    async def _keep(self, number: int) -> int:
        pause = _FIRST_PAUSE
        while True:
            self._changed.clear()
            started_ms = SYSTEM_CLOCK.monotonic_ms()
            try:
                code = await self._run_child(number)
            except OSError as exc:  # too many processes, or no memory: the others continue
                log.error("worker process %d could not be started: %s", number + 1, exc)
                code = _NOT_STARTED
            if self._asked or (self._plan.burst and code == 0):
                return code
            if number in self._reloading:
                self._reloading.discard(number)
                pause = _FIRST_PAUSE
                continue
            if SYSTEM_CLOCK.monotonic_ms() - started_ms > _HEALTHY_MS:
                pause = _FIRST_PAUSE
            if self._plan.watch and code != 0:
                log.warning("worker process %d %s; waiting for a change", number + 1, _how(code))
                await self._first_of(self._changed)
            elif code == _WRONG_USAGE:
                self._on_signal()  # this and the other children would always fail like this
                return code
            else:
                log.warning("worker process %d %s; another starts in %g s", number + 1, _how(code), pause)
                await self._first_of(None, pause)
                pause = min(pause * 2, _LAST_PAUSE)
            if self._stop.is_set():
                return code

    async def _run_child(self, number: int) -> int:
        lifeline = self._lifeline[0]
        command = self._plan.command(number, lifeline)
        child = await asyncio.create_subprocess_exec(*command, pass_fds=(lifeline,), process_group=0)
        self._children[number] = child
        log.info("worker process %d is %d", number + 1, child.pid)
        if self._asked:
            _send(child, signal.SIGTERM)
        try:
            return await child.wait()
        finally:
            del self._children[number]

    async def _first_of(self, event: asyncio.Event | None, timeout: float | None = None) -> None:
        """Wait for ``event``, the timeout, or a stop."""
        waits = {asyncio.ensure_future(e.wait()) for e in (self._stop, event) if e is not None}
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    # --- signals and changes ---------------------------------------------------------------------------

    def _on_signal(self) -> None:
        self._asked += 1
        self._stop.set()
        if self._asked == 1:
            log.info("stopping %d worker processes", len(self._children))
        number = signal.SIGTERM if self._asked <= 2 else signal.SIGKILL
        for child in self._children.values():
            _send(child, number)

    async def _watch(self) -> None:
        sources = SourceWatch(self._plan.watch or "")
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            changed = sources.changed()
            if not changed:
                continue
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            log.info("%s%s changed: reloading", changed[0], more)
            self._changed.set()
            for number, child in self._children.items():
                if number not in self._reloading:  # a second signal would stop it at once
                    self._reloading.add(number)
                    _send(child, signal.SIGTERM)


def _send(child: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        child.send_signal(number)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
