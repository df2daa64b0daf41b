"""What a storm has to know about a store: how to start it, and what can go wrong with it.

A new backend needs one class of a few lines: a name, its URL, the faults that it can suffer, and for a server
how to kill it. What the backend can do (groups, limits, flows, schedules) is read from its ``Capabilities``.
The servers of the test suite have theirs in ``tools/storm``.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tools.storm.plan import Can
from windlass.backend import Capabilities, open_backend

#: What can happen to any process that has a store to talk to.
OF_PROCESSES = frozenset({"kill", "kill-leader", "kill-producer", "freeze", "lost-reply", "clock"})
OF_CONNECTIONS = frozenset({"cut", "slow", "half-open"})


class StormStore:
    """A store for the length of one storm."""

    name = ""
    #: Whose clock decides: the ``node``'s (which can be made to jump) or the ``server``'s own.
    clock = "node"
    #: All actors are tasks of one process.
    in_process = False
    faults: frozenset[str] = OF_PROCESSES
    #: The point at which a process that is to freeze stops itself: it must hold up nobody there.
    freeze_point = "worker.claimed"
    #: Invariants that the backend declares not to keep.
    exempt: frozenset[str] = frozenset()
    #: After a failover, what was acknowledged this long before it may be lost (milliseconds).
    loss_window_ms = 0
    #: Workers hear of a pause up to this long after it was acknowledged (milliseconds).
    hearsay_ms = 0
    #: A job whose acknowledgement was lost is handed out again whenever its turn comes, however late.
    repeats_late = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.namespace = f"storm{secrets.token_hex(4)}"

    @property
    def url(self) -> str:
        """Where it is."""
        raise NotImplementedError

    @property
    def port(self) -> int | None:
        """The port that a wire can be put in front of; None: there is no such thing."""
        return None

    def url_by(self, port: int) -> str:
        """Its URL through a wire on ``port``."""
        raise NotImplementedError

    def start(self) -> None:
        """Make it ready. May block."""

    def stop(self) -> None:
        """Let go of it. Idempotent."""

    def history_mb(self) -> float | None:
        """What the history log takes in the server's memory, where that can be asked. May block."""
        return None

    def hurt(self, kind: str, target: int, force: float) -> None:
        """One of the faults that are the store's own (``kill-store``, ``failover``, ...). May block."""
        raise NotImplementedError(kind)

    @property
    def capabilities(self) -> Capabilities:
        return open_backend(self.url).capabilities

    @property
    def can(self) -> Can:
        found = self.capabilities
        return Can(
            groups=found.groups,
            limits=found.limits,
            flows=found.flows,
            schedules=found.schedules,
            low_priorities=found.exact_priority,
        )


class MemoryStorm(StormStore):
    """Everything in one process; workers are killed and frozen where they talk to the store."""

    name = "memory"
    in_process = True
    faults = OF_PROCESSES - {"kill-producer"}

    @property
    def url(self) -> str:
        return f"memory://{self.namespace}"


class SqliteStorm(StormStore):
    """One file, shared by processes. Its disk can be full; power can fail in the middle of a write."""

    name = "sqlite"
    freeze_point = "sqlite.committed"
    faults = OF_PROCESSES | {"full-disk", "torn", "damaged-record", "clock-ahead"}

    @property
    def path(self) -> Path:
        return self.directory / "jobs.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}?timeout=2"

    def hurt(self, kind: str, target: int, force: float) -> None:
        """``torn``: the start of a page that was never finished, at the end of the log. Nobody is alive."""
        _tear(self.path.with_name(f"{self.path.name}-wal"), force)


class FileStorm(StormStore):
    """One directory, shared by processes. Its log can end in the middle of a record."""

    name = "file"
    freeze_point = "file.synced"
    faults = OF_PROCESSES | {"full-disk", "torn", "damaged-record", "clock-ahead"}

    @property
    def url(self) -> str:
        return f"file://{self.directory / 'jobs'}?timeout=2"

    def hurt(self, kind: str, target: int, force: float) -> None:
        """``torn``: the start of a record that was never finished, at the end of the newest log."""
        logs = sorted((self.directory / "jobs").glob("*/*.log"), key=lambda path: path.stat().st_mtime)
        if logs:
            _tear(logs[-1], force)


def _tear(log: Path, force: float) -> None:
    if log.exists():
        with log.open("ab") as file:
            file.write(os.urandom(1 + round(force * 6_000)))


EMBEDDED: dict[str, type[StormStore]] = {"memory": MemoryStorm, "sqlite": SqliteStorm, "file": FileStorm}
