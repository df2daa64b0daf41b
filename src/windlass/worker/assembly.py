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
from windlass.worker.heartbeat import CpuMeter, StackDump, rss_kb
from windlass.worker.lifecycle import Lifecycle, Parts, Stop
from windlass.worker.parts import WorkerParts
from windlass.worker.running import Running
from windlass.worker.services import Services

log: Final = logging.getLogger("windlass.worker")


class Assembly:
    """The parts of a worker. ``start`` opens them, ``lifecycle`` closes them."""

    def __init__(self, shared: WorkerParts, *, owns_app: bool) -> None:
        self._shared = shared
        self._owns_app = owns_app
        self._cpu = CpuMeter()
        self._stacks = StackDump(shared.app.clock)
        self.running: Running = Running(shared, wake=lambda: self.driver.wake())
        self.services: Services = Services(shared, self.info, self._obey)
        self.driver: Driver = Driver(shared, self.running, attend=self.services.beat)
        self.lifecycle: Lifecycle = Lifecycle(
            shared.stop,
            shared.emitter,
            open_parts=self._open,
            wind_up=self._wind_up,
            last={"the client of the store": shared.app.close} if owns_app else {},
        )

    async def start(self) -> None:
        """Open all parts. Idempotent."""
        if not self.lifecycle.is_closing:
            startup.check_strategies(self._shared)
        await self.lifecycle.start()

    async def see_out(self) -> None:
        """Run until the pump has finished, then close."""
        await self.lifecycle.see_out(self._shared.supervisor.over("pump"))

    async def _open(self, parts: Parts) -> None:
        """Open one part after the other; ``parts`` undoes it."""
        shared = self._shared
        await shared.app.store.open()
        await startup.set_limits(shared)
        await startup.enter_lifespan(parts, shared)
        deployed = self._owns_app or await startup.deploy_schedules(shared.app)
        await self.running.open(parts)
        await self.driver.open(parts)
        self.services.open(parts, deployed=deployed)
        await asyncio.sleep(0)  # if this was cancelled meanwhile, stop here, before any job starts
        self.services.start()
        shared.supervisor.start("pump", self.driver.run)

    async def _wind_up(self, stop: Stop) -> list[str]:
        """End what runs and settle it; the names of what did not end."""
        self._shared.pump.close()
        self.driver.decline()
        self.driver.look_again()
        self._shared.supervisor.hurry("pump")
        return [*await self.running.finish(stop), *await self.driver.end(stop)]

    # --- while it runs -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Claim no more jobs."""
        if not self._shared.pump.paused:
            self._shared.pump.paused = True
            self.driver.decline()
            self._shared.emitter.emit("paused")

    def resume(self) -> None:
        """Undo ``pause``."""
        if self._shared.pump.paused:
            self._shared.pump.paused = False
            self._shared.emitter.emit("resumed")
            self.driver.look_again()

    def info(self) -> WorkerInfo:
        """The worker as its heartbeat describes it."""
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

    def _obey(self, action: Action) -> None:
        """Carry out a command that was sent to this worker."""
        log.info("received the command %s", action)
        match action:
            case "quiet":
                self.pause()
            case "resume":
                self.resume()
            case "stop":
                self.lifecycle.begin_close()
            case "dump":
                log.warning("what runs here now:\n%s", self._stacks.take(), extra={"lines": True})
                self._shared.supervisor.hurry("heartbeat")  # the stacks are there for those who asked
