"""The parts of one worker, and the order in which they open and end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Final

from windlass._version import __version__
from windlass.core.job import Action, WorkerInfo
from windlass.worker import startup
from windlass.worker.driver import Driver
from windlass.worker.duties import Services
from windlass.worker.heartbeat import CpuMeter, StackDump, rss_kb
from windlass.worker.lifecycle import Lifecycle, Parts, Stop
from windlass.worker.parts import WorkerParts
from windlass.worker.running import Running

log: Final = logging.getLogger("windlass.worker")


class Assembly:
    """The parts of a worker. ``start`` opens them, ``lifecycle`` closes them."""

    def __init__(self, shared: WorkerParts, *, owns_app: bool) -> None:
        self._shared = shared
        self._owns_app = owns_app
        self._cpu = CpuMeter()
        self._stacks = StackDump(shared.app.clock)
        self.running: Running = Running(
            shared, wake=lambda: self.driver.wake(), settle=lambda: self.driver.settle()
        )
        self.services: Services = Services(shared, self.info, self._on_command)
        self.driver: Driver = Driver(shared, self.running, on_command_hint=self.services.beat)
        self.lifecycle: Lifecycle = Lifecycle(
            shared.stop,
            shared.emitter,
            open_parts=self._open,
            finish_work=self._finish_work,
            close_last={"the client of the store": shared.app.close} if owns_app else {},
        )

    async def start(self) -> None:
        """Open all parts. Idempotent."""
        if not self.lifecycle.is_closing:
            startup.check_strategies(self._shared)
        await self.lifecycle.start()

    async def run_until_done(self) -> None:
        """Wait until the pump has finished, then close."""
        await self.lifecycle.run_until_done(self._shared.supervisor.over("pump"))

    async def _open(self, parts: Parts) -> None:
        """Open one part after the other and register each with ``parts``."""
        shared = self._shared
        await shared.app.store.open()
        await startup.set_limits(shared, shared.shares.names)
        await startup.enter_lifespan(parts, shared)
        deployed = self._owns_app or await startup.deploy_schedules(shared.app)
        await self.running.open(parts)
        await self.driver.open(parts)
        self.services.open(parts, deployed=deployed)
        await asyncio.sleep(0)  # a start that was cancelled stops here, before any job starts
        self.lifecycle.check_wanted()  # a lifespan may have suppressed the cancel
        self.services.start()
        shared.supervisor.start("pump", self.driver.run)
        self.driver.admit_held()  # queues that were added while the parts opened

    async def _finish_work(self, stop: Stop) -> list[str]:
        """End and settle the running jobs. Returns the names of jobs and requests that did not end."""
        self._shared.pump.close()
        self.driver.decline()
        self.driver.request_claim()
        self._shared.supervisor.run_now("pump")
        return [*await self.running.finish(stop), *await self.driver.end(stop)]

    # --- while it runs -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop claiming jobs."""
        if not self._shared.pump.paused:
            self._shared.pump.paused = True
            self.driver.decline()
            self._shared.emitter.emit("paused")

    def resume(self) -> None:
        """Claim jobs again after ``pause``."""
        if self._shared.pump.paused:
            self._shared.pump.paused = False
            self._shared.emitter.emit("resumed")
            self.driver.request_claim()

    def info(self) -> WorkerInfo:
        """Return the description of the worker that its heartbeat sends."""
        shared, pump = self._shared, self._shared.pump
        return WorkerInfo(
            id=shared.worker_id,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            tag=shared.options.tag,
            queues=tuple(shared.shares.names),
            concurrency=pump.slots,
            busy=len(self.running.attempts),
            rss_kb=rss_kb(),
            cpu_percent=self._cpu.read(),
            version=__version__,
            quiet=pump.paused or pump.closing,
            leader=self.lifecycle.is_running and self.services.is_leader,
            stacks=self._stacks.shown,
        )

    def _on_command(self, action: Action) -> None:
        """Execute a command that was sent to this worker."""
        log.info("received the command %s", action)
        match action:
            case "quiet":
                self.pause()
            case "resume":
                self.resume()
            case "stop":
                self.lifecycle.begin_close()
            case "dump":
                log.warning("stacks of threads and tasks:\n%s", self._stacks.take(), extra={"lines": True})
                self._shared.supervisor.run_now("heartbeat")  # sends the stacks at once
