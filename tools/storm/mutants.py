"""Deliberate defects for the processes of a storm, each with the invariant that must report it.

A check that has never failed proves nothing. Every invariant has a mutant here that it must report; the tests
run them all. Mutants of the store itself patch the reference store (``memory://``). Mutants between an actor
and its store work on every backend.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any

import msgspec

from tools.storm import plan
from tools.storm.actors import _Producer
from tools.storm.recording import RecordingBackend
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backends.memory import inspection
from windlass.backends.memory.finished import Finished
from windlass.backends.memory.state import State
from windlass.core import change_rules, flow_rules, limit_rules, transitions
from windlass.core.ids import new_id
from windlass.core.job import JobRecord
from windlass.core.outcome import AddOutcome, CancelResult, Outcome, Settled
from windlass.core.states import JobState
from windlass.engine.unit_of_work import UnitOfWork
from windlass.errors import ConfigError
from windlass.worker.leases import LeaseKeeper

Undo = Callable[[], None]
Execute = Callable[[RecordingBackend, rq.Request[Any]], Awaitable[Any]]


class Mutant(msgspec.Struct, frozen=True):
    """One way to break the code. ``breaks`` is the invariant that must report it."""

    breaks: str
    apply: Callable[[], None]
    #: Faults that are needed to make the defect visible.
    faults: tuple[str, ...] = ()


MUTANTS: dict[str, Mutant] = {}
_undo: list[Undo] = []


def install(name: str) -> Undo:
    """Apply the mutant of that name to this process ("" applies none); returns a function that undoes it."""
    if name and name not in MUTANTS:
        raise ConfigError("mutant", f"one of {', '.join(sorted(MUTANTS))}", name)
    if name:
        MUTANTS[name].apply()

    def undo_all() -> None:
        while _undo:
            _undo.pop()()

    return undo_all


def _mutant(name: str, breaks: str, *faults: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def enter(apply: Callable[[], None]) -> Callable[[], None]:
        MUTANTS[name] = Mutant(breaks, apply, faults)
        return apply

    return enter


def _replace(owner: Any, name: Any, value: Any) -> Any:
    """Replace an attribute until the mutant is undone; returns the old value."""
    before = owner[name] if isinstance(owner, dict) else getattr(owner, name)

    def put(found: Any) -> None:
        if isinstance(owner, dict):
            owner[name] = found
        else:
            setattr(owner, name, found)

    put(value)
    _undo.append(lambda: put(before))
    return before


def _replace_everywhere(function: Any, value: Any) -> None:
    """Replace a function in every windlass module that has imported it."""
    for module in [found for name, found in sys.modules.items() if name.startswith("windlass.")]:
        for name, known in list(vars(module).items()):
            if known is function:
                _replace(module, name, value)


def _intercept(change: Callable[[Execute], Execute]) -> None:
    """Replace how an actor executes requests on its store."""
    _replace(RecordingBackend, "execute_inner", change(RecordingBackend.execute_inner))


def _every(nth: int) -> Callable[[], bool]:
    counter = itertools.count(1)
    return lambda: next(counter) % nth == 0


# --- between an actor and its store -----------------------------------------------------------------


@_mutant("add-dropped", "no-acknowledged-job-lost")
def _add_dropped() -> None:
    """Some adds are acknowledged and never stored."""
    hit = _every(7)

    def change(inner: Execute) -> Execute:
        async def execute(backend: RecordingBackend, request: rq.Request[Any]) -> Any:
            if isinstance(request, rq.Add) and len(request.jobs) == 1 and hit():
                return [rq.Added(AddOutcome.QUEUED, JobState.WAITING)]
            return await inner(backend, request)

        return execute

    _intercept(change)


@_mutant("settle-dropped", "settled-is-kept")
def _settle_dropped() -> None:
    """Some completions are acknowledged and never stored."""
    hit = _every(20)

    def change(inner: Execute) -> Execute:
        async def execute(backend: RecordingBackend, request: rq.Request[Any]) -> Any:
            if not isinstance(request, rq.Settle):
                return await inner(backend, request)
            dropped = [end.outcome is Outcome.COMPLETE and hit() for end in request.items]
            kept = [end for end, gone in zip(request.items, dropped, strict=True) if not gone]
            answer = await inner(backend, msgspec.structs.replace(request, items=kept))
            kept_answers = iter(answer.items)
            answer.items = [Settled.OK if gone else next(kept_answers) for gone in dropped]
            return answer

        return execute

    _intercept(change)


@_mutant("failure-as-success", "no-phantom-completion")
def _failure_as_success() -> None:
    """Failed attempts are reported as completed."""

    def change(inner: Execute) -> Execute:
        async def execute(backend: RecordingBackend, request: rq.Request[Any]) -> Any:
            for end in request.items if isinstance(request, rq.Settle) else ():
                if end.outcome is Outcome.RETRY:
                    end.outcome, end.result = Outcome.COMPLETE, b"null"
            return await inner(backend, request)

        return execute

    _intercept(change)


@_mutant("job-handed-out-twice", "one-run-per-token")
def _handed_out_twice() -> None:
    """Some answers to a claim contain the same job twice."""
    hit = _every(10)

    def change(inner: Execute) -> Execute:
        async def execute(backend: RecordingBackend, request: rq.Request[Any]) -> Any:
            answer = await inner(backend, request)
            claimed = answer.claimed if isinstance(request, rq.Settle) else answer
            if isinstance(claimed, rq.Claimed) and claimed.jobs and hit():
                claimed.jobs.append(copy(claimed.jobs[0]))
            return answer

        return execute

    _intercept(change)


@_mutant("overtaken", "first-starts-in-order")
def _overtaken() -> None:
    """Some jobs start after jobs that were added later."""
    hit = _every(3)

    def change(inner: Execute) -> Execute:
        async def execute(backend: RecordingBackend, request: rq.Request[Any]) -> Any:
            for new in request.jobs if isinstance(request, rq.Add) else ():
                if new.queue == plan.FIFO and hit():
                    new.delay_ms = 400
            return await inner(backend, request)

        return execute

    _intercept(change)


@_mutant("pause-ignored", "pause-holds")
def _pause_ignored() -> None:
    """A pause is acknowledged and does nothing."""

    def change(inner: Execute) -> Execute:
        async def execute(backend: RecordingBackend, request: rq.Request[Any]) -> Any:
            if isinstance(request, rq.PauseQueue):
                return True
            return await inner(backend, request)

        return execute

    _intercept(change)


@_mutant("slot-twice", "slot-fires-once")
def _slot_twice() -> None:
    """Each slot of a schedule is fired twice."""

    def change(inner: Execute) -> Execute:
        async def execute(backend: RecordingBackend, request: rq.Request[Any]) -> Any:
            answer = await inner(backend, request)
            if isinstance(request, sq.FireSchedule) and answer.ok and answer.added:
                again = [msgspec.structs.replace(job, id=new_id(), request_id="") for job in request.jobs]
                await inner(backend, rq.Add(jobs=again))
            return answer

        return execute

    _intercept(change)


@_mutant("no-recovery", "all-work-ends", "kill")
def _no_recovery() -> None:
    """Jobs of dead workers are not recovered."""

    def change(inner: Execute) -> Execute:
        async def execute(backend: RecordingBackend, request: rq.Request[Any]) -> Any:
            if isinstance(request, rq.Recover):
                return rq.Recovered([], [])
            return await inner(backend, request)

        return execute

    _intercept(change)


@_mutant("no-renewal", "stalls-have-causes")
def _no_renewal() -> None:
    """Leases are not renewed."""

    async def do_nothing(keeper: LeaseKeeper, store: Any) -> None:
        await asyncio.sleep(0.05)

    _replace(LeaseKeeper, "_renew_due", do_nothing)


@_mutant("fragile-producer", "nobody-crashes", "lost-reply")
def _fragile_producer() -> None:
    """A lost reply ends a producer."""

    async def once(producer: _Producer, call: Any) -> Any:
        return await call()

    _replace(_Producer, "_call_until_answered", once)


# --- inside the reference store -----------------------------------------------------------------------


@_mutant("no-fencing", "one-end-per-job", "freeze")
def _no_fencing() -> None:
    """Every token may settle."""

    def accept_any(job: JobRecord | None, token: str) -> Settled:
        return Settled.GONE if job is None else Settled.OK

    _replace_everywhere(transitions.check_token, accept_any)


@_mutant("claimable-while-active", "one-lease-at-a-time")
def _claimable_while_active() -> None:
    """Some jobs stay claimable when they start."""
    hit, lease = _every(10), transitions.lease

    def forget(job: JobRecord, recorder: Any, **facts: Any) -> None:
        lease(job, recorder, **facts)
        if hit():
            job.state = JobState.WAITING

    _replace_everywhere(transitions.lease, forget)


@_mutant("history-twice", "one-end-per-token")
def _history_twice() -> None:
    """Some settlements are in history twice."""
    hit, close = _every(10), UnitOfWork.close

    def twice(work: UnitOfWork) -> None:
        if work.attempts and hit():
            work.attempts.append(work.attempts[0])
        close(work)

    _replace(UnitOfWork, "close", twice)


@_mutant("history-not-written", "counts-add-up")
def _history_not_written() -> None:
    """Some settlements are counted and not in history."""
    hit, close = _every(10), UnitOfWork.close

    def forget(work: UnitOfWork) -> None:
        close(work)
        if work.attempts and hit():
            work.attempts.pop()

    _replace(UnitOfWork, "close", forget)


@_mutant("counts-lie", "one-state")
def _counts_lie() -> None:
    """The count of completed jobs is wrong."""
    count = inspection.count_jobs

    def drift(store: State, request: rq.CountJobs, now_ms: int) -> dict[JobState, int]:
        found = count(store, request, now_ms)
        return {state: n + (state is JobState.COMPLETED and n > 3) for state, n in found.items()}

    _replace(inspection.SHOWS, rq.CountJobs, drift)


@_mutant("no-prune", "kept-within-bounds")
def _no_prune() -> None:
    """Finished jobs are never removed."""
    _replace(Finished, "past_keep", lambda finished, jobs, now_ms, limit: [])


@_mutant("cancel-ignored", "cancel-holds")
def _cancel_ignored() -> None:
    """A cancellation is acknowledged and does nothing."""
    cancel = change_rules.cancel

    def pretend(job: JobRecord | None, reason: str, recorder: Any, **options: Any) -> CancelResult:
        if job is not None and job.state in (JobState.WAITING, JobState.SCHEDULED, JobState.RETRYING):
            return CancelResult.CANCELLED
        return cancel(job, reason, recorder, **options)

    _replace_everywhere(cancel, pretend)


@_mutant("parent-early", "no-parent-before-its-children")
def _parent_early() -> None:
    """A parent starts when its first child has ended."""
    after_edge = flow_rules.after_edge

    def first_is_enough(job: JobRecord, edge: Any, *, has_open: bool, recorder: Any) -> bool:
        return after_edge(job, edge, has_open=False, recorder=recorder)

    _replace_everywhere(after_edge, first_is_enough)


def _without(**gone: Any) -> None:
    """Ignore some of the limits."""
    opens_at, queue_room = limit_rules.opens_at, limit_rules.queue_room

    def group_opens(found: limit_rules.GroupLimits, *args: Any, **kwargs: Any) -> int | None:
        return opens_at(msgspec.structs.replace(found, **gone), *args, **kwargs)

    def room(found: limit_rules.QueueLimits, *args: Any) -> tuple[int, int | None]:
        known = {name: None for name in gone if name in found.__struct_fields__}
        return queue_room(msgspec.structs.replace(found, **known), *args)

    _replace_everywhere(opens_at, group_opens)
    _replace_everywhere(queue_room, room)


@_mutant("no-concurrency-limit", "concurrency-never-exceeded")
def _no_concurrency() -> None:
    _without(concurrency=None)


@_mutant("no-rate-limit", "rate-never-exceeded")
def _no_rate() -> None:
    _without(rate=None)


@_mutant("no-bucket", "bucket-never-overdrawn")
def _no_bucket() -> None:
    _without(bucket=None)


@_mutant("order-ignored", "order-kept")
def _order_ignored() -> None:
    _without(ordered=False)
