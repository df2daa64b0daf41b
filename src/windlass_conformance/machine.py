"""A model test: the same random operations on the memory store and on another backend, always compared.

``machine_for(make)`` gives a Hypothesis state machine; run it with ``run_state_machine_as_test``. Each rule
sends one request to both stores and compares the answers; after every few steps everything that can be read
is compared: counts, listings, records, logs, events, history, counters, queues, workers. Time, ids and claim
ids are the same on both sides. Backends may spell tokens and number places as they like, so tokens are mapped
and places are compared by what they do: the order of claims. Numbers are in order within a queue only: where
jobs of two queues are equally early, each store may take either first, and no step depends on which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from windlass.backend import Backend
from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.backend import stream_requests as sm
from windlass.backends.memory import MemoryBackend
from windlass.core.edges import Dependency, Edge, OnFailure
from windlass.core.job import AttemptRecord, ErrorInfo, JobRecord, JobRef, NewJob, WorkerInfo
from windlass.core.limit_rules import Bucket, GroupLimits, Rate
from windlass.core.option_values import Keep, StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement
from windlass.core.states import JobState
from windlass.errors import DependencyError, HistoryTrimmedError, OrderedGroupError

R = TypeVar("R")
#: Given the side (0: reference, 1: subject), the request to send there.
Make = Callable[[int], rq.Request[R]]

START_MS = 1_750_000_000_000
QUEUES = ("x", "y")
WORKERS = ("w1", "w2")
IDS = tuple(f"j{n}" for n in range(4))
SIGNALS = ("yes", "no")
OPTIONS = (
    StoredOptions(),
    StoredOptions(keep_id_ms=500),
    StoredOptions(max_stalls=0),
    StoredOptions(result_ttl_ms=20, keep_completed=Keep(0, 0), keep_failed=Keep(0, 0)),
    StoredOptions(keep_completed=Keep(None, 1), keep_failed=Keep(None, 1), tags=("red",)),
    StoredOptions(lease_ms=40, max_attempts=2, trace={"a": "b"}),
    StoredOptions(lifo=True),
    StoredOptions(expires_total_ms=100),
    StoredOptions(stall_delay_ms=30),
    StoredOptions(result_ttl_ms=0, keep_completed=Keep(0, 0)),
)
GROUPS = ("g", "h")
GROUP_LIMITS = (
    None,
    GroupLimits(concurrency=1),
    GroupLimits(concurrency=2, rate=Rate(2, 30)),
    GroupLimits(rate=Rate(1, 20)),
    GroupLimits(bucket=Bucket(3, 40)),
    GroupLimits(bucket=Bucket(1, 7)),
    GroupLimits(ordered=True),
    GroupLimits(ordered=True, rate=Rate(2, 50)),
    GroupLimits(ordered=True, skip_delayed=True),
    GroupLimits(max_size=2),
)
UNIQUE = (
    StoredUnique(key="k", mode=UniqueMode.UNTIL_DONE),
    StoredUnique(key="k", mode=UniqueMode.UNTIL_DONE, ttl_ms=30),
    StoredUnique(key="k", mode=UniqueMode.UNTIL_START),
    StoredUnique(key="l", mode=UniqueMode.THROTTLE, ttl_ms=40),
    StoredUnique(key="l", mode=UniqueMode.THROTTLE, ttl_ms=40, extend=True),
    StoredUnique(key="k", mode=UniqueMode.DEBOUNCE, ttl_ms=20),
    StoredUnique(key="l", mode=UniqueMode.KEEP_LAST),
)
#: Steps between two comparisons of everything.
_LOOK_EVERY = 4


class Lease(NamedTuple):
    """A lease that was granted on both sides, with the token that each side gave it."""

    queue: str
    id: str
    worker: str
    tokens: tuple[str, str]


class Twin:
    """Two stores that get the same requests and must give the same answers."""

    def __init__(self, reference: Backend, subject: Backend) -> None:
        self.sides = (reference, subject)
        self.now_ms = START_MS
        #: Every lease ever granted, newest last; old ones are tried again as stale tokens.
        self.leases: list[Lease] = []
        #: Jobs that were ever logged to.
        self.logged: set[JobRef] = set()
        self._known = {"": ""}  # the subject's tokens -> the reference's
        self._seen = dict.fromkeys(QUEUES, (0, 0))

    def can(self, capability: str) -> bool:
        """Whether the subject declares a capability; what it cannot do is left out."""
        return bool(getattr(self.sides[1].capabilities, capability))

    async def ask(self, make: Make[R]) -> R:
        """Send a request to both stores at the same time; the reference's answer, once compared."""
        answers = [await self.send(side, make(side)) for side in (0, 1)]
        self.heard(make(0), *answers)
        answer: R = answers[0]
        return answer

    def heard(self, what: object, first: Any, second: Any) -> None:
        """Remember what leases the two answers to ``what`` hold, and compare them."""
        self._learn(first, second)
        self.compare(what, self._plain(first, 0), self._plain(second, 1))

    def compare(self, what: object, first: Any, second: Any) -> None:
        """Fail unless both stores gave the same answer to ``what``."""
        assert self.alike(first, second), f"{what}\n reference: {first}\n subject:   {second}"

    def alike(self, first: Any, second: Any) -> bool:
        """Whether two answers are the same."""
        return bool(first == second)

    async def same(self, request: rq.Request[R]) -> R:
        """``ask`` for a request that holds no token."""
        return await self.ask(lambda side: request)

    def stamp(self, side: int, request: rq.Request[Any]) -> None:
        """Say when ``request`` counts."""
        request.now_ms = self.now_ms

    async def send(self, side: int, request: rq.Request[Any]) -> Any:
        """The answer of one side."""
        self.stamp(side, request)
        try:
            return await self.sides[side].execute(request)
        except HistoryTrimmedError as exc:
            return ("trimmed", exc.queue, exc.after, exc.oldest)
        except (DependencyError, OrderedGroupError) as exc:
            return ("refused", exc.code)

    def _learn(self, first: Any, second: Any) -> None:
        """Remember which token of one side is which of the other."""
        ours, theirs = _claimed(first), _claimed(second)
        assert [job.ref for job in ours] == [job.ref for job in theirs], "the two claims differ"
        for one, two in zip(ours, theirs, strict=True):
            tokens = (one.token or "", two.token or "")
            self._known[tokens[1]] = tokens[0]
            self.leases.append(Lease(one.queue, one.id, one.worker or "", tokens))

    async def look(self) -> None:
        """Compare everything that can be read."""
        for queue in QUEUES:
            await self.same(rq.CountJobs(queue=queue))
            jobs = [await self._listing(side, queue) for side in (0, 1)]
            self.compare("listings differ", *jobs)
            await self._look_at_logs(queue)
        for ref in self.logged:
            await self.same(rq.GetLogs(ref=ref))
        refs = [JobRef(queue, job_id) for queue in QUEUES for job_id in IDS]
        if self.can("flows"):
            await self._look_at_edges(refs)
        if self.can("streams"):
            for ref in refs:
                await self.same(sm.ReadStream(ref=ref))
        await self._same_rows(rq.ReadCounters())
        await self._look_at_limits()
        await self.same(rq.ListQueues())
        await self.same(rq.ListWorkers(stale_ms=100))
        await self.same(rq.ListArchivers())

    async def _look_at_limits(self) -> None:
        for queue in QUEUES:
            if self.can("groups"):
                await self.same(lrq.ListGroups(queue=queue, limit=1))
                await self.same(lrq.ListGroups(queue=queue, cursor="g"))
            if self.can("limits"):
                await self.same(lrq.GetLimits(queue=queue, groups=GROUPS))
            if self.can("unique"):
                await self.same(lrq.ListUniqueKeys(queue=queue))
                await self.same(lrq.GetUniqueKey(queue=queue, key="k"))

    async def _look_at_edges(self, refs: list[JobRef]) -> None:
        """Compare edges; those to a record that is gone may be seen from one end only."""
        found = []
        for side in (0, 1):
            jobs = await self.send(side, rq.GetJobs(refs=refs))
            rows: list[fl.Dependencies] = await self.send(side, fl.GetDependencies(refs=refs))
            for job, row in zip(jobs, rows, strict=True):
                there = job is not None and job.payload  # what stays of a job that went at once has none
                row.dependents = [edge for edge in row.dependents if there and edge.child_seq == job.seq]
            found.append(self._plain(rows, side))
        self.compare("edges differ", *found)

    async def is_tied(self, states: list[JobState], field: str) -> bool:
        """Whether the earliest jobs of two queues are equally early: then either may be taken first."""
        earliest: list[int] = []
        for queue in QUEUES:
            request = rq.ListJobs(queue=queue, states=states, limit=1_000)
            page: rq.Page = await self.send(0, request)
            earliest += [min(getattr(job, field) or 0 for job in page.jobs)] if page.jobs else []
        return len(earliest) > len(set(earliest))

    async def _look_at_logs(self, queue: str) -> None:
        event, attempt = self._seen[queue]
        event = await self._look_at_events(queue, event)
        history: Any = await self.same(rq.ReadHistory(queue=queue, after=attempt))
        attempt = history.last if isinstance(history, rq.HistoryPage) else _oldest(history) - 1
        self._seen[queue] = (event, attempt)

    async def _look_at_events(self, queue: str, after: int) -> int:
        """Compare the events that both sides still have: a store may trim old ones when it likes."""
        request = rq.ReadEvents(queue=queue, after=after)
        pages: list[rq.EventPage] = [await self.send(side, request) for side in (0, 1)]
        oldest = max(page.oldest_id for page in pages)
        kept = [[self._plain(one, 0) for one in page.events if one.id >= oldest] for page in pages]
        self.compare("events differ", *kept)
        assert pages[0].last_id == pages[1].last_id
        return pages[0].last_id

    async def _same_rows(self, request: rq.Request[Any]) -> None:
        """Compare an answer whose rows have no promised order."""
        answers = [await self.send(side, request) for side in (0, 1)]
        assert sorted(answers[0]) == sorted(answers[1]), answers

    async def _listing(self, side: int, queue: str) -> list[Any]:
        jobs: list[Any] = []
        cursor: str | None = None
        while True:
            request = rq.ListJobs(queue=queue, newest_first=False, cursor=cursor, limit=3)
            page: rq.Page = await self.send(side, request)
            jobs += [self._plain(job, side) for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                return jobs

    def _plain(self, value: Any, side: int) -> Any:
        """``value`` as plain data, with the reference's tokens and without what backends may choose."""
        if isinstance(value, JobRecord | AttemptRecord | Edge | rq.Pruned):
            return self._plain_struct(value, side)
        if isinstance(value, rq.Recovered):
            return [
                [ref for ref in refs if ref.queue == queue]
                for refs in (value.recovered, value.failed, value.expired)
                for queue in QUEUES
            ]
        if isinstance(value, rq.Page):
            return [self._plain(value.jobs, side), value.cursor is None]  # each store looks in its own way
        if isinstance(value, msgspec.Struct):
            return {name: self._plain(getattr(value, name), side) for name in value.__struct_fields__}
        if isinstance(value, list | tuple):
            return [self._plain(item, side) for item in value]
        if isinstance(value, dict):
            return {key: self._plain(item, side) for key, item in value.items()}
        return value

    def _plain_struct(self, value: JobRecord | AttemptRecord | Edge | rq.Pruned, side: int) -> dict[str, Any]:
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        if isinstance(value, rq.Pruned):
            del fields["events"]  # a store may trim events when it likes
        elif isinstance(value, Edge):
            del fields["child_seq"]
        elif isinstance(value, AttemptRecord):
            ended = value.run_id.startswith("end.")
            fields["run_id"] = "end" if ended else self._token(value.run_id, side)
        else:
            del fields["seq"], fields["place"], fields["turn"]
            fields["token"] = self._token(value.token, side)
            fields["settled_token"] = self._token(value.settled_token, side)
        return fields

    def _token(self, token: str | None, side: int) -> str | None:
        return self._known.get(token, f"unknown {token}") if side and token is not None else token


def _claimed(answer: Any) -> list[JobRecord]:
    if isinstance(answer, rq.SettleResult):
        answer = answer.claimed
    return answer.jobs if isinstance(answer, rq.Claimed) else []


def _kept_apart(new: NewJob) -> NewJob:
    """The job with its edges in its own queue."""
    new.depends_on = [Dependency(new.queue, one.id, one.on_failure) for one in new.depends_on]
    if new.parent is not None:
        new.parent = Dependency(new.queue, new.parent.id, new.parent.on_failure)
    return new


def _oldest(trimmed: Any) -> int:
    return int(trimmed[3])


Claim = tuple[str, list[tuple[str, int, int]], int, int]
#: Each kind of step: how often it is taken, and what is drawn for it.
Steps = dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]]


class Operations:
    """The steps that a model test chooses from, on one twin. Leases are picked by age: 0 is the newest."""

    def __init__(self, twin: Twin, *, apart: bool = False) -> None:
        self.twin = twin
        self._apart = apart
        self._claims = 0
        self._streamed: dict[str, int] = {}

    async def pass_time(self, ms: int) -> None:
        self.twin.now_ms += ms

    async def pass_long_time(self, ms: int) -> None:
        self.twin.now_ms += ms
        await self.prune()

    async def add(self, jobs: list[dict[str, Any]]) -> None:
        news = [self._new(**fields) for fields in jobs]
        if not self.twin.can("flows"):
            for new in news:
                new.depends_on, new.parent = [], None
        if not self.twin.can("lifo"):
            for new in news:
                new.options = msgspec.structs.replace(new.options, lifo=False)
        if self._apart:
            news = [_kept_apart(new) for new in news]
        await self.twin.same(rq.Add(jobs=news))

    async def add_twice(
        self, queue: str, ids: list[str], unique: StoredUnique, jobs: list[dict[str, Any]]
    ) -> None:
        """A flow that names one id twice: a key may keep the first mention out, the second has an edge."""
        holder, twice, child, _ = ids
        names = (holder, twice, twice, child)
        alone: dict[str, Any] = {"queue": queue, "depends_on": [], "parent": None}
        jobs = [fields | alone | {"id": name} for fields, name in zip(jobs, names, strict=True)]
        jobs[0]["unique"] = jobs[1]["unique"] = unique
        jobs[2]["depends_on"] = [Dependency(queue, child)]
        await self.add(jobs)

    def _new(
        self,
        options: StoredOptions,
        group: tuple[str, int] | None,
        unique: StoredUnique | None,
        **fields: Any,
    ) -> NewJob:
        if group is not None and self.twin.can("groups"):
            options = msgspec.structs.replace(options, group=group[0], cost=group[1])
        follows = unique is not None and unique.mode is UniqueMode.KEEP_LAST
        if unique is not None and self.twin.can("unique") and (not follows or self.twin.can("flows")):
            options = msgspec.structs.replace(options, unique=unique)
        return NewJob(task="t", payload=b"[]", options=options, **fields)

    async def limit_queue(
        self, queue: str, fields: list[str], concurrency: int | None, rate: Rate | None
    ) -> None:
        request = lrq.SetQueueLimits(queue=queue, fields=fields, concurrency=concurrency, rate=rate)
        await self._limit("limits", request)

    async def limit_group(self, queue: str, group: str, limits: GroupLimits | None) -> None:
        await self._limit("groups", lrq.SetGroupLimits(queue=queue, group=group, limits=limits))

    async def pause_group(self, queue: str, group: str, paused: bool) -> None:
        await self._limit("groups", lrq.PauseGroup(queue=queue, group=group, paused=paused))

    async def hold(self, queue: str, group: str | None, ms: int) -> None:
        await self._limit("limits", lrq.Hold(queue=queue, group=group, ms=ms))

    async def free_key(self, queue: str, key: str) -> None:
        await self._limit("unique", lrq.FreeUniqueKey(queue=queue, key=key))

    async def _limit(self, capability: str, request: rq.Request[Any]) -> None:
        if self.twin.can(capability):
            await self.twin.same(request)

    async def claim(self, claim: Claim) -> None:
        await self.twin.same(self._claim(claim))

    async def settle(self, picks: list[int], ends: list[dict[str, Any]], claim: Claim | None = None) -> None:
        leases = [self._lease(pick) for pick in picks]
        request = self._claim(claim) if claim else None
        ends = [self._possible(end) for end in ends]

        def make(side: int) -> rq.Settle:
            items = [
                Settlement(queue=lease.queue, id=lease.id, token=lease.tokens[side], **end)
                for lease, end in zip(leases, ends, strict=False)
            ]
            return rq.Settle(items=items, claim=request)

        await self.twin.ask(make)

    def _possible(self, end: dict[str, Any]) -> dict[str, Any]:
        needs = {Outcome.WAIT: "flows", Outcome.SUSPEND: "signals"}.get(end["outcome"])
        return end if needs is None or self.twin.can(needs) else {**end, "outcome": Outcome.SNOOZE}

    async def work(self, queue: str, limit: int, ends: list[dict[str, Any]]) -> None:
        """Claim and settle: most jobs should get somewhere."""
        before = len(self.twin.leases)
        await self.claim(("w1", [(queue, limit, limit)], limit, 100))
        picks = list(range(len(self.twin.leases) - before))
        if picks:
            await self.settle(picks, ends)

    async def stall(self, queue: str, limit: int) -> None:
        """Claim, go silent, be recovered."""
        await self.claim(("w2", [(queue, limit, limit)], limit, 10))
        self.twin.now_ms += 60
        await self.recover(1_000)

    async def extend(self, picks: list[int], lease_ms: int) -> None:
        leases = [self._lease(pick) for pick in picks]
        await self.twin.ask(
            lambda side: rq.Extend(
                leases=[rq.LeaseRef(one.queue, one.id, one.tokens[side], lease_ms) for one in leases]
            )
        )

    async def reconcile(self, worker: str, picks: list[int]) -> None:
        leases = [self._lease(pick) for pick in picks]
        await self.twin.ask(
            lambda side: rq.Reconcile(worker=worker, held=[one.tokens[side] for one in leases])
        )

    async def promote(self, limit: int) -> None:
        if await self.twin.is_tied([JobState.SCHEDULED, JobState.RETRYING], "due_ms"):
            limit = 1_000
        await self.twin.same(rq.Promote(limit=limit))

    async def recover(self, limit: int) -> None:
        if await self.twin.is_tied([JobState.ACTIVE], "lease_until_ms"):
            limit = 1_000
        await self.twin.same(rq.Recover(limit=limit))

    async def prune(self) -> None:
        await self.twin.same(rq.Prune())

    async def cancel(self, refs: list[JobRef], reason: str) -> None:
        await self.twin.same(rq.CancelJobs(refs=refs, reason=reason))

    async def remove(self, refs: list[JobRef], force: bool) -> None:
        await self.twin.same(rq.RemoveJobs(refs=refs, force=force))

    async def retry(self, refs: list[JobRef]) -> None:
        await self.twin.same(rq.RetryJobs(refs=refs))

    async def change(self, ref: JobRef, pick: int | None, fields: dict[str, Any]) -> None:
        target, tokens = self._target(ref, pick)
        await self.twin.ask(lambda side: rq.ChangeJob(ref=target, token=tokens[side], **fields))

    async def report(self, ref: JobRef, pick: int | None, progress: bytes | None, logs: list[str]) -> None:
        target, tokens = self._target(ref, pick)
        self.twin.logged.add(target)
        await self.twin.ask(
            lambda side: rq.Report(ref=target, token=tokens[side], progress=progress, logs=logs)
        )

    async def pause(self, queue: str, paused: bool) -> None:
        await self.twin.same(rq.PauseQueue(queue=queue, paused=paused))

    async def trim_events(self, queue: str, keep: int) -> None:
        await self.twin.same(rq.TrimEvents(queue=queue, keep=keep))

    async def revoke_task(self, queue: str, **how: Any) -> None:
        if self.twin.can("revoked_tasks"):
            await self.twin.same(lrq.RevokeTask(queue=queue, task="t", **how))

    async def restore_task(self, queue: str) -> None:
        if self.twin.can("revoked_tasks"):
            await self.twin.same(lrq.RestoreTask(queue=queue, task="t"))

    async def purge(self, **fields: Any) -> None:
        await self.twin.same(rq.Purge(**fields))

    async def keep_result(self, ref: JobRef, ttl_ms: int) -> None:
        await self.twin.same(rq.SetResultTtl(ref=ref, ttl_ms=ttl_ms))

    async def lead(self, holder: str, resign: bool) -> None:
        if resign:
            await self.twin.same(rq.Resign(role="r", holder=holder))
        else:
            await self.twin.same(rq.Elect(role="r", holder=holder, ttl_ms=30))

    async def beat(self, worker: str, busy: int, gone: bool) -> None:
        info = WorkerInfo(id=worker, queues=QUEUES, busy=busy)
        await self.twin.same(rq.Beat(worker=info, gone=gone))

    async def relay(self, limit: int) -> None:
        if self.twin.can("flows"):
            await self.twin.same(fl.Relay(limit=limit))

    async def signal(self, ref: JobRef, name: str, data: bytes) -> None:
        if self.twin.can("signals"):
            await self.twin.same(fl.Signal(ref=ref, name=name, data=data))

    async def stream(self, pick: int, chunks: list[bytes]) -> None:
        """Append what a running attempt puts out next, twice: the second time nothing is new."""
        lease = self._lease(pick)
        if not self.twin.can("streams"):
            return
        first = self._streamed.get(lease.tokens[0], 0) + 1
        self._streamed[lease.tokens[0]] = first + len(chunks) - 1
        for _ in range(2):
            await self.twin.ask(
                lambda side: sm.AppendStream(
                    ref=JobRef(lease.queue, lease.id), token=lease.tokens[side], first=first, chunks=chunks
                )
            )

    async def archive(self, name: str, cursors: dict[str, int]) -> None:
        await self.twin.same(rq.Archive(name=name, cursors=cursors))

    async def search(self, **fields: Any) -> None:
        await self.twin.same(rq.ListJobs(limit=1_000, **fields))

    def _claim(self, claim: Claim) -> rq.Claim:
        worker, parts, limit, lease_ms = claim
        self._claims += 1
        queues = [rq.ClaimQueue(*part) for part in parts]
        claim_id = f"c{self._claims}"
        return rq.Claim(worker=worker, queues=queues, limit=limit, claim_id=claim_id, lease_ms=lease_ms)

    def _lease(self, pick: int) -> Lease:
        leases = self.twin.leases
        return leases[-1 - pick % len(leases)] if leases else Lease("x", "j0", "w1", ("", ""))

    def _target(self, ref: JobRef, pick: int | None) -> tuple[JobRef, tuple[str | None, str | None]]:
        if pick is None:
            return ref, (None, None)
        lease = self._lease(pick)
        return JobRef(lease.queue, lease.id), lease.tokens


# --- Hypothesis -----------------------------------------------------------------------------------

_queue = st.sampled_from(QUEUES)
_worker = st.sampled_from(WORKERS)
_ref = st.builds(JobRef, _queue, st.sampled_from(IDS))
_refs = st.lists(_ref, min_size=1, max_size=3)
_pick = st.integers(0, 5)
_picks = st.lists(_pick, min_size=1, max_size=3)
_delay = st.sampled_from([0, 0, 5, 50])
_limit = st.sampled_from([1_000, 1])
_dependency = st.builds(Dependency, _queue, st.sampled_from(IDS), st.sampled_from(list(OnFailure)))


def new_jobs(**others: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Jobs to add. ``others``: fields that are drawn in another way."""
    fields = {
        "queue": _queue,
        "id": st.sampled_from(IDS),
        "priority": st.sampled_from([0, 0, -1, 5]),
        "delay_ms": _delay,
        "expires_in_ms": st.sampled_from([None, None, None, None, 3, 60]),
        "options": st.sampled_from(OPTIONS),
        "request_id": st.sampled_from(["", "", "", "r1", "r2"]),
        "group": st.sampled_from([None, None, *((name, cost) for name in GROUPS for cost in (1, 1, 2))]),
        "unique": st.sampled_from([None] * 8 + [*UNIQUE]),
        "depends_on": st.just([]) | st.lists(_dependency, max_size=3),
        "parent": st.none() | st.none() | _dependency,
    }
    return st.fixed_dictionaries(fields | others)


_new = new_jobs()
_parts = st.lists(
    st.tuples(_queue, st.integers(0, 3), st.integers(0, 4)),
    min_size=1,
    max_size=2,
    unique_by=lambda part: part[0],
)


def claims(*lease_ms: int) -> st.SearchStrategy[Claim]:
    """Claims, with one of these leases."""
    return st.tuples(_worker, _parts, st.integers(0, 4), st.sampled_from(lease_ms))


_claim = claims(10, 100)


def all_ends(**others: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Three ends of attempts. ``others``: fields that are drawn in another way."""
    fields = {
        "outcome": st.sampled_from(list(Outcome)),
        "signal": st.sampled_from(SIGNALS),
        "delay_ms": _delay,
        "result": st.sampled_from([None, b"1", b"null"]),
        "error": st.sampled_from([None, ErrorInfo(error_class="E", message="bad", fingerprint="f")]),
        "reason": st.sampled_from(["", "why"]),
        "uses_attempt": st.booleans(),
        "miss": st.booleans(),
        "hold_ms": st.sampled_from([0, 0, 0, 0, 0, 15]),
        "duration_ms": st.sampled_from([None, 3]),
    }
    return st.lists(st.fixed_dictionaries(fields | others), min_size=3, max_size=3)


_ends = all_ends()
_change = st.sampled_from(
    [
        {"priority": 5},
        {"priority": 0},
        {"delay_ms": 0},
        {"delay_ms": 30},
        {"payload": b"new"},
        {"priority": -1, "delay_ms": 7, "payload": b"all"},
        {},
    ]
)
_states = st.lists(st.sampled_from(list(JobState)), max_size=4, unique=True)

STEPS: Steps = {
    "add": (6, {"jobs": st.lists(_new, min_size=1, max_size=4)}),
    "add_twice": (
        1,
        {
            "queue": _queue,
            "ids": st.permutations(IDS),
            "unique": st.sampled_from(UNIQUE),
            "jobs": st.lists(_new, min_size=4, max_size=4),
        },
    ),
    "work": (4, {"queue": _queue, "limit": st.integers(1, 3), "ends": _ends}),
    "claim": (3, {"claim": _claim}),
    "settle": (3, {"picks": _picks, "ends": _ends, "claim": st.none() | _claim}),
    "stall": (2, {"queue": _queue, "limit": st.integers(1, 3)}),
    "pass_time": (3, {"ms": st.sampled_from([1, 5, 20, 50, 500])}),
    "pass_long_time": (1, {"ms": st.sampled_from([70_000, 90_000_000])}),
    "extend": (1, {"picks": _picks, "lease_ms": st.sampled_from([10, 100])}),
    "reconcile": (1, {"worker": _worker, "picks": st.lists(_pick, max_size=2)}),
    "promote": (1, {"limit": _limit}),
    "recover": (1, {"limit": _limit}),
    "prune": (1, {}),
    "cancel": (1, {"refs": _refs, "reason": st.sampled_from(["", "why"])}),
    "remove": (1, {"refs": _refs, "force": st.booleans()}),
    "retry": (2, {"refs": _refs}),
    "change": (2, {"ref": _ref, "pick": st.none() | _pick, "fields": _change}),
    "report": (
        1,
        {
            "ref": _ref,
            "pick": st.none() | _pick,
            "progress": st.sampled_from([None, b"1", b'{"a":1}']),
            "logs": st.lists(st.sampled_from(["a", "b"]), max_size=2),
        },
    ),
    "limit_queue": (
        1,
        {
            "queue": _queue,
            "fields": st.sampled_from([["concurrency"], ["rate"], ["concurrency", "rate"]]),
            "concurrency": st.sampled_from([None, None, 1, 2]),
            "rate": st.sampled_from([None, None, Rate(1, 20), Rate(3, 60)]),
        },
    ),
    "limit_group": (
        3,
        {
            "queue": _queue,
            "group": st.sampled_from(["*", "*", *GROUPS]),
            "limits": st.sampled_from(GROUP_LIMITS),
        },
    ),
    "pause_group": (1, {"queue": _queue, "group": st.sampled_from(GROUPS), "paused": st.booleans()}),
    "hold": (
        1,
        {
            "queue": _queue,
            "group": st.sampled_from([None, *GROUPS]),
            "ms": st.sampled_from([0, 10, 40]),
        },
    ),
    "free_key": (1, {"queue": _queue, "key": st.sampled_from(["k", "l"])}),
    "pause": (1, {"queue": _queue, "paused": st.booleans()}),
    "trim_events": (1, {"queue": _queue, "keep": st.integers(0, 3)}),
    "revoke_task": (
        1,
        {
            "queue": _queue,
            "for_ms": st.sampled_from([None, 5, 50]),
            "once": st.sampled_from([True, True, False]),
        },
    ),
    "restore_task": (1, {"queue": _queue}),
    "purge": (
        1,
        {
            "queue": _queue,
            "states": _states,
            "grace_ms": st.sampled_from([0, 10]),
            "limit": _limit,
            "force": st.booleans(),
            "forget": st.booleans(),
        },
    ),
    "keep_result": (1, {"ref": _ref, "ttl_ms": st.sampled_from([0, 10, 100_000])}),
    "lead": (1, {"holder": _worker, "resign": st.booleans()}),
    "beat": (1, {"worker": _worker, "busy": st.integers(0, 2), "gone": st.booleans()}),
    "relay": (1, {"limit": _limit}),
    "signal": (1, {"ref": _ref, "name": st.sampled_from(SIGNALS), "data": st.sampled_from([b"1", b"2"])}),
    "stream": (1, {"pick": _pick, "chunks": st.lists(st.sampled_from([b"a", b"bc"]), max_size=3)}),
    "archive": (
        1,
        {
            "name": st.sampled_from(["lake", "pond"]),
            "cursors": st.dictionaries(_queue, st.integers(0, 5), max_size=2),
        },
    ),
    "search": (
        1,
        {
            "queue": _queue,
            "states": _states,
            "task": st.sampled_from([None, "t", "*", "?", "u"]),
            "tag": st.sampled_from([None, "red"]),
            "error_class": st.sampled_from([None, "E", "JobStalled"]),
        },
    ),
}


def drawn(steps: Steps) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """One of ``steps``, by weight."""
    return st.sampled_from([name for name, (weight, _) in steps.items() for _ in range(weight)]).flatmap(
        lambda name: st.tuples(st.just(name), st.fixed_dictionaries(steps[name][1]))
    )


_steps = drawn(STEPS)


class Histories(RuleBasedStateMachine):
    """Random steps on a ``Twin``. ``make_subject`` is set by ``machine_for``.

    One rule draws all steps, by weight: Hypothesis leaves some rules out of each example, and without jobs
    being added most others would have nothing to do.
    """

    make_subject: Callable[[], Backend]
    apart: bool = False

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._count = 0
        self.subject = type(self).make_subject()
        self._runner.run(self.subject.open())
        self.twin = self.make_twin()
        self.operations = self.make_operations()

    def make_twin(self) -> Twin:
        return Twin(MemoryBackend(), self.subject)

    def make_operations(self) -> Operations:
        return Operations(self.twin, apart=self.apart)

    def take(self, step: tuple[str, dict[str, Any]]) -> None:
        """Carry out one step."""
        name, arguments = step
        self._runner.run(self._take(name, arguments))

    async def _take(self, name: str, arguments: dict[str, Any]) -> None:
        await getattr(self.operations, name)(**arguments)
        self._count += 1
        if self._count % _LOOK_EVERY == 0:
            await self.twin.look()

    def teardown(self) -> None:
        try:
            self._runner.run(self.twin.look())
        finally:
            self._runner.run(self.subject.close())
            self._runner.close()


class Machine(Histories):
    """Histories whose time the test gives."""

    @rule(step=_steps)
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        self.take(step)


def machine_for(make_subject: Callable[[], Backend], *, apart: bool = False) -> type[Machine]:
    """A state machine that compares the memory store with what ``make_subject`` gives: a backend that is
    not yet opened, on a store that no other test uses. It is called once per example.

    ``apart``: the store keeps queues in different places, so that what crosses between them takes several
    steps. Then jobs depend on jobs of their own queue only: all else has the same end, but not the same
    events.
    """
    return type("BoundMachine", (Machine,), {"make_subject": staticmethod(make_subject), "apart": apart})
