"""What a backend is: open, close, execute a request, listen for hints.

A backend owns its connections and never leaks one. All reads and writes go through ``execute``, so clocks,
telemetry, time limits and injected faults wrap one method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from windlass._renamed import old_names
from windlass.backend.capabilities import Capabilities
from windlass.backend.requests import Added, Request
from windlass.core.clock import SYSTEM_CLOCK, Clock
from windlass.core.job import Completed, JobRecord, NewJob
from windlass.core.outcome import Settled, Settlement

R = TypeVar("R")


class Listener(Protocol):
    """Wakes its owner when something may have changed. A hint: never the only way to notice.

    Topics: ``ready:<queue>`` (a job may be claimable), ``done:<queue>`` (a job finished),
    ``event:<queue>`` (the event log grew), ``stream:<queue>`` (a job put out more),
    ``worker:<id>`` (there is a command for this worker).
    """

    async def wait(self, timeout_ms: float | None = None, clock: Clock = SYSTEM_CLOCK) -> frozenset[str]:
        """The topics touched since the last call; waits for one, at most ``timeout_ms`` (then empty)."""
        ...

    def wake(self) -> None:
        """Make a pending or the next ``wait`` return at once. Callable from any thread."""
        ...

    def close(self) -> None:
        """Stop listening. Idempotent."""
        ...


@runtime_checkable
class OfferedListener(Protocol):
    """A listener of a worker that may be given a job before it claims (``Claim.idle``)."""

    def decline(self) -> None:
        """Want no job until the next claim. Callable from any thread."""
        ...

    def on_offer(self, begin: Callable[[JobRecord, float], bool]) -> None:
        """Show ``begin`` a job as it is given, and when its lease began at the earliest (``monotonic_ms``).

        Called on the loop of the listener. It answers whether it began; else the job waits for a claim.
        """
        ...


class Backend(Protocol):
    """A store of jobs. Usable from several event loops and threads at once."""

    @property
    def name(self) -> str:
        """``memory``, ``sqlite``, ...: as in the URL."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None:
        """Connect, and create or migrate what the store needs. Idempotent."""
        ...

    async def close(self) -> None:
        """Release every resource. Idempotent; pending calls finish first."""
        ...

    async def execute(self, request: Request[R]) -> R:
        """Carry out one request atomically and answer it.

        Raises ``StorageError`` when the store cannot be reached or does not answer in time.
        """
        ...

    def listen(self, topics: Iterable[str]) -> Listener:
        """Hints about ``topics``, from now on. To be awaited on the event loop that calls this."""
        ...

    def clone(self) -> Backend:
        """Another client of the same store, for use by another thread. Opened and closed on its own."""
        ...


class TransactionalBackend(Protocol):
    """A backend whose store is a database that the application itself can open."""

    def add_in_transaction(self, connection: Any, jobs: list[NewJob]) -> list[Added]:
        """Add jobs inside the open transaction of the caller's own ``connection``."""
        ...

    def settle_in_transaction(self, connection: Any, items: list[Settlement]) -> list[Settled]:
        """End attempts inside the open transaction of the caller's own ``connection``."""
        ...


@runtime_checkable
class ServedBackend(Protocol):
    """A backend behind a server, whose settings decide about durability."""

    async def server_settings(self) -> list[dict[str, str]]:
        """For each server its address as ``server``, and what it says about persistence and memory."""
        ...


@runtime_checkable
class OverlappingBackend(Protocol):
    """A backend whose server works in parallel with its client, so that two requests in flight are faster."""

    overlaps: Literal[True]


@runtime_checkable
class PushedBackend(Protocol):
    """A backend whose server pushes jobs: claims are answered at once, and need not wait for settlements."""

    claims_apart: Literal[True]


@runtime_checkable
class PreparedBackend(Protocol):
    """A backend where a queue must be made before other programs can add to it."""

    async def prepare(self, queues: Iterable[str]) -> None:
        """Make ``queues``, where they are not there yet. A worker is not ready before."""
        ...


@runtime_checkable
class CompletionHintsBackend(Protocol):
    """A backend whose hints may carry what happened, so that the listener need not ask the store."""

    def listen_completed(self, queue: str, receive: Callable[[list[Completed]], None]) -> Listener:
        """As ``listen(["done:<queue>"])``, but calls ``receive`` instead where the hint carries the jobs."""
        ...


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
