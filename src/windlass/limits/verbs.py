"""The methods of ``Queue`` for limits, groups and unique keys. See ``docs/limits.md``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from windlass.backend import limit_requests as lrq
from windlass.core.ids import check_group, check_task_name, is_text
from windlass.core.limit_rules import (
    EVERY_GROUP,
    MAX_COUNT,
    GroupInfo,
    GroupLimits,
    Rate,
    Revocation,
    check_count,
    to_group_limits,
    to_rate,
)
from windlass.core.option_values import check_flag, check_int, check_key, instant_to_ms, seconds_to_ms
from windlass.core.order import bad_cursor
from windlass.core.unique_rules import UniqueHolder
from windlass.errors import ConfigError

if TYPE_CHECKING:
    from windlass.backend.store import Store
    from windlass.jobs.job import Job

#: The maximum number of unique keys of one page.
_LONGEST_PAGE = 1_000


class LimitVerbs:
    """The part of ``Queue`` that sets and reads limits. They apply to all workers at once."""

    if TYPE_CHECKING:
        name: str

        @property
        def store(self) -> Store: ...

    # --- the whole queue -----------------------------------------------------------------------------

    async def set_global_concurrency(self, limit: int | None) -> None:
        """Run at most ``limit`` jobs of this queue at once, over all workers. None removes the limit."""
        if limit is not None:
            check_count("concurrency", limit, MAX_COUNT)
        await self.store.execute(
            lrq.SetQueueLimits(queue=self.name, fields=["concurrency"], concurrency=limit)
        )

    async def get_global_concurrency(self) -> int | None:
        """Return the limit of ``set_global_concurrency``; None without one."""
        return (await self._limits()).queue.concurrency

    async def set_global_rate_limit(
        self, limit: Rate | Mapping[str, Any] | tuple[int, float | timedelta]
    ) -> None:
        """Start at most this many jobs in any window of time, over all workers (an exact sliding window).

        ``limit`` is a ``Rate``, ``(max, seconds)`` or ``{"max": ..., "duration": seconds}``.
        """
        rate = to_rate(limit, "limit")
        if rate is None:
            raise ConfigError("limit", "a rate (remove_global_rate_limit removes it)", limit)
        await self.store.execute(lrq.SetQueueLimits(queue=self.name, fields=["rate"], rate=rate))

    async def get_global_rate_limit(self) -> Rate | None:
        """Return the rate of ``set_global_rate_limit``; None without one."""
        return (await self._limits()).queue.rate

    async def remove_global_rate_limit(self) -> None:
        """Remove the rate limit of this queue."""
        await self.store.execute(lrq.SetQueueLimits(queue=self.name, fields=["rate"]))

    async def rate_limit(self, seconds: float | timedelta) -> None:
        """Start no job of this queue for ``seconds``, on all workers. 0 ends the hold."""
        await self.store.execute(lrq.Hold(queue=self.name, ms=seconds_to_ms(seconds, "seconds")))

    async def get_rate_limit_ttl(self) -> float:
        """Return for how many seconds the rate, or ``rate_limit``, allows no start; 0 when it allows one."""
        return (await self._limits()).opens_in_ms / 1000

    async def revoke_task(
        self, name: str, until: datetime | timedelta | float | None = None, *, once: bool = False
    ) -> None:
        """Cancel jobs of a task in this queue when they would start, on all workers.

        Running jobs continue. The revocation ends at ``until`` (an aware datetime, or seconds from now) or
        with ``restore_task``. ``once`` cancels only the next job. It replaces an earlier revocation of the
        same task.
        """
        check_flag("once", once)
        request = lrq.RevokeTask(queue=self.name, task=check_task_name(name), once=once)
        if isinstance(until, datetime):
            request.until_ms = instant_to_ms(until, "until")
        elif until is not None:
            request.for_ms = seconds_to_ms(until, "until")
        await self.store.execute(request)

    async def restore_task(self, name: str) -> bool:
        """Undo ``revoke_task``; False when the task is not revoked. Cancelled jobs stay cancelled."""
        return await self.store.execute(lrq.RestoreTask(queue=self.name, task=check_task_name(name)))

    async def revoked_tasks(self) -> dict[str, Revocation]:
        """Return the tasks that are revoked in this queue, by name."""
        self.store.capabilities.require(self.store.name, "revoked_tasks")
        return dict(sorted((await self._limits()).queue.revoked.items()))

    async def _limits(self, *groups: str) -> lrq.Limits:
        return await self.store.execute(lrq.GetLimits(queue=self.name, groups=groups))

    # --- groups ----------------------------------------------------------------------------------------

    async def set_group_limits(self, group: str | None = None, /, **limits: Any) -> None:
        """Set the limits of one group; without a name, of all groups without their own limits.

        ``concurrency`` (jobs at once), ``rate`` (a ``Rate`` or ``(max, seconds)``), ``bucket`` (a ``Bucket``
        or ``(capacity, refill_per_s)``; each start takes the job's ``cost``), ``ordered`` (one job at a time,
        in the order of adding; with ``skip_delayed`` other jobs may overtake one that is not due yet),
        ``max_size`` (unfinished jobs; further ones are refused). Limits that are not given are removed.
        Raises ``OrderedGroupError`` when a group with unfinished jobs that have a priority or ``lifo`` is to
        become ordered.
        """
        checked = to_group_limits(**limits)
        request = lrq.SetGroupLimits(queue=self.name, group=_group(group), limits=checked)
        await self.store.execute(request)

    async def remove_group_limits(self, group: str | None = None, /) -> None:
        """Remove the group's own limits; without a name, the default limits of all groups."""
        await self.store.execute(lrq.SetGroupLimits(queue=self.name, group=_group(group)))

    async def get_group_limits(self, group: str | None = None, /) -> GroupLimits:
        """Return the limits that apply to a group; without a name, the default limits of all groups."""
        if group is None:
            return (await self._limits()).every_group
        found = await self._limits(check_group(group))
        own = found.groups[group].limits
        return found.every_group if own is None else own

    async def list_groups(self) -> list[GroupInfo]:
        """Return groups with unfinished jobs or their own settings, by name, with their counts."""
        groups: list[GroupInfo] = []
        cursor: str | None = None
        while True:
            page = await self.store.execute(lrq.ListGroups(queue=self.name, cursor=cursor, limit=1_000))
            groups += page.groups
            cursor = page.cursor
            if cursor is None:
                return groups

    async def pause_group(self, group: str) -> None:
        """Start no more jobs of this group, on all workers."""
        await self.store.execute(lrq.PauseGroup(queue=self.name, group=check_group(group), paused=True))

    async def resume_group(self, group: str) -> None:
        """Start jobs of this group again after ``pause_group``."""
        await self.store.execute(lrq.PauseGroup(queue=self.name, group=check_group(group), paused=False))

    async def rate_limit_group(self, group: str, seconds: float | timedelta) -> None:
        """Start no job of this group for ``seconds``, on all workers. 0 ends the hold."""
        ms = seconds_to_ms(seconds, "seconds")
        await self.store.execute(lrq.Hold(queue=self.name, group=check_group(group), ms=ms))


class KeyVerbs:
    """The part of ``Queue`` that reads and frees unique keys."""

    if TYPE_CHECKING:
        name: str

        @property
        def store(self) -> Store: ...

        async def get_job(self, job_id: str) -> Job[Any] | None: ...

    async def get_unique_holder(self, key: str) -> Job[Any] | None:
        """Return the job that holds a unique key, or None. The job of a throttle may be gone already."""
        holder = await self.store.execute(lrq.GetUniqueKey(queue=self.name, key=check_key(key)))
        return None if holder is None else await self.get_job(holder.job_id)

    async def free_unique_key(self, key: str) -> bool:
        """Free a unique key, so that the next job can have it; False when no job holds it."""
        return await self.store.execute(lrq.FreeUniqueKey(queue=self.name, key=check_key(key)))

    async def list_unique_keys(self, cursor: str | None = None, limit: int = 1_000) -> list[UniqueHolder]:
        """Return the held keys, ordered by key, after ``cursor`` (a key)."""
        if cursor is not None and not is_text(cursor):
            raise bad_cursor(cursor)
        check_int("limit", limit, 1, _LONGEST_PAGE)
        request = lrq.ListUniqueKeys(queue=self.name, cursor=cursor, limit=limit)
        return (await self.store.execute(request)).keys


def _group(name: str | None) -> str:
    return EVERY_GROUP if name is None else check_group(name)
