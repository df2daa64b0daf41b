"""The interface of a backend: open, close, execute a request, listen for hints.

A backend owns its connections and closes them in ``close``. All reads and writes go through ``execute``, so
clocks, telemetry, timeouts and injected faults wrap one method.

``Backend`` is required. The other protocols are optional: a backend that has their members gets the faster or
additional behaviour that they describe. ``docs/own-backend.md`` shows how to write a backend.
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
    """Receives hints that something may have changed. Hints may be lost or repeated, so callers also poll.

    Topics: ``ready:<queue>`` (a job may be claimable), ``done:<queue>`` (a job finished),
    ``event:<queue>`` (the event log grew), ``stream:<queue>`` (a job wrote live output),
    ``worker:<id>`` (there is a command for this worker), ``schedules`` (a schedule changed).
    """

    async def wait(self, timeout_ms: float | None = None, clock: Clock = SYSTEM_CLOCK) -> frozenset[str]:
        """Return the topics with hints since the last call, and wait for a hint if there are none.

        The set is empty if ``timeout_ms`` passed or ``wake`` was called before a hint came. ``timeout_ms``
        None means no timeout. Runs on the event loop that created the listener.
        """

    def wake(self) -> None:
        """Make the pending ``wait``, or else the next one, return at once. Callable from any thread."""

    def close(self) -> None:
        """Stop listening. Idempotent."""


@runtime_checkable
class OfferedListener(Protocol):
    """A listener of a worker to which the store may lease a job ahead of its next claim (``Claim.idle``)."""

    def decline(self) -> None:
        """Accept no such job until the next claim. Callable from any thread."""

    def on_offer(self, begin: Callable[[JobRecord, float], bool]) -> None:
        """Call ``begin`` with each such job and the earliest possible start of its lease (``monotonic_ms``).

        ``begin`` runs on the event loop of the listener. It returns whether it started the job. If not, the
        job is returned by the next claim.
        """


class Backend(Protocol):
    """A client of a store of jobs. Usable from several event loops and threads at once."""

    @property
    def name(self) -> str:
        """The kind of store, as in its URL: ``memory``, ``sqlite``, ..."""

    @property
    def capabilities(self) -> Capabilities:
        """What the store supports. Requests that need anything else never reach ``execute``."""

    async def open(self) -> None:
        """Connect, and create or migrate the tables, files or keys of the store. Idempotent.

        Raises ``StorageError`` if the store cannot be opened.
        """

    async def close(self) -> None:
        """Wait for pending requests, then release every resource. Idempotent."""

    async def execute(self, request: Request[R]) -> R:
        """Execute one request atomically, and return its answer when the change is durable.

        Raises ``StorageError`` if the store cannot be reached or does not answer within its timeout. The
        request may then have been executed or not; callers repeat it. Cancelling the caller must not
        interrupt a request halfway.
        """

    def listen(self, topics: Iterable[str]) -> Listener:
        """Return a listener for hints about ``topics`` from now on.

        It belongs to the running event loop, and ``Listener.wait`` is awaited there.
        """

    def clone(self) -> Backend:
        """Return another client of the same store, for another thread. It is opened and closed separately."""


class TransactionalBackend(Protocol):
    """A backend whose store is a database that the application itself can open.

    Both methods are synchronous, and neither commits nor rolls back.
    """

    def add_in_transaction(self, connection: Any, jobs: list[NewJob]) -> list[Added]:
        """Add jobs inside the open transaction of the caller's ``connection``; answers as ``Add``."""

    def settle_in_transaction(self, connection: Any, items: list[Settlement]) -> list[Settled]:
        """End attempts inside the open transaction of the caller's ``connection``; answers as ``Settle``."""


@runtime_checkable
class ServedBackend(Protocol):
    """A backend of a server whose settings determine durability."""

    async def server_settings(self) -> list[dict[str, str]]:
        """Return the settings for persistence and memory of each server, with its address as ``server``."""


@runtime_checkable
class OverlappingBackend(Protocol):
    """A backend whose server works in parallel with its client.

    A busy worker then sends its next request before the last one is answered.
    """

    overlaps: Literal[True]


@runtime_checkable
class PushedBackend(Protocol):
    """A backend whose server pushes jobs to the client.

    Claims are answered at once, so a worker sends them separately from its settlements.
    """

    claims_separately: Literal[True]


@runtime_checkable
class PreparedBackend(Protocol):
    """A backend whose queues must be declared before other programs can add to them."""

    async def prepare(self, queues: Iterable[str]) -> None:
        """Declare those of ``queues`` that do not exist. A worker is ready only after this."""


@runtime_checkable
class CompletionHintsBackend(Protocol):
    """A backend whose hints may contain the completed jobs, which saves the listener a request."""

    def listen_completed(self, queue: str, receive: Callable[[list[Completed]], None]) -> Listener:
        """Listen as ``listen(["done:<queue>"])`` does, but call ``receive`` if the hint contains the jobs.

        ``receive`` runs on the event loop of the listener.
        """


@runtime_checkable
class AwaitingListener(Protocol):
    """A listener of ``listen_completed`` whose backend may answer an add by the end of its job."""

    #: Whether a caller waits for the end of a job, by id. Any thread may call it. Set by the owner.
    awaits: Callable[[str], bool]


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
