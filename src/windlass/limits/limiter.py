"""A named limit for any code, shared by handlers of any queue, web processes and scripts.

``Limiter`` keeps tickets in its own queue in the store, and uses the limits of that queue: concurrency and
rate. Holding a ticket means holding a lease. So the ticket of a process that dies is free again when its
lease expires, and the limits do not depend on the clocks of processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.ids import check_queue_name, new_id
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.lasting_task import LastingTask
from windlass.core.limit_rules import MAX_COUNT, Rate, check_count, to_rate
from windlass.core.option_values import Keep, seconds_to_ms
from windlass.core.options import StoredOptions
from windlass.core.outcome import Extended, Outcome, Settlement
from windlass.core.states import JobState
from windlass.errors import ConfigError, LimiterTimeoutError, StorageError

if TYPE_CHECKING:
    from windlass.backend.protocol import Listener
    from windlass.jobs.interfaces import JobApp

#: The prefix of the queue of a limiter. It is listed among the queues.
PREFIX = "limiter."
#: Try to claim at least this often, even without a hint.
_RECHECK_MS = 2_000
_TICKET = StoredOptions(
    max_attempts=1, max_stalls=0, keep_completed=Keep(0, 0), keep_failed=Keep(0, 0), result_ttl_ms=0
)


class Limiter:
    """At most ``concurrency`` holders at once and ``rate`` starts in any window, over all processes.

    .. code-block:: python

        api = Limiter("payments-api", app, concurrency=5, rate=(100, 60))

        async with api.acquire(timeout=30):
            ...

    Callers are served in order. The ``Limiter`` object that was first used last sets the limits. ``lease`` is
    how long the turn of a process that died stays taken.
    """

    def __init__(
        self,
        name: str,
        app: JobApp,
        *,
        concurrency: int | None = None,
        rate: Rate | Mapping[str, Any] | tuple[int, float | timedelta] | None = None,
        lease: float | timedelta = 30,
    ) -> None:
        self.name: str = check_queue_name(name, "name")
        self._queue = check_queue_name(f"{PREFIX}{name}", "name")
        if concurrency is None and rate is None:
            raise ConfigError("limiter", message="a limiter needs a concurrency, a rate or both")
        if concurrency is not None:
            check_count("concurrency", concurrency, MAX_COUNT)
        self._concurrency = concurrency
        self._rate = to_rate(rate, "rate")
        self._lease_ms = seconds_to_ms(lease, "lease", minimum=1)
        self._app = app
        self._limits_set = False

    @asynccontextmanager
    async def acquire(self, timeout: float | timedelta = 60) -> AsyncIterator[None]:
        """Wait for a turn and hold it during the block. Raises ``LimiterTimeoutError`` after ``timeout``."""
        held = await self._take(seconds_to_ms(timeout, "timeout"))
        keeper = LastingTask(f"limiter-{self.name}", partial(self._keep, held), self._app.clock)
        try:
            yield
        finally:
            keeper.cancel()
            await self._release(held)

    # --- waiting ------------------------------------------------------------------------------------

    async def _take(self, timeout_ms: int) -> JobRecord:
        """Add a ticket and wait until one can be claimed."""
        store, clock, holder = self._app.store, self._app.clock, f"limiter:{new_id()}"
        await self._set_limits()
        listener = await store.listen([f"ready:{self._queue}", f"done:{self._queue}"])
        ticket = NewJob(
            queue=self._queue,
            id=new_id(),
            task="ticket",
            payload=b"[]",
            options=_TICKET,
            expires_in_ms=timeout_ms + 60_000,  # removes the ticket of a process that dies while it waits
            request_id=new_id(),
        )
        end_ms = clock.monotonic_ms() + timeout_ms
        try:
            await store.execute(rq.Add(jobs=[ticket]))
            while True:
                claimed = await self._claim(holder)
                if claimed.jobs:
                    return claimed.jobs[0]
                left_ms = end_ms - clock.monotonic_ms()
                if left_ms <= 0:
                    raise LimiterTimeoutError(self.name, timeout_ms / 1000)
                await self._wait(listener, claimed, left_ms)
        except BaseException:
            await self._leave(holder, ticket.id)
            raise
        finally:
            listener.close()

    async def _claim(self, holder: str) -> rq.Claimed:
        """Claim any ticket: each waiting caller has added one."""
        request = rq.Claim(
            worker=holder,
            queues=[rq.ClaimQueue(self._queue, 1, 1)],
            limit=1,
            claim_id=new_id(),
            lease_ms=self._lease_ms,
        )
        return await self._app.store.execute(request)

    async def _wait(self, listener: Listener, claimed: rq.Claimed, left_ms: float) -> None:
        due_ms = _RECHECK_MS if claimed.next_due_in_ms is None else claimed.next_due_in_ms + 1
        woken = await listener.wait(min(due_ms, left_ms, _RECHECK_MS), self._app.clock)
        if not woken:
            await self._app.store.execute(rq.Recover())  # a holder may have died

    async def _leave(self, holder: str, ticket_id: str) -> None:
        """Remove one ticket: our own, or another one if ours has been claimed by another caller."""
        store = self._app.store
        with suppress(StorageError):
            await store.execute(rq.Reconcile(worker=holder, held=[]))  # releases a claim whose reply was lost
            (answer,) = await store.execute(rq.RemoveJobs(refs=[JobRef(self._queue, ticket_id)]))
            if answer.state is JobState.ACTIVE:
                page = await store.execute(rq.ListJobs(queue=self._queue, states=[JobState.WAITING], limit=1))
                await store.execute(rq.RemoveJobs(refs=[job.ref for job in page.jobs]))

    # --- holding ------------------------------------------------------------------------------------

    async def _keep(self, held: JobRecord) -> None:
        """Renew the lease while the block runs."""
        lease = rq.LeaseRef(self._queue, held.id, held.token or "", self._lease_ms)
        while True:
            await self._app.clock.wait(asyncio.Event(), self._lease_ms / 3)
            with suppress(StorageError):
                if await self._app.store.execute(rq.Extend(leases=[lease])) == [Extended.LOST]:
                    return

    async def _release(self, held: JobRecord) -> None:
        end = Settlement(queue=self._queue, id=held.id, token=held.token or "", outcome=Outcome.COMPLETE)
        await asyncio.shield(self._app.store.execute(rq.Settle(items=[end])))

    async def _set_limits(self) -> None:
        if self._limits_set:
            return
        request = lrq.SetQueueLimits(
            queue=self._queue,
            fields=["concurrency", "rate"],
            concurrency=self._concurrency,
            rate=self._rate,
        )
        await self._app.store.execute(request)
        self._limits_set = True
