"""Fires schedules that are due. Every worker runs it, so that no job is late after a leader is lost.

The leader fires at once. The others wait a second longer, and find nothing to do as long as there is a
leader. A worker that fires names the slot, and the store accepts only the first one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from windlass.backend import schedule_requests as sq
from windlass.backend.store import Store
from windlass.core.job import NewJob
from windlass.core.probe import reach
from windlass.core.schedule_rules import (
    SCHEDULES_PER_STEP,
    Firing,
    ScheduleRecord,
    ScheduleStrategy,
    plan_firing,
    slot_job,
)
from windlass.core.text import printable
from windlass.errors import StorageError
from windlass.handlers.hooks import Hooks
from windlass.worker.duty import Done

log: Final = logging.getLogger("windlass.duties")

#: How long other workers leave a due slot to the leader.
LEADER_HEAD_START_MS = 1_000
#: Look at least this often, even without a hint.
POLL_MS = 10_000
#: When to try again to fire a schedule that this process cannot compute.
_LATER_MS = 5_000
#: The most schedules of a step. If more than these cannot be computed here, the others wait.
_MOST = 1_000


class Scheduler:
    """The duty that fires schedules. Its interval is the time until the next slot."""

    name = "schedule"
    leader_only = False

    def __init__(
        self,
        store: Store,
        strategies: Mapping[str, ScheduleStrategy] | None = None,
        leads: Callable[[], bool] = lambda: True,
        hooks: Hooks | None = None,
    ) -> None:
        self._store = store
        self._strategies = strategies or {}
        self._leads = leads
        #: The app's hooks: jobs of schedules pass through its enqueue hooks.
        self._hooks = hooks
        #: How many schedules this process could not compute in the last step. They stay at the front.
        self._stuck = 0
        #: The time until the next step.
        self.every_ms: int = 0

    async def step(self) -> Done:
        """Fire every slot that is due and that is not left to the leader."""
        limit = min(SCHEDULES_PER_STEP + self._stuck, _MOST)
        due = await self._store.execute(sq.DueSchedules(limit=limit))
        wait_ms = POLL_MS if due.next_in_ms is None else min(due.next_in_ms, POLL_MS)
        fired = added = stuck = 0
        for schedule in due.schedules:
            head_start_ms = self._head_start_ms(schedule, due.now_ms)
            if head_start_ms > 0:
                wait_ms = min(wait_ms, head_start_ms)
            elif (count := await self._fire(schedule, due.now_ms)) is None:
                wait_ms = min(wait_ms, _LATER_MS)
                stuck += 1
            else:
                fired += 1
                added += count
        self.every_ms, self._stuck = max(wait_ms, 1), stuck
        if not fired:
            reach("schedule.done", added=added)
        return Done(added, fired > 0)

    def _head_start_ms(self, schedule: ScheduleRecord, now_ms: int) -> int:
        """How much longer to leave a due slot to the leader."""
        if self._leads() or schedule.next_ms is None:
            return 0
        return schedule.next_ms + LEADER_HEAD_START_MS - now_ms

    async def _fire(self, schedule: ScheduleRecord, now_ms: int) -> int | None:
        """Fire the due slots of one schedule; None when this process cannot compute them."""
        try:
            firing = plan_firing(schedule, now_ms, self._strategies)
        except Exception as exc:  # a damaged rule, or a strategy that raises: the others are not affected
            log.warning(
                "schedule %r of queue %r cannot be fired here: %s",
                *(schedule.name, schedule.queue, printable(str(exc))),
            )
            return None
        jobs = [slot_job(schedule, slot) for slot in firing.slots]
        reach("schedule.firing", name=schedule.name, slot_ms=schedule.next_ms)
        if not jobs or self._hooks is None:
            return await self._send(schedule, firing, jobs)
        try:
            return await self._hooks.enqueue_through(jobs, partial(self._send, schedule, firing))
        except StorageError:
            raise  # the slot is tried again
        except Exception as exc:
            log.warning(
                "an enqueue hook refused the job of schedule %s of queue %s; its slot passes: %r",
                *(printable(schedule.name), printable(schedule.queue), exc),
            )
            return await self._send(schedule, firing, [])

    async def _send(self, schedule: ScheduleRecord, firing: Firing, jobs: list[NewJob]) -> int:
        """Add the jobs and advance the schedule. The store ignores a slot that was already fired."""
        request = sq.FireSchedule(
            queue=schedule.queue,
            name=schedule.name,
            slot_ms=schedule.next_ms,
            jobs=jobs,
            slots=firing.slots if jobs else [],
            next_ms=firing.next_ms,
        )
        return (await self._store.execute(request)).added
