"""How a storm starts a store, and which faults apply to it.

A new backend needs one class of a few lines: a name, its URL, the faults that apply to it, and for a server
how to kill it. The features of the backend (groups, limits, flows, schedules) come from its ``Capabilities``.
The classes for servers are in ``tools/storm/servers.py``.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tools.storm.plan import Can
from windlass.backend import Capabilities, open_backend

#: Faults that apply to any process, and to connections to a server.
OF_PROCESSES = frozenset({"kill", "kill-leader", "kill-producer", "freeze", "lost-reply", "clock"})
OF_CONNECTIONS = frozenset({"cut", "slow", "half-open"})


class StormStore:
    """A store for the length of one storm."""

    name = ""
    #: Which clock the store uses: of the ``node`` (which can be made to jump) or of the ``server``.
    clock = "node"
    #: Whether all actors are tasks of one process.
    in_process = False
    faults: frozenset[str] = OF_PROCESSES
    #: The probe at which a process freezes itself. It must not hold a lock of the store there.
    freeze_point = "worker.claimed"
    #: Invariants that the backend does not promise.
    exempt: frozenset[str] = frozenset()
    #: A failover may lose changes that were acknowledged up to this long before it (milliseconds).
    loss_window_ms = 0
    #: Workers may start jobs up to this long after a pause was acknowledged (milliseconds).
    pause_delay_ms = 0
    #: Whether a job whose acknowledgement was lost may be delivered again at any later time.
    repeats_late = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.namespace = f"storm{secrets.token_hex(4)}"

    @property
    def url(self) -> str:
        """The URL of the store."""
        raise NotImplementedError

    @property
    def port(self) -> int | None:
        """The port of the server, for a proxy; None if there is no server."""
        return None

    def url_by(self, port: int) -> str:
        """The URL of the store through a proxy on ``port``."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the store. May block."""

    def stop(self) -> None:
        """Stop the store. May block. Idempotent."""

    def history_mb(self) -> float | None:
        """The size of the history log in the memory of the server; None if it is unknown. May block."""
        return None

    def inject_fault(self, kind: str, target: int, force: float) -> None:
        """Inject a fault into the store itself (``kill-store``, ``failover``, ...). May block."""
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
    """Everything in one process. Workers are killed and frozen by ``recording.Switches``."""

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

    def inject_fault(self, kind: str, target: int, force: float) -> None:
        """``torn``: append an incomplete page to the write-ahead log, while no process uses the store."""
        _tear(self.path.with_name(f"{self.path.name}-wal"), force)


class FileStorm(StormStore):
    """One directory, shared by processes. Its log can end in the middle of a record."""

    name = "file"
    freeze_point = "file.synced"
    faults = OF_PROCESSES | {"full-disk", "torn", "damaged-record", "clock-ahead"}

    @property
    def url(self) -> str:
        return f"file://{self.directory / 'jobs'}?timeout=2"

    def inject_fault(self, kind: str, target: int, force: float) -> None:
        """``torn``: append an incomplete record to the newest log."""
        logs = sorted((self.directory / "jobs").glob("*/*.log"), key=lambda path: path.stat().st_mtime)
        if logs:
            _tear(logs[-1], force)


def _tear(log: Path, force: float) -> None:
    if log.exists():
        with log.open("ab") as file:
            file.write(os.urandom(1 + round(force * 6_000)))


EMBEDDED: dict[str, type[StormStore]] = {"memory": MemoryStorm, "sqlite": SqliteStorm, "file": FileStorm}
