"""The members of a storm's cast: processes that take signals, or tasks of this process that take switches."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from tools.storm.actors import Actor, Role
from tools.storm.proxy import FaultyProxy
from tools.storm.witness import LOST_REPLIES

_LOOK_S = 0.02
#: How long a process may take to come to a point where it can be frozen: one that was told stays told.
_FREEZE_PATIENCE_S = 20.0


class Member:
    """One actor, wherever it lives."""

    def __init__(self, role: Role, wire: FaultyProxy | None) -> None:
        self.role = role
        self.wire = wire

    @property
    def name(self) -> str:
        return self.role.name

    @property
    def alive(self) -> bool:
        raise NotImplementedError

    @property
    def is_up(self) -> bool:
        """Whether it has begun: the first line of its journal is there."""
        first = Path(self.role.directory) / f"{self.name}.0000.jsonl"
        return first.exists() and first.stat().st_size > 0

    def kill(self) -> None:
        """End it without a word."""
        raise NotImplementedError

    def crash(self) -> str:
        """How it ended, if that was neither asked for nor done to it; else an empty text."""
        raise NotImplementedError

    async def freeze(self) -> bool:
        """Stop it where it is; whether that came about."""
        raise NotImplementedError

    def thaw(self) -> None:
        raise NotImplementedError

    def lose_replies(self) -> None:
        """The next answers of the store do not reach it."""
        raise NotImplementedError

    def cramp(self, most_bytes: int | None) -> None:
        """Let no file of it grow beyond ``most_bytes``; None: no such bound."""

    def stop(self) -> None:
        """Ask it to end well."""
        raise NotImplementedError

    async def ended(self, timeout: float) -> bool:
        """Wait for its end; False when it took too long and was killed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.alive:  # noqa: ASYNC110 - another process, or a task that may be dead
                    await asyncio.sleep(_LOOK_S)
                return True
        self.kill()
        return False

    async def close(self) -> None:
        """Leave nothing behind."""
        if self.wire is not None:
            await self.wire.close()


class ProcessMember(Member):
    """An actor with a process of its own."""

    def __init__(self, role: Role, wire: FaultyProxy | None) -> None:
        super().__init__(role, wire)
        self._killed = self._stopped = False
        directory = Path(role.directory)
        told = directory / f"{role.name}.json"
        told.write_bytes(msgspec.json.encode(role))
        with (directory / f"{role.name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tools.storm.process", str(told)],
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
        for _ in range(round(_FREEZE_PATIENCE_S / _LOOK_S)):
            if self._is_frozen:
                return True
            if not self.alive:
                return False
            await asyncio.sleep(_LOOK_S)
        return False

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def lose_replies(self) -> None:
        self._signal(signal.SIGUSR2)

    def cramp(self, most_bytes: int | None) -> None:
        if not self.alive:
            return
        wanted = resource.RLIM_INFINITY if most_bytes is None else most_bytes
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (wanted, resource.RLIM_INFINITY))

    def stop(self) -> None:
        self._stopped = True
        self._signal(signal.SIGCONT)  # one that froze late must hear it
        self._signal(signal.SIGTERM)

    async def ended(self, timeout: float) -> bool:
        give_up = asyncio.get_running_loop().time() + timeout
        while self.alive and asyncio.get_running_loop().time() < give_up:
            self._signal(signal.SIGCONT)
            await asyncio.sleep(_LOOK_S)
        if not self.alive:
            return True
        self.kill()
        return False

    async def close(self) -> None:
        self.kill()
        await super().close()


class TaskMember(Member):
    """An actor that is a task of this process. Dead or frozen, it no longer gets through to the store."""

    def __init__(self, role: Role, wire: FaultyProxy | None) -> None:
        super().__init__(role, wire)
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
