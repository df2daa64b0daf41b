"""The harness of a test: a store, its time, and the verbs that nearly every test needs.

The author of a backend only provides a way to connect. A harness owns one store that no other test uses, and
sets its time through ``now_ms`` in every request. Tests send other requests through ``do``. A ``Variant``
changes how requests are sent.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from unittest import mock

from windlass.backend import Backend, open_backend
from windlass.backend import requests as rq
from windlass.core.clock import SystemClock
from windlass.core.ids import new_id
from windlass.core.job import AttemptRecord, Event, JobRecord, JobRef, NewJob
from windlass.core.outcome import Outcome, Settled, Settlement
from windlass.errors import UnsupportedByBackendError
from windlass_conformance import damage
from windlass_conformance.damage import Damaged

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from windlass.core.states import JobState

R = TypeVar("R")

#: The time at which every test starts.
START_MS = 1_750_000_000_000
#: The default queue and worker.
QUEUE = "mail"
WORKER = "w1"
LEASE_MS = 30_000


#: The queue for requests that are sent together with those of a test.
BESIDE = "beside"


class Variant(NamedTuple):
    """How a harness sends requests, see ``variants``."""

    own: bool = False
    together: bool = False
    plain: bool = False


class Harness(ABC):
    """One fresh store under test. Use it as an async context manager."""

    #: Whether the store uses the clock of this process, which the harness can move.
    moves_clock = True
    #: The number of jobs of a long queue: more than the number up to which the store uses another algorithm.
    long_queue = 5_000

    def __init__(self, name: str) -> None:
        #: The backend's name, as in its URL.
        self.name = name
        #: The time that requests carry; tests move it with ``pass_ms``.
        self.now_ms = START_MS
        self.namespace = f"test-{new_id()}"
        self._backend: Backend | None = None
        self._clones: list[Backend] = []
        self._claims = itertools.count(1)
        self._neighbours = itertools.count(1)
        self._named: set[tuple[str, str]] = set()
        self._patches = ExitStack()
        #: Set it before the harness is started.
        self.variant = Variant()
        #: Called with the features of a test whose capability is missing (see ``needs``), and the reason.
        self.on_missing: Callable[..., None] | None = None

    def declare_missing(self, test: Callable[..., Any], capability: str) -> None:
        """Report that this backend refuses the features that ``test`` tests elsewhere."""
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "feature"]
        if self.on_missing is not None and marks:
            rows = [row for mark in marks for row in mark.args]
            reason = f"{self.name} declares {capability} missing"
            self.on_missing(*rows, reason=reason, capability=capability)

    @abstractmethod
    def connect(self, namespace: str) -> Backend:
        """A new client, not yet opened, of ``namespace``. Every call reaches the same store."""

    @property
    def database(self) -> str:
        """The SQLite file that an application may open for itself; in memory where the store has none."""
        return ":memory:"

    # --- damage ----------------------------------------------------------------------------------

    @property
    def damages(self) -> tuple[str, ...]:
        """The kinds of ``damage`` for this store; none if it keeps no bytes."""
        return ()

    def damage(self, job_id: str, kind: str, queue: str = QUEUE) -> Damaged:
        """Damage the stored record of a job: see ``windlass_conformance.damage``."""
        raise UnsupportedByBackendError(self.name, "damage", "no stored bytes, or no way to reach them")

    # --- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Harness:
        if self.variant.own and self.moves_clock:
            moved = mock.patch.object(SystemClock, "now_ms", lambda clock: self.now_ms)
            self._patches.enter_context(moved)
        self._backend = self.connect(self.namespace)
        await self._backend.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._patches:
            for client in self._clones:
                await client.close()
            await self.backend.close()

    @property
    def backend(self) -> Backend:
        """The client that the verbs below use."""
        assert self._backend is not None, "the harness is not started: use it as a context manager"
        return self._backend

    async def reopen(self) -> None:
        """Close the client and connect again to the same store."""
        await self.backend.close()
        self._backend = self.connect(self.namespace)
        await self._backend.open()

    async def clone(self) -> Backend:
        """Another open client of the same store, closed with the harness."""
        return await self._adopt(self.backend.clone())

    async def stranger(self) -> Backend:
        """An open client of another namespace of the same store, closed with the harness."""
        return await self._adopt(self.connect(f"{self.namespace}-other"))

    async def _adopt(self, client: Backend) -> Backend:
        await client.open()
        self._clones.append(client)
        return client

    # --- verbs -----------------------------------------------------------------------------------

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms

    async def do(self, request: rq.Request[R]) -> R:
        """Send ``request``, stamped with the harness's time, or as the variant says."""
        if not self.variant.own and request.now_ms is None:
            request.now_ms = self.now_ms
        if not self.variant.together:
            return await self.backend.execute(request)
        before, after = self._neighbour(request), self._neighbour(request)
        sent = [asyncio.ensure_future(self.backend.execute(one)) for one in (before, request, after)]
        await asyncio.wait(sent)
        for neighbour in (sent[0], sent[2]):
            neighbour.result()
        return cast("R", sent[1].result())

    def _neighbour(self, request: rq.Request[Any]) -> rq.Request[Any]:
        """A request that is independent of ``request``: an add for an add, else one that changes nothing."""
        if isinstance(request, rq.Add):
            name = f"beside{next(self._neighbours)}"
            job = NewJob(queue=BESIDE, id=name, task="send", payload=b"[]", request_id=name)
            return rq.Add(jobs=[job], now_ms=request.now_ms)
        return rq.ChangeJob(ref=JobRef(BESIDE, "none"), priority=1, now_ms=request.now_ms)

    def new(self, job_id: str, queue: str = QUEUE, **fields: Any) -> NewJob:
        """A job to be added; ``fields`` are those of ``NewJob``."""
        if self.variant.plain and (queue, job_id) not in self._named:
            self._named.add((queue, job_id))
            fields = {"request_id": job_id, **fields}
        return NewJob(**{"queue": queue, "id": job_id, "task": "send", "payload": b"[]", **fields})

    async def add(self, job_id: str, queue: str = QUEUE, **fields: Any) -> rq.Added:
        """Add one job."""
        return (await self.do(rq.Add(jobs=[self.new(job_id, queue, **fields)])))[0]

    async def add_many(self, *job_ids: str, queue: str = QUEUE, **fields: Any) -> None:
        """Add jobs that differ only in their ids, in this order."""
        await self.do(rq.Add(jobs=[self.new(job_id, queue, **fields) for job_id in job_ids]))

    def claim_request(
        self,
        *queues: rq.ClaimQueue,
        limit: int = 1,
        worker: str = WORKER,
        lease_ms: int = LEASE_MS,
        claim_id: str = "",
    ) -> rq.Claim:
        """A claim with a new id, for ``queues`` or the default queue."""
        return rq.Claim(
            worker=worker,
            queues=list(queues) or [rq.ClaimQueue(QUEUE, limit, limit)],
            limit=limit,
            claim_id=claim_id or f"claim{next(self._claims)}",
            lease_ms=lease_ms,
        )

    async def claim(self, limit: int = 1, queue: str = QUEUE, **fields: Any) -> list[JobRecord]:
        """Claim up to ``limit`` jobs of one queue."""
        request = self.claim_request(rq.ClaimQueue(queue, limit, limit), limit=limit, **fields)
        return (await self.do(request)).jobs

    async def take(self, queue: str = QUEUE, **fields: Any) -> JobRecord:
        """Claim one job; there must be one."""
        jobs = await self.claim(1, queue, **fields)
        assert jobs, f"queue {queue!r} gave no job"
        return jobs[0]

    async def start(self, job_id: str, queue: str = QUEUE, **fields: Any) -> JobRecord:
        """Add a job and claim it; no other job may be first in line."""
        await self.add(job_id, queue, **fields)
        job = await self.take(queue)
        assert job.id == job_id, f"{job.id} was in front of {job_id}"
        return job

    async def settle(self, job: JobRecord, outcome: Outcome, **fields: Any) -> Settled:
        """End the attempt that ``job`` was claimed for."""
        return (await self.do(rq.Settle(items=[settlement(job, outcome, **fields)]))).items[0]

    async def finish(self, job_id: str, outcome: Outcome = Outcome.COMPLETE, **fields: Any) -> JobRecord:
        """Add a job, run it, and end it by ``outcome``; returns its record."""
        job = await self.start(job_id, **fields)
        assert await self.settle(job, outcome) is Settled.OK
        return await self.get(job_id)

    # --- views -----------------------------------------------------------------------------------

    async def find(self, job_id: str, queue: str = QUEUE) -> JobRecord | None:
        """A job's record, or None."""
        return (await self.do(rq.GetJobs(refs=[JobRef(queue, job_id)])))[0]

    async def get(self, job_id: str, queue: str = QUEUE) -> JobRecord:
        """A job's record, which must be there."""
        record = await self.find(job_id, queue)
        assert record is not None, f"queue {queue!r} has no job {job_id!r}"
        return record

    async def state(self, job_id: str, queue: str = QUEUE) -> JobState:
        """A job's state."""
        return (await self.get(job_id, queue)).state

    async def counts(self, queue: str = QUEUE) -> dict[JobState, int]:
        """How many jobs are in each state, without the empty ones."""
        counts = await self.do(rq.CountJobs(queue=queue))
        return {state: count for state, count in counts.items() if count}

    async def events(self, queue: str = QUEUE, after: int = 0) -> list[Event]:
        """The event log after an id."""
        return (await self.do(rq.ReadEvents(queue=queue, after=after, limit=100_000))).events

    async def last_event(self, queue: str = QUEUE) -> Event:
        """The newest event."""
        return (await self.events(queue))[-1]

    async def mark(self, queue: str = QUEUE) -> int:
        """The id of the newest event, for reading the events after it."""
        return (await self.do(rq.ReadEvents(queue=queue))).last_id

    async def history(self, queue: str = QUEUE) -> list[AttemptRecord]:
        """Every attempt record that is kept."""
        return (await self.do(rq.ReadHistory(queue=queue, limit=100_000))).records

    async def order(self, queue: str = QUEUE, limit: int = 10_000) -> list[str]:
        """The ids of all waiting jobs in the order in which they can be claimed (claims them)."""
        return [job.id for job in await self.claim(limit, queue)]


class UrlHarness(Harness):
    """A harness for any backend with a URL. ``url`` must not contain a namespace."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name)
        self._url = url

    def connect(self, namespace: str) -> Backend:
        return open_backend(self.url_of(namespace))

    def url_of(self, namespace: str) -> str:
        """The URL of a namespace of this store."""
        joint = "&" if "?" in self._url else "?"
        return f"{self._url}{joint}namespace={namespace}"

    @property
    def database(self) -> str:
        return self._url.removeprefix("sqlite:///") if self.name == "sqlite" else super().database

    @property
    def damages(self) -> tuple[str, ...]:
        return damage.kinds(self._url)

    def damage(self, job_id: str, kind: str, queue: str = QUEUE) -> Damaged:
        return damage.damage(self.url_of(self.namespace), queue, job_id, kind)


def settlement(job: JobRecord, outcome: Outcome, **fields: Any) -> Settlement:
    """The end of the attempt that ``job`` was claimed for."""
    assert job.token is not None, "only a claimed job can be settled"
    return Settlement(**{"queue": job.queue, "id": job.id, "token": job.token, "outcome": outcome, **fields})
