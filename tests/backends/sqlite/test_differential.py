"""The sqlite store and the memory store, given the same random requests, answer the same.

Tokens are the one difference allowed: each store makes its own, and the comparison maps them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from tests.backends.sqlite.support import opened
from windlass.backend import requests as rq
from windlass.backends.memory import MemoryBackend
from windlass.backends.sqlite import SqliteBackend
from windlass.core.job import ErrorInfo, JobRef, NewJob, WorkerInfo
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement
from windlass.core.states import JobState

QUEUES = ("a", "b", "c")
START_MS = 4_000_000_000_000  # later than the machine's clock, which the store has seen when it opens


class Twins:
    """Sends every request to both stores and compares."""

    def __init__(self, memory: MemoryBackend, sqlite: SqliteBackend, seed: int, *, stamped: bool) -> None:
        self.memory = memory
        self.sqlite = sqlite
        self.rng = random.Random(seed)
        self.now_ms = START_MS
        #: Whether requests carry their time; if not, the stores look at the (same) clock.
        self.stamped = stamped
        self.claims = 0
        #: memory's token -> sqlite's, and back
        self.there: dict[str, str] = {}
        self.back: dict[str, str] = {}
        #: (queue, id, memory's token) of leases, some of them long lost
        self.leases: list[tuple[str, str, str]] = []
        self.told_by_memory: set[str] = set()
        self.told_by_sqlite: set[str] = set()
        assert sqlite._store is not None
        memory._shared.hub.publish = self.told_by_memory.update  # type: ignore[method-assign, assignment]
        sqlite._store.wake.hub.publish = self.told_by_sqlite.update  # type: ignore[method-assign, assignment]

    async def both(self, *requests: rq.AnyRequest) -> list[Any]:
        """Carry out requests: one by one in memory, all in one group in sqlite."""
        expected = [await self._try(self.memory, request) for request in requests]
        calls = [self._try(self.sqlite, self._translated(request)) for request in requests]
        found = await asyncio.gather(*calls)
        for request, want, got in zip(requests, expected, found, strict=True):
            self._learn(want, got)
            differences = list(_differences("", _plain(got, self.back), _plain(want, {})))
            assert not differences, f"{request}: {differences}"
        await self.same_hints(requests)
        return expected

    async def same_hints(self, requests: tuple[rq.AnyRequest, ...]) -> None:
        """Listeners were told the same by both stores."""
        await self.sqlite.execute(rq.Resign(role="", holder=""))  # hints of earlier writes are out by now
        assert self.told_by_sqlite == self.told_by_memory, requests
        self.told_by_memory.clear()
        self.told_by_sqlite.clear()

    async def _try(self, store: Any, request: rq.AnyRequest) -> Any:
        try:
            return await store.execute(request)
        except Exception as exc:
            return f"{type(exc).__name__}: {exc}"

    def _translated(self, request: rq.AnyRequest) -> rq.AnyRequest:
        """The request with sqlite's tokens."""
        if isinstance(request, rq.Settle):
            items = [
                msgspec.structs.replace(e, token=self.there.get(e.token, e.token)) for e in request.items
            ]
            return msgspec.structs.replace(request, items=items)
        if isinstance(request, rq.Extend):
            leases = [
                msgspec.structs.replace(e, token=self.there.get(e.token, e.token)) for e in request.leases
            ]
            return msgspec.structs.replace(request, leases=leases)
        if isinstance(request, rq.Reconcile):
            return msgspec.structs.replace(request, held=[self.there.get(t, t) for t in request.held])
        if isinstance(request, (rq.Report, rq.ChangeJob)) and request.token:
            return msgspec.structs.replace(request, token=self.there.get(request.token, request.token))
        return request

    def _learn(self, want: Any, got: Any) -> None:
        if isinstance(want, rq.SettleResult) and isinstance(got, rq.SettleResult):
            want, got = want.claimed, got.claimed
        if not isinstance(want, rq.Claimed) or not isinstance(got, rq.Claimed):
            return
        for mine, theirs in zip(want.jobs, got.jobs, strict=False):
            assert mine.token is not None
            assert theirs.token is not None
            self.there[mine.token] = theirs.token
            self.back[theirs.token] = mine.token
            self.leases.append((mine.queue, mine.id, mine.token))

    async def compare_all(self) -> None:
        """Everything that can be looked at."""
        requests: list[rq.AnyRequest] = [
            rq.ListQueues(),
            rq.ReadCounters(),
            rq.ReadCounters(queue="a"),
            rq.ListWorkers(),
            rq.ListArchivers(),
        ]
        for queue in (*QUEUES, "unknown"):
            requests += [
                rq.ListJobs(queue=queue, limit=1_000),
                rq.ListJobs(queue=queue, limit=3, newest_first=False, states=[self.state()]),
                rq.ListJobs(queue=queue, limit=2, task="s*", cursor=str(self.rng.randrange(60))),
                rq.ListJobs(queue=queue, tag="x", error_class=self.rng.choice([None, "Boom"])),
                rq.CountJobs(queue=queue),
                rq.ReadEvents(
                    queue=queue, after=self.rng.randrange(30), limit=self.rng.choice([1, 7, 10_000])
                ),
                rq.ReadHistory(
                    queue=queue, after=self.rng.randrange(10), limit=self.rng.choice([1, 7, 10_000])
                ),
                rq.GetLogs(ref=self.ref(), start=self.rng.randrange(3), limit=self.rng.choice([2, 1_000])),
            ]
        for request in requests:
            request.now_ms = self.stamp()
            await self.both(request)

    def stamp(self) -> int | None:
        return self.now_ms if self.stamped else None

    # --- random requests ----------------------------------------------------------------------------

    def ref(self) -> JobRef:
        return JobRef(self.rng.choice(QUEUES), f"job{self.rng.randrange(25)}")

    def state(self) -> JobState:
        return self.rng.choice(list(JobState))

    def lease(self) -> tuple[str, str, str]:
        if not self.leases or self.rng.random() < 0.05:
            return (*self.ref(), self.rng.choice(["nonsense", "made.up.7", "x.99999999999999999999"]))
        return self.rng.choice(self.leases[-20:])

    def options(self) -> StoredOptions:
        rng = self.rng
        if rng.random() < 0.5:
            return StoredOptions()
        return StoredOptions(
            max_stalls=rng.randrange(3),
            stall_delay_ms=rng.choice([0, 0, 3_000]),
            lease_ms=rng.choice([None, 2_000]),
            result_ttl_ms=rng.choice([None, 0, 5_000, 200_000]),
            keep_completed=Keep(rng.choice([None, 0, 70_000]), rng.choice([None, 0, 2])),
            keep_failed=Keep(rng.choice([None, 0, 70_000]), rng.choice([None, 1])),
            tags=rng.choice([(), ("x",), ("x", "y")]),
            keep_id_ms=rng.choice([None, None, 50_000]),
            lifo=rng.choice([False, False, True]),
        )

    def new_job(self) -> NewJob:
        rng = self.rng
        queue, job_id = self.ref()
        return NewJob(
            queue=queue,
            id=job_id,
            task=rng.choice(["send", "scan", "load"]),
            payload=rng.choice([b"", b"{}", b"x" * 5_000]),
            priority=rng.choice([0, 0, 0, 5, -5]),
            options=self.options(),
            delay_ms=rng.choice([0, 0, 0, 1_500, 20_000]),
            run_at_ms=rng.choice([None, None, None, self.now_ms - 1, self.now_ms + 900]),
            expires_in_ms=rng.choice([None, None, None, 3_000]),
            request_id=rng.choice(["", job_id, f"r{rng.randrange(3)}"]),
        )

    def settlement(self) -> Settlement:
        rng = self.rng
        queue, job_id, token = self.lease()
        return Settlement(
            queue=queue,
            id=job_id,
            token=token,
            outcome=rng.choice([*Outcome, Outcome.COMPLETE, Outcome.COMPLETE]),
            duration_ms=rng.choice([None, 12]),
            result=rng.choice([None, b"1", b"{}"]),
            delay_ms=rng.choice([0, 0, 2_500]),
            error=rng.choice([None, ErrorInfo(0, 0, "Boom", "it broke", "trace", "f1")]),
            reason=rng.choice(["", "because"]),
            uses_attempt=rng.random() < 0.8,
            miss=rng.random() < 0.2,
        )

    def claim(self) -> rq.Claim:
        rng = self.rng
        self.claims += 1
        names = rng.sample((*QUEUES, "unknown"), rng.randrange(1, 5))
        queues = [rq.ClaimQueue(name, rng.randrange(3), rng.randrange(5)) for name in names]
        return rq.Claim(
            worker=rng.choice(["w1", "w2"]),
            queues=queues,
            limit=rng.randrange(7),
            claim_id=f"claim{self.claims}",
            lease_ms=rng.choice([1_000, 30_000]),
            now_ms=self.stamp(),
        )

    def request(self) -> rq.AnyRequest:
        made: rq.AnyRequest = self.rng.choice(MAKERS)(self)
        made.now_ms = self.stamp()
        return made


def _plain(answer: Any, tokens: dict[str, str]) -> Any:
    """An answer as dicts and lists, its tokens replaced."""

    def mapped(value: Any) -> Any:
        if isinstance(value, str):
            return tokens.get(value, value)
        if isinstance(value, dict):
            return {key: mapped(item) for key, item in value.items()}
        return [mapped(item) for item in value] if isinstance(value, (list, tuple)) else value

    if isinstance(answer, rq.Page):
        answer.looked = 0  # each store looks in its own way
    return mapped(msgspec.to_builtins(answer))


def _differences(at: str, got: Any, want: Any) -> Iterator[str]:
    """Where two answers differ, one line each."""
    if isinstance(got, dict) and isinstance(want, dict) and got.keys() == want.keys():
        for key in got:
            yield from _differences(f"{at}.{key}", got[key], want[key])
    elif isinstance(got, list) and isinstance(want, list) and len(got) == len(want):
        for index, pair in enumerate(zip(got, want, strict=True)):
            yield from _differences(f"{at}[{index}]", *pair)
    elif got != want:
        yield f"{at}: sqlite {got!r}, memory {want!r}"


def _extend(twins: Twins) -> rq.AnyRequest:
    return rq.Extend(leases=[rq.LeaseRef(*twins.lease(), lease_ms=5_000) for _ in range(3)])


def _reconcile(twins: Twins) -> rq.AnyRequest:
    held = [token for _, _, token in twins.rng.sample(twins.leases[-10:], len(twins.leases[-10:]) // 2)]
    return rq.Reconcile(worker=twins.rng.choice(["w1", "w2"]), held=held)


def _change(twins: Twins) -> rq.AnyRequest:
    rng = twins.rng
    queue, job_id, token = twins.lease()
    ref, key = (JobRef(queue, job_id), token) if rng.random() < 0.4 else (twins.ref(), None)
    return rq.ChangeJob(
        ref=ref,
        token=key,
        priority=rng.choice([None, None, 5, 7]),
        delay_ms=rng.choice([None, 0, 4_000]),
        payload=rng.choice([None, b"new", b"y" * 3_000]),
    )


def _report(twins: Twins) -> rq.AnyRequest:
    rng = twins.rng
    queue, job_id, token = twins.lease()
    return rq.Report(
        ref=JobRef(queue, job_id),
        token=rng.choice([token, token, None]),
        progress=rng.choice([None, b"50", b"x" * 2_000]),
        logs=[f"line {rng.randrange(99)}" for _ in range(rng.randrange(4))],
    )


def _beat(twins: Twins) -> rq.AnyRequest:
    return rq.Beat(worker=WorkerInfo(id=twins.rng.choice("uvw"), busy=3), gone=twins.rng.random() < 0.2)


def _purge(twins: Twins) -> rq.AnyRequest:
    rng = twins.rng
    return rq.Purge(
        queue=rng.choice(QUEUES),
        states=[twins.state() for _ in range(rng.randrange(1, 6))],
        grace_ms=rng.choice([0, 10_000]),
        limit=rng.choice([1, 3, 100]),
        force=rng.random() < 0.3,
        forget=rng.random() < 0.5,
    )


MAKERS: list[Any] = [
    *[lambda t: rq.Add(jobs=[t.new_job() for _ in range(t.rng.choice([1, 1, 2, 6]))])] * 5,
    *[lambda t: t.claim()] * 4,
    *[lambda t: rq.Settle(items=[t.settlement() for _ in range(t.rng.randrange(4))])] * 3,
    *[lambda t: rq.Settle(items=[t.settlement() for _ in range(t.rng.randrange(4))], claim=t.claim())] * 3,
    _extend,
    _reconcile,
    lambda t: rq.Promote(limit=t.rng.choice([1, 2, 1_000])),
    lambda t: rq.Recover(limit=t.rng.choice([1, 2, 1_000])),
    lambda t: rq.Prune(limit=t.rng.choice([1, 2, 1_000])),
    lambda t: rq.Archive(name=t.rng.choice("pq"), cursors={t.rng.choice(QUEUES): t.rng.randrange(12)}),
    lambda t: rq.Elect(role="r", holder=t.rng.choice("xy"), ttl_ms=4_000),
    lambda t: rq.Resign(role="r", holder=t.rng.choice("xy")),
    _beat,
    lambda t: rq.CancelJobs(refs=[t.ref() for _ in range(2)], reason="stop"),
    lambda t: rq.RemoveJobs(refs=[t.ref() for _ in range(2)], force=t.rng.random() < 0.3),
    lambda t: rq.RetryJobs(refs=[t.ref() for _ in range(3)]),
    _change,
    _change,
    _report,
    lambda t: rq.PauseQueue(queue=t.rng.choice(QUEUES), paused=t.rng.random() < 0.4),
    _purge,
    lambda t: rq.SetResultTtl(ref=t.ref(), ttl_ms=t.rng.choice([0, 30_000])),
    lambda t: rq.GetJobs(refs=[t.ref() for _ in range(3)]),
]


async def drive(path: Path, seed: int, steps: int, *, stamped: bool = True) -> None:
    """``steps`` random requests to both stores, single or in groups."""
    async with opened(path) as store:
        twins = Twins(MemoryBackend(), store, seed, stamped=stamped)
        with mock.patch("windlass.core.clock.SystemClock.now_ms", lambda clock: twins.now_ms):
            for step in range(steps):
                twins.now_ms += twins.rng.choice([0, 1, 50, 1_000, 9_000])
                if twins.rng.random() < 0.005:
                    twins.now_ms += 86_400_000
                count = twins.rng.choice([1, 1, 1, 4])
                group = [twins.request() for _ in range(count)]
                if count > 1:  # renewals go first in a group, and reads do not wait for it
                    group = [one for one in group if not isinstance(one, (rq.Extend, rq.GetJobs))]
                await twins.both(*group)
                if step % 10 == 0:
                    await twins.compare_all()
            await twins.compare_all()


@pytest.mark.parametrize("stamped", [True, False], ids=["stamped", "clocked"])
@pytest.mark.parametrize("seed", range(4))
async def test_random_requests_get_the_answers_of_the_memory_store(
    tmp_path: Path, seed: int, stamped: bool
) -> None:
    await drive(tmp_path / "jobs.db", seed, 150, stamped=stamped)
