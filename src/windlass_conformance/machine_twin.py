"""The memory store and the store under test: every request goes to both, and answers are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from windlass.backend import Backend
from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend import stream_requests as sm
from windlass.core.edges import Edge
from windlass.core.job import AttemptRecord, JobRecord, JobRef
from windlass.core.limit_rules import Bucket, GroupLimits, Rate
from windlass.core.option_values import Keep, StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.states import JobState
from windlass.errors import DependencyError, HistoryTrimmedError, OrderedGroupError

R = TypeVar("R")
#: Returns the request for a side (0: reference, 1: subject).
Make = Callable[[int], rq.Request[R]]
START_MS = 1_750_000_000_000
QUEUES = ("x", "y")
WORKERS = ("w1", "w\x002")
IDS = tuple(f"j{n}" for n in range(4))
TASKS = ("t", "u")
SIGNALS = ("yes", "no")
TAG = "b\x00lue"
OPTIONS = (
    StoredOptions(),
    StoredOptions(keep_id_ms=500),
    StoredOptions(max_stalls=0),
    StoredOptions(result_ttl_ms=20, keep_completed=Keep(0, 0), keep_failed=Keep(0, 0)),
    StoredOptions(keep_completed=Keep(None, 1), keep_failed=Keep(None, 1), tags=("red", TAG)),
    StoredOptions(lease_ms=40, max_attempts=2, trace={"a": "b"}),
    StoredOptions(lifo=True),
    StoredOptions(expires_total_ms=100),
    StoredOptions(stall_delay_ms=30),
    StoredOptions(result_ttl_ms=0, keep_completed=Keep(0, 0)),
)
GROUPS = ("g", "h: *\u20ac")
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
KEYS = ("k", 'l:"\n\x00')
UNIQUE = (
    StoredUnique(key=KEYS[0], mode=UniqueMode.UNTIL_DONE),
    StoredUnique(key=KEYS[0], mode=UniqueMode.UNTIL_DONE, ttl_ms=30),
    StoredUnique(key=KEYS[0], mode=UniqueMode.UNTIL_START),
    StoredUnique(key=KEYS[1], mode=UniqueMode.THROTTLE, ttl_ms=40),
    StoredUnique(key=KEYS[1], mode=UniqueMode.THROTTLE, ttl_ms=40, extend=True),
    StoredUnique(key=KEYS[0], mode=UniqueMode.DEBOUNCE, ttl_ms=20),
    StoredUnique(key=KEYS[1], mode=UniqueMode.KEEP_LAST),
)


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
        #: All leases that were ever granted, newest last; old ones are used as stale tokens.
        self.leases: list[Lease] = []
        #: Jobs that were ever logged to.
        self.logged: set[JobRef] = set()
        self._known = {"": ""}  # the subject's tokens -> the reference's
        self._seen = dict.fromkeys(QUEUES, (0, 0))

    def can(self, capability: str) -> bool:
        """Whether the subject declares a capability; steps that it cannot do are left out."""
        return bool(getattr(self.sides[1].capabilities, capability))

    async def ask(self, make: Make[R]) -> R:
        """Send a request to both stores at the same time, compare, and return the reference's answer."""
        answers = [await self.send(side, make(side)) for side in (0, 1)]
        self.heard(make(0), *answers)
        answer: R = answers[0]
        return answer

    def heard(self, what: object, first: Any, second: Any) -> None:
        """Record the leases in the two answers to ``what``, and compare the answers."""
        self._learn(first, second)
        self.compare(what, self._plain(first, 0), self._plain(second, 1))

    def compare(self, what: object, first: Any, second: Any) -> None:
        """Fail unless both stores gave the same answer to ``what``."""
        assert self.alike(first, second), f"{what}\n reference: {first}\n subject:   {second}"

    def alike(self, first: Any, second: Any) -> bool:
        """Whether two answers are the same."""
        return bool(first == second)

    async def same(self, request: rq.Request[R]) -> R:
        """``ask`` for a request without tokens."""
        return await self.ask(lambda side: request)

    def stamp(self, side: int, request: rq.Request[Any]) -> None:
        """Set the time of ``request``."""
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
        """Record which tokens of both sides belong together."""
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
            await self.same_listing(queue=queue, newest_first=False)
            await self._look_at_logs(queue)
        for ref in self.logged:
            await self.same(rq.GetLogs(ref=ref))
        refs = [JobRef(queue, job_id) for queue in QUEUES for job_id in IDS]
        if self.can("flows"):
            await self._look_at_edges(refs)
        if self.can("streams"):
            for ref in refs:
                await self.same(sm.ReadStream(ref=ref))
        await self.same(rq.GetJobs(refs=refs))
        await self.same(rq.GetJobs(refs=refs, late=True))
        await self._same_rows(rq.ReadCounters())
        await self._look_at_limits()
        if self.can("schedules"):
            await self.same(sq.ListSchedules())
        if self.can("metrics"):
            await self._look_at_metrics()
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
                await self.same(lrq.GetUniqueKey(queue=queue, key=KEYS[0]))

    async def _look_at_metrics(self) -> None:
        await self.same(mq.MetricsProgress())
        await self.same(mq.ListMarks())
        for queue in QUEUES:
            for step in ("minute", "hour"):
                await self.same(mq.ReadMetrics(queue=queue, step=step))

    async def _look_at_edges(self, refs: list[JobRef]) -> None:
        """Compare edges; an edge to a removed record may be visible from one end only."""
        found = []
        for side in (0, 1):
            jobs = await self.send(side, rq.GetJobs(refs=refs))
            rows: list[fl.Dependencies] = await self.send(side, fl.GetDependencies(refs=refs))
            for job, row in zip(jobs, rows, strict=True):
                there = job is not None and job.payload  # what stays of a job that went at once has none
                mine = [edge for edge in row.dependents if there and edge.child_seq == job.seq]
                row.dependents = sorted(mine, key=lambda edge: edge.dependent)  # see ``Dependencies``
            found.append(self._plain(rows, side))
        self.compare("edges differ", *found)

    async def is_tied(self, states: list[JobState], field: str) -> bool:
        """Whether the earliest jobs of two queues have the same time: then either may be taken first."""
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
        """Compare the events that both sides still have: a store may trim old ones at any time."""
        request = rq.ReadEvents(queue=queue, after=after)
        pages: list[rq.EventPage] = [await self.send(side, request) for side in (0, 1)]
        oldest = max(page.oldest_id for page in pages)
        kept = [[self._plain(one, 0) for one in page.events if one.id >= oldest] for page in pages]
        self.compare("events differ", *kept)
        assert pages[0].last_id == pages[1].last_id
        return pages[0].last_id

    async def _same_rows(self, request: rq.Request[Any]) -> None:
        """Compare an answer whose rows are in no defined order."""
        answers = [await self.send(side, request) for side in (0, 1)]
        assert sorted(answers[0]) == sorted(answers[1]), answers

    async def same_listing(self, **filters: Any) -> None:
        """Compare a list of jobs, read in short pages."""
        jobs = [await self._listing(side, filters) for side in (0, 1)]
        self.compare(f"listings differ: {filters}", *jobs)

    async def _listing(self, side: int, filters: dict[str, Any]) -> list[Any]:
        jobs: list[Any] = []
        cursor: str | None = None
        while True:
            page: rq.Page = await self.send(side, rq.ListJobs(cursor=cursor, limit=3, **filters))
            jobs += [self._plain(job, side) for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                return jobs

    def _plain(self, value: Any, side: int) -> Any:
        """``value`` as plain data, with the reference's tokens, without fields that backends may choose."""
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
            del fields["child_seq"], fields["child_run"]
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


def _oldest(trimmed: Any) -> int:
    return int(trimmed[3])
