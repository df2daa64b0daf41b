"""How often verbs read: a constant, whatever the number of items; and nothing that they did not ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.backends.memory.store import MemoryStore
from windlass.core.edges import Dependency
from windlass.core.job import JobRef, NewJob
from windlass.core.limit_rules import GroupLimits
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement
from windlass.core.states import JobState
from windlass.engine.reads import Reads
from windlass.engine.unit_of_work import NotLoadedError, UnitOfWork

NOW_MS = 1_760_000_000_000
Make = Callable[[int], NewJob]


class Counting(MemoryStore):
    """Counts what is read."""

    reads = 0
    #: How many jobs had their open edges read, to find cycles.
    followed = 0

    def load(self, reads: Reads, work: UnitOfWork) -> None:
        self.reads += 1
        super().load(reads, work)
        self.followed += len(work.graph)

    def count(self, request: rq.Request[Any], now_ms: int = NOW_MS) -> tuple[Any, int]:
        """The answer, and how many batches were read for it."""
        self.reads = self.followed = 0
        answer, _ = self.apply(request, now_ms)
        return answer, self.reads


def plain(n: int) -> NewJob:
    return NewJob(queue="q", id=f"j{n}", task="t", payload=b"{}", request_id=f"j{n}")


def grouped(n: int) -> NewJob:
    new = plain(n)
    new.options = StoredOptions(group=f"g{n % 7}")
    return new


def keyed(n: int) -> NewJob:
    new = plain(n)
    new.options = StoredOptions(unique=StoredUnique(key=f"k{n}", mode=UniqueMode.UNTIL_START))
    return new


def linked(n: int) -> NewJob:
    """Every job but the first waits for that."""
    new = plain(n)
    new.depends_on = [Dependency("q", "j0")] if n else []
    return new


KINDS: dict[str, Make] = {"plain": plain, "grouped": grouped, "keyed": keyed, "linked": linked}


def _store(kind: str, count: int) -> Counting:
    store = Counting()
    if kind == "grouped":
        limits = GroupLimits(concurrency=2)
        store.apply(lrq.SetGroupLimits(queue="q", group="*", limits=limits), NOW_MS)
    store.apply(rq.Add(jobs=[KINDS[kind](n) for n in range(count)]), NOW_MS)
    return store


def _claim(count: int) -> rq.Claim:
    return rq.Claim(worker="w", queues=[rq.ClaimQueue("q", count, count)], limit=count, claim_id="c")


def _refs(count: int) -> list[JobRef]:
    return [JobRef("q", f"j{n}") for n in range(count)]


def _settle(store: Counting, count: int, outcome: Outcome) -> tuple[Any, int]:
    jobs = store.apply(_claim(count), NOW_MS)[0].jobs
    items = [Settlement(queue="q", id=job.id, token=job.token or "", outcome=outcome) for job in jobs]
    return store.count(rq.Settle(items=items, claim=_claim(count)))


#: By verb: what is done, and the reads that are promised at most for (plain, any) jobs, flows apart.
VERBS: dict[str, tuple[Callable[[Counting, str, int], tuple[Any, int]], int, int]] = {
    "add": (
        lambda store, kind, n: store.count(rq.Add(jobs=[KINDS[kind](1_000 + one) for one in range(n)])),
        1,
        3,
    ),
    "claim": (lambda store, kind, n: store.count(_claim(n)), 1, 5),
    "settle": (lambda store, kind, n: _settle(store, n, Outcome.COMPLETE), 1, 5),
    "retry": (lambda store, kind, n: _settle(store, n, Outcome.RETRY), 1, 5),
    "cancel": (lambda store, kind, n: store.count(rq.CancelJobs(refs=_refs(n))), 1, 2),
    "remove": (lambda store, kind, n: store.count(rq.RemoveJobs(refs=_refs(n))), 1, 2),
    "recover": (lambda store, kind, n: _recover(store, n), 1, 2),
    "promote": (lambda store, kind, n: store.count(rq.Promote(), NOW_MS + 10**9), 2, 3),
    "prune": (lambda store, kind, n: store.count(rq.Prune(), NOW_MS + 10**12), 1, 2),
}


def _recover(store: Counting, count: int) -> tuple[Any, int]:
    store.apply(_claim(count), NOW_MS)
    return store.count(rq.Recover(), NOW_MS + 10**6)


@pytest.mark.parametrize("kind", ["plain", "grouped", "keyed"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_as_often_for_a_thousand_jobs_as_for_one(verb: str, kind: str) -> None:
    do, plainly, at_most = VERBS[verb]
    found = {count: do(_store(kind, count), kind, count)[1] for count in (1, 1_000)}
    assert found[1_000] <= (plainly if kind == "plain" else at_most), found


def _chain_of_a_hundred() -> Counting:
    """A store with jobs that wait for each other: j1 for j0, j2 for j1, and so on."""
    store = Counting()
    jobs = [plain(n) for n in range(100)]
    for n, new in enumerate(jobs[1:]):
        new.depends_on = [Dependency("q", f"j{n}")]
    store.apply(rq.Add(jobs=jobs), NOW_MS)
    return store


def test_a_job_that_is_added_to_a_long_flow_reads_none_of_its_other_edges() -> None:
    store = _chain_of_a_hundred()
    behind, child = plain(100), plain(101)
    behind.depends_on = [Dependency("q", "j99")]
    child.parent = Dependency("q", "j99")
    for new in (behind, child):
        store.count(rq.Add(jobs=[new]))
        assert store.followed == 0


@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL])
def test_telling_dependents_reads_as_often_for_many_as_for_one(outcome: Outcome) -> None:
    found = {}
    for count in (2, 1_000):
        store = _store("linked", count)
        job = store.apply(_claim(1), NOW_MS)[0].jobs[0]
        end = Settlement(queue="q", id=job.id, token=job.token or "", outcome=outcome)
        found[count] = store.count(rq.Settle(items=[end]))[1]
    assert found[2] == found[1_000]


def test_a_chain_of_failures_is_left_to_relay_after_a_bounded_number_of_reads() -> None:
    store = _chain_of_a_hundred()
    job = store.apply(_claim(1), NOW_MS)[0].jobs[0]
    end = Settlement(queue="q", id=job.id, token=job.token or "", outcome=Outcome.FAIL)
    answer, reads = store.count(rq.Settle(items=[end]))
    assert answer.relay
    assert reads < 60
    for _ in range(10):
        if not store.apply(fl.Relay(), NOW_MS)[0].more:
            break
    assert store.apply(rq.CountJobs(queue="q"), NOW_MS)[0][JobState.FAILED] == 100


def test_what_a_verb_did_not_read_cannot_be_asked_for() -> None:
    work = UnitOfWork(NOW_MS, lambda: 1)
    with pytest.raises(NotLoadedError):
        work.jobs[JobRef("q", "j0")]
    with pytest.raises(NotLoadedError):
        work.queues["q"]
