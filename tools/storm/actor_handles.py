"""Handles that start, kill and freeze the actors of a storm, as processes or as tasks of this process."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from tools.storm.actors import FREEZE_WITHIN_S, Actor, Role
from tools.storm.proxy import FaultyProxy
from tools.storm.recording import LOST_REPLIES

_POLL_S = 0.02
#: How long to wait until a process reaches a point where it can be frozen: longer than it tries to.
_FREEZE_TIMEOUT_S = FREEZE_WITHIN_S + 5.0


class ActorHandle:
    """One running actor. The methods have the same effect for processes and for tasks."""

    def __init__(self, role: Role, proxy: FaultyProxy | None) -> None:
        self.role = role
        self.proxy = proxy

    @property
    def name(self) -> str:
        return self.role.name

    @property
    def alive(self) -> bool:
        raise NotImplementedError

    @property
    def is_up(self) -> bool:
        """Whether the actor has started: the first line of its journal is written."""
        first = Path(self.role.directory) / f"{self.name}.0000.jsonl"
        return first.exists() and first.stat().st_size > 0

    def kill(self) -> None:
        """End it at once, without cleanup."""
        raise NotImplementedError

    def crash(self) -> str:
        """How the actor ended, if it was neither stopped nor killed; otherwise an empty text."""
        raise NotImplementedError

    async def freeze(self) -> bool:
        """Suspend it; returns whether it is suspended now."""
        raise NotImplementedError

    def thaw(self) -> None:
        """Let it continue after ``freeze``."""
        raise NotImplementedError

    def lose_replies(self) -> None:
        """Drop the next answers of the store to this actor."""
        raise NotImplementedError

    def limit_file_size(self, most_bytes: int | None) -> None:
        """Let no file of the actor grow beyond ``most_bytes``; None: no limit."""

    def stop(self) -> None:
        """Ask it to finish its work and end."""
        raise NotImplementedError

    async def ended(self, timeout: float) -> bool:
        """Wait until it ends; False if it was killed after ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.alive:  # noqa: ASYNC110 - another process, or a task that may be dead
                    await asyncio.sleep(_POLL_S)
                return True
        self.kill()
        return False

    async def close(self) -> None:
        """Kill the actor and release its resources."""
        if self.proxy is not None:
            await self.proxy.close()


class ProcessHandle(ActorHandle):
    """An actor in a process of its own, controlled by signals."""

    def __init__(self, role: Role, proxy: FaultyProxy | None) -> None:
        super().__init__(role, proxy)
        self._killed = self._stopped = False
        directory = Path(role.directory)
        role_file = directory / f"{role.name}.json"
        role_file.write_bytes(msgspec.json.encode(role))
        with (directory / f"{role.name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tools.storm.process", str(role_file)],
                cwd=Path(__file__).resolve().parents[2],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        if self.alive:
            self._killed = True
            self._process.kill()
        self._process.wait()

    def crash(self) -> str:
        code = self._process.poll()
        if code in (None, 0) or self._killed or (self._stopped and code == -signal.SIGTERM):
            return ""
        log = (Path(self.role.directory) / f"{self.role.name}.log").read_text(errors="replace")
        return f"{self.name} ended with {code}: {log[-600:]}"

    def _signal(self, number: signal.Signals) -> None:
        if self.alive and (self.is_up or number not in (signal.SIGUSR1, signal.SIGUSR2)):
            self._process.send_signal(number)

    @property
    def _is_frozen(self) -> bool:
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    async def freeze(self) -> bool:
        if not self.is_up:
            return False
        self._signal(signal.SIGUSR1)
        for _ in range(round(_FREEZE_TIMEOUT_S / _POLL_S)):
            if self._is_frozen:
                return True
            if not self.alive:
                return False
            await asyncio.sleep(_POLL_S)
        return False

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def lose_replies(self) -> None:
        self._signal(signal.SIGUSR2)

    def limit_file_size(self, most_bytes: int | None) -> None:
        if not self.alive:
            return
        wanted = resource.RLIM_INFINITY if most_bytes is None else most_bytes
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (wanted, resource.RLIM_INFINITY))

    def stop(self) -> None:
        self._stopped = True
        self._signal(signal.SIGCONT)  # a process that was frozen late could not handle SIGTERM
        self._signal(signal.SIGTERM)

    async def ended(self, timeout: float) -> bool:
        give_up = asyncio.get_running_loop().time() + timeout
        while self.alive and asyncio.get_running_loop().time() < give_up:
            self._signal(signal.SIGCONT)
            await asyncio.sleep(_POLL_S)
        if not self.alive:
            return True
        self.kill()
        return False

    async def close(self) -> None:
        self.kill()
        await super().close()


class TaskHandle(ActorHandle):
    """An actor that is a task of this process. While dead or frozen, it cannot reach the store."""

    def __init__(self, role: Role, proxy: FaultyProxy | None) -> None:
        super().__init__(role, proxy)
        self._actor = Actor(role)
        self._task = asyncio.create_task(self._actor.run(), name=role.name)

    @property
    def alive(self) -> bool:
        return not self._task.done() and not self._actor.switches.dead

    def kill(self) -> None:
        self._actor.switches.dead = True
        self._actor.stop()

    def crash(self) -> str:
        if not self._task.done() or self._actor.switches.dead or self._task.exception() is None:
            return ""
        return f"{self.name} ended with {self._task.exception()!r}"

    async def freeze(self) -> bool:
        self._actor.switches.frozen = True
        return True

    def thaw(self) -> None:
        self._actor.switches.frozen = False

    def lose_replies(self) -> None:
        self._actor.switches.lose += LOST_REPLIES

    def stop(self) -> None:
        self.thaw()
        self._actor.stop()

    async def close(self) -> None:
        self.kill()
        with contextlib.suppress(Exception):
            await self._task
        await super().close()
