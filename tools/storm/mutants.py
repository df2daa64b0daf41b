"""Ways to break the code on purpose, inside the processes of a storm only: each must be noticed, and by whom.

A checker that has never been seen to fail proves nothing. Every invariant has a mutant here that it must
report; the tests run them all. Mutants of the store itself patch the reference store (``memory://``); those
that stand between a worker and its store work on every backend.
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
from tools.storm.witness import Witness
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
Carry = Callable[[Witness, rq.Request[Any]], Awaitable[Any]]


class Mutant(msgspec.Struct, frozen=True):
    """One way to break the code. ``breaks`` is the invariant that must report it."""

    breaks: str
    apply: Callable[[], None]
    #: Faults without which it would not show.
    faults: tuple[str, ...] = ()


MUTANTS: dict[str, Mutant] = {}
_undo: list[Undo] = []


def install(name: str) -> Undo:
    """Break this process by the mutant of that name ("" breaks nothing); returns what mends it."""
    if name and name not in MUTANTS:
        raise ConfigError("mutant", f"one of {', '.join(sorted(MUTANTS))}", name)
    if name:
        MUTANTS[name].apply()

    def mend() -> None:
        while _undo:
            _undo.pop()()

    return mend


def _mutant(name: str, breaks: str, *faults: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def enter(apply: Callable[[], None]) -> Callable[[], None]:
        MUTANTS[name] = Mutant(breaks, apply, faults)
        return apply

    return enter


def _replace(owner: Any, name: Any, value: Any) -> Any:
    """Replace an attribute until ``mend``; returns what was there."""
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
    """Replace a function in every module of ours that knows it by name."""
    for module in [found for name, found in sys.modules.items() if name.startswith("windlass.")]:
        for name, known in list(vars(module).items()):
            if known is function:
                _replace(module, name, value)


def _between(change: Callable[[Carry], Carry]) -> None:
    """Get between a process and its store."""
    _replace(Witness, "carry_out", change(Witness.carry_out))


def _every(nth: int) -> Callable[[], bool]:
    counter = itertools.count(1)
    return lambda: next(counter) % nth == 0


# --- between a process and its store ----------------------------------------------------------------


@_mutant("add-dropped", "no-acknowledged-job-lost")
def _add_dropped() -> None:
    """Some adds are acknowledged before they are stored, and never are."""
    hit = _every(7)

    def change(carry: Carry) -> Carry:
        async def execute(witness: Witness, request: rq.Request[Any]) -> Any:
            if isinstance(request, rq.Add) and len(request.jobs) == 1 and hit():
                return [rq.Added(AddOutcome.QUEUED, JobState.WAITING)]
            return await carry(witness, request)

        return execute

    _between(change)


@_mutant("settle-dropped", "settled-is-kept")
def _settle_dropped() -> None:
    """Some completions are acknowledged before they are stored, and never are."""
    hit = _every(20)

    def change(carry: Carry) -> Carry:
        async def execute(witness: Witness, request: rq.Request[Any]) -> Any:
            if not isinstance(request, rq.Settle):
                return await carry(witness, request)
            dropped = [end.outcome is Outcome.COMPLETE and hit() for end in request.items]
            kept = [end for end, gone in zip(request.items, dropped, strict=True) if not gone]
            answer = await carry(witness, msgspec.structs.replace(request, items=kept))
            told = iter(answer.items)
            answer.items = [Settled.OK if gone else next(told) for gone in dropped]
            return answer

        return execute

    _between(change)


@_mutant("failure-as-success", "no-phantom-completion")
def _failure_as_success() -> None:
    """Attempts that failed are told as completed."""

    def change(carry: Carry) -> Carry:
        async def execute(witness: Witness, request: rq.Request[Any]) -> Any:
            for end in request.items if isinstance(request, rq.Settle) else ():
                if end.outcome is Outcome.RETRY:
                    end.outcome, end.result = Outcome.COMPLETE, b"null"
            return await carry(witness, request)

        return execute

    _between(change)


@_mutant("job-handed-out-twice", "one-run-per-token")
def _handed_out_twice() -> None:
    """One answer to a claim holds the same job twice."""
    hit = _every(10)

    def change(carry: Carry) -> Carry:
        async def execute(witness: Witness, request: rq.Request[Any]) -> Any:
            answer = await carry(witness, request)
            claimed = answer.claimed if isinstance(request, rq.Settle) else answer
            if isinstance(claimed, rq.Claimed) and claimed.jobs and hit():
                claimed.jobs.append(copy(claimed.jobs[0]))
            return answer

        return execute

    _between(change)


@_mutant("overtaken", "first-starts-in-order")
def _overtaken() -> None:
    """Some jobs come into line later than those that were added after them."""
    hit = _every(3)

    def change(carry: Carry) -> Carry:
        async def execute(witness: Witness, request: rq.Request[Any]) -> Any:
            for new in request.jobs if isinstance(request, rq.Add) else ():
                if new.queue == plan.FIFO and hit():
                    new.delay_ms = 400
            return await carry(witness, request)

        return execute

    _between(change)


@_mutant("pause-ignored", "pause-holds")
def _pause_ignored() -> None:
    """A pause is acknowledged and does nothing."""

    def change(carry: Carry) -> Carry:
        async def execute(witness: Witness, request: rq.Request[Any]) -> Any:
            if isinstance(request, rq.PauseQueue):
                return True
            return await carry(witness, request)

        return execute

    _between(change)


@_mutant("slot-twice", "slot-fires-once")
def _slot_twice() -> None:
    """A slot of a schedule that was fired is fired once more."""

    def change(carry: Carry) -> Carry:
        async def execute(witness: Witness, request: rq.Request[Any]) -> Any:
            answer = await carry(witness, request)
            if isinstance(request, sq.FireSchedule) and answer.ok and answer.added:
                again = [msgspec.structs.replace(job, id=new_id(), request_id="") for job in request.jobs]
                await carry(witness, rq.Add(jobs=again))
            return answer

        return execute

    _between(change)


@_mutant("no-recovery", "all-work-ends", "kill")
def _no_recovery() -> None:
    """Nobody takes back the jobs of the dead."""

    def change(carry: Carry) -> Carry:
        async def execute(witness: Witness, request: rq.Request[Any]) -> Any:
            if isinstance(request, rq.Recover):
                return rq.Recovered([], [])
            return await carry(witness, request)

        return execute

    _between(change)


@_mutant("no-renewal", "stalls-have-causes")
def _no_renewal() -> None:
    """Leases are not renewed."""

    async def do_nothing(keeper: LeaseKeeper, store: Any) -> None:
        await asyncio.sleep(0.05)

    _replace(LeaseKeeper, "_renew_due", do_nothing)


@_mutant("fragile-producer", "nobody-crashes", "lost-reply")
def _fragile_producer() -> None:
    """A lost reply ends the program."""

    async def once(producer: _Producer, call: Any) -> Any:
        return await call()

    _replace(_Producer, "_insist", once)


# --- inside of the reference store --------------------------------------------------------------------


@_mutant("no-fencing", "one-end-per-job", "freeze")
def _no_fencing() -> None:
    """Whoever comes may settle, whatever the token."""

    def anybody(job: JobRecord | None, token: str) -> Settled:
        return Settled.GONE if job is None else Settled.OK

    _replace_everywhere(transitions.check_token, anybody)


@_mutant("claimable-while-active", "one-lease-at-a-time")
def _claimable_while_active() -> None:
    """Some jobs stay in line when they start."""
    hit, lease = _every(10), transitions.lease

    def forget(job: JobRecord, recorder: Any, **facts: Any) -> None:
        lease(job, recorder, **facts)
        if hit():
            job.state = JobState.WAITING

    _replace_everywhere(transitions.lease, forget)


@_mutant("history-twice", "one-end-per-token")
def _history_twice() -> None:
    """Some ends are written down twice."""
    hit, close = _every(10), UnitOfWork.close

    def twice(work: UnitOfWork) -> None:
        if work.history and hit():
            work.history.append(work.history[0])
        close(work)

    _replace(UnitOfWork, "close", twice)


@_mutant("history-not-written", "counts-add-up")
def _history_not_written() -> None:
    """Some ends are counted and not written down."""
    hit, close = _every(10), UnitOfWork.close

    def forget(work: UnitOfWork) -> None:
        close(work)
        if work.history and hit():
            work.history.pop()

    _replace(UnitOfWork, "close", forget)


@_mutant("counts-lie", "one-state")
def _counts_lie() -> None:
    """A count is kept apart from what it counts, and drifts."""
    count = inspection.count_jobs

    def drift(store: State, request: rq.CountJobs, now_ms: int) -> dict[JobState, int]:
        found = count(store, request, now_ms)
        return {state: n + (state is JobState.COMPLETED and n > 3) for state, n in found.items()}

    _replace(inspection.SHOWS, rq.CountJobs, drift)


@_mutant("no-prune", "kept-within-bounds")
def _no_prune() -> None:
    """Nothing is ever removed."""
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
    """A parent is let go when its first child has ended."""
    after_edge = flow_rules.after_edge

    def first_is_enough(job: JobRecord, edge: Any, *, has_open: bool, recorder: Any) -> bool:
        return after_edge(job, edge, has_open=False, recorder=recorder)

    _replace_everywhere(after_edge, first_is_enough)


def _without(**gone: Any) -> None:
    """Limits are looked at as if some of them had not been set."""
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
