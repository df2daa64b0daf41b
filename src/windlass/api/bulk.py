"""Changing many jobs of a queue: by search, by age, or all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Unpack

from windlass.api.query import PlainReader, parse
from windlass.api.search import Search, SearchOptions, States, find_chunks, to_states
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.core.job import JobRef
from windlass.core.option_values import check_flag, check_int, check_known, seconds_to_ms
from windlass.core.outcome import CancelResult, Changed, to_reason
from windlass.core.states import JobState
from windlass.errors import ConfigError, IllegalTransitionError

if TYPE_CHECKING:
    from windlass.api.interfaces import App
    from windlass.backend.store import Store

#: Jobs per step of a bulk change.
_CHUNK = 1_000
#: Steps of a bulk retry whose jobs are sorted together (see ``_children_first``).
_SORTED = 100
#: The maximum number of concurrent changes of single jobs.
_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The jobs that ``clean`` removed."""

    count: int
    ids: list[str]


class BulkVerbs:
    """The part of ``Queue`` that changes many jobs."""

    if TYPE_CHECKING:
        name: str
        app: App

        @property
        def store(self) -> Store: ...

        async def get_job_counts(self) -> dict[JobState, int]: ...

    async def retry_jobs(
        self, /, *, state: States = JobState.FAILED, count: int | None = None, **search: Unpack[SearchOptions]
    ) -> int:
        """Retry jobs in ``state`` (failed by default), oldest first. Returns how many were retried.

        ``search`` filters them as in ``search_jobs``, by ``name``, ``tag``, ``error``, ``data`` and
        ``query``: ``retry_jobs(error="SMTPError")``.
        """
        return sum([done async for done in retry_in_steps(self, state, count, search)])

    async def remove_jobs(
        self, /, *, state: States, count: int | None = None, **search: Unpack[SearchOptions]
    ) -> int:
        """Delete jobs in ``state``, oldest first, except active ones. Returns how many were deleted.

        ``search`` filters them as in ``search_jobs``.
        """
        chunks = self._chunks(state, search, count)
        return sum([await self._change(refs, rq.RemoveJobs) async for refs in chunks])

    async def promote_jobs(
        self,
        /,
        *,
        state: States = (JobState.SCHEDULED, JobState.RETRYING),
        count: int | None = None,
        **search: Unpack[SearchOptions],
    ) -> int:
        """Make scheduled and retrying jobs ready now, oldest first. Returns how many were promoted.

        ``search`` filters them as in ``search_jobs``.
        """
        done = 0
        async for refs in self._chunks(state, search, count):
            for part in (refs[at : at + _AT_ONCE] for at in range(0, len(refs), _AT_ONCE)):
                changes = [self.store.execute(rq.ChangeJob(ref=ref, delay_ms=0)) for ref in part]
                done += sum(answer.status is Changed.OK for answer in await asyncio.gather(*changes))
        return done

    async def cancel_jobs(
        self, /, *, state: States, reason: str = "", count: int | None = None, **search: Unpack[SearchOptions]
    ) -> int:
        """Cancel jobs in ``state``, oldest first. Returns how many were cancelled or asked to stop.

        ``search`` filters them as in ``search_jobs``.
        """
        done, reason = 0, to_reason(reason)
        async for refs in self._chunks(state, search, count):
            answers = await self.store.execute(rq.CancelJobs(refs=refs, reason=reason))
            done += sum(answer in (CancelResult.CANCELLED, CancelResult.CANCELLING) for answer in answers)
        return done

    async def _change(self, refs: list[JobRef], request: type[rq.RetryJobs] | type[rq.RemoveJobs]) -> int:
        """Send one ``request`` for a chunk. Returns how many jobs were changed."""
        answers = await self.store.execute(request(refs=refs))
        return sum(answer.status is Changed.OK for answer in answers)

    def _chunks(self, state: States, search: SearchOptions, count: int | None) -> AsyncIterator[list[JobRef]]:
        check_known(search, SearchOptions.__annotations__, "search option")
        if not to_states(state):
            raise ConfigError("state", "one or more states", state)
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise ConfigError("count", "a whole number, or None for all", count)
        asked = parse(search.pop("query", ""))
        if asked.queues and self.name not in asked.queues:
            count = 0
        wanted = Search(state=state, **search)  # type: ignore[misc] # the query is out
        reader, now_ms = PlainReader(self.app.codecs), self.app.clock.now_ms()
        keep = partial(asked.fits, reader=reader, now_ms=now_ms) if asked.tests else None
        return find_chunks(self.store, self.name, wanted, self.app.codecs, count, keep)

    async def clean(
        self,
        grace: float | timedelta = 0,
        limit: int = 1_000,
        state: Iterable[JobState | str] | JobState | str = JobState.COMPLETED,
    ) -> Cleaned:
        """Remove up to ``limit`` jobs that have been in ``state`` for longer than ``grace``, oldest first."""
        states = to_states(state)
        if not states or JobState.ACTIVE in states:
            raise ConfigError("state", "one or more states other than active", state)
        grace_ms = seconds_to_ms(grace, "grace")
        check_int("limit", limit, 0, 10**12)
        removed: list[str] = []
        while len(removed) < limit:
            step = min(_CHUNK, limit - len(removed))
            request = rq.Purge(queue=self.name, states=states, grace_ms=grace_ms, limit=step)
            purged = await self.store.execute(request)
            removed += purged.ids
            if purged.count < step:
                break
        return Cleaned(len(removed), removed)

    async def drain(self, delayed: bool = False) -> int:
        """Alias of ``clear``, which deletes jobs. (``Worker.drain`` runs the waiting jobs.)"""
        return await self.clear(delayed)

    async def clear(self, delayed: bool = False) -> int:
        """Delete all waiting jobs, with ``delayed`` also jobs that are due later. Returns how many were
        deleted.
        """
        states = [JobState.WAITING, JobState.BLOCKED, JobState.PARKED]
        if delayed:
            states += [JobState.SCHEDULED, JobState.RETRYING, JobState.SUSPENDED]
        return await self._purge_all(states)

    async def obliterate(self, force: bool = False) -> int:
        """Delete the queue with all its jobs. Raises ``IllegalTransitionError`` while jobs run, unless
        ``force``.
        """
        check_flag("force", force)
        counts = await self.get_job_counts()
        if counts[JobState.ACTIVE] and not force:
            raise IllegalTransitionError(
                self.name,
                "busy",
                "obliterate",
                message=f"cannot obliterate queue {self.name!r}: {counts[JobState.ACTIVE]} of its jobs are "
                "running; wait, or pass force=True",
            )
        return await self._purge_all(list(JobState), force=force, forget=True)

    async def _purge_all(self, states: list[JobState], *, force: bool = False, forget: bool = False) -> int:
        total = 0
        while True:
            request = rq.Purge(queue=self.name, states=states, force=force, forget=forget, limit=_CHUNK)
            purged = await self.store.execute(request)
            total += purged.count
            if purged.count < _CHUNK and not purged.more:
                return total


async def retry_in_steps(
    queue: BulkVerbs, state: States, count: int | None, search: SearchOptions
) -> AsyncIterator[int]:
    """``retry_jobs``, step by step. Yields how many jobs of each step were retried."""
    flows = queue.store.capabilities.flows
    async for steps in _together(queue._chunks(state, search, count)):
        for refs in await _children_first(queue.store, steps) if flows and len(steps) > 1 else steps:
            yield await queue._change(refs, rq.RetryJobs)


async def _together(steps: AsyncIterator[list[JobRef]]) -> AsyncIterator[list[list[JobRef]]]:
    """Up to ``_SORTED`` steps at a time."""
    found: list[list[JobRef]] = []
    async for refs in steps:
        found.append(refs)
        if len(found) == _SORTED:
            yield found
            found = []
    if found:
        yield found


async def _children_first(store: Store, steps: list[list[JobRef]]) -> list[list[JobRef]]:
    """The same jobs, each after those that it waits for.

    A job that is retried in a step before its failed child would not wait for it. The order stays if jobs
    wait for each other, because an id was used again.
    """
    children: dict[JobRef, list[JobRef]] = {}
    for refs in steps:
        found = await store.execute(fl.GetDependencies(refs=refs, values=False, limit=0))
        for ref, one in zip(refs, found, strict=True):
            children[ref] = [edge.child for edge in one.depends_on]
    try:
        order = [ref for ref in TopologicalSorter(children).static_order() if ref in children]
    except CycleError:
        return steps
    return [order[at : at + _CHUNK] for at in range(0, len(order), _CHUNK)]
