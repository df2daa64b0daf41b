"""Flows where one step cannot reach everything: over the slots of a cluster, with clients that die.

Traps b-000-10, b-000-11 and the part of b-000-20 that is about children.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.valkey.servers import DEPLOYMENTS, cluster_servers, url_of, valkey_server
from tests.backends.valkey.support import add, claim, complete, new, opened
from tests.faults.kit import staged
from tests.faults.test_flows import CHILDREN, QUEUES, add_flow, check_one_failure, child_of, storm
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backends.valkey import ValkeyBackend
from windlass.backends.valkey.functions import Functions
from windlass.backends.valkey.relay import LINKING_MS
from windlass.core.edges import Dependency, Edge, EdgeStatus, OnFailure
from windlass.core.ids import new_id
from windlass.core.job import JobRef, NewJob
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Settled
from windlass.core.states import JobState
from windlass.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")

START_MS = 1_750_000_000_000


@pytest.fixture(params=DEPLOYMENTS)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(str(request.param))


async def _edge(store: ValkeyBackend, parent: NewJob) -> list[Edge]:
    (found,) = await store.execute(fl.GetDependencies(refs=[JobRef(parent.queue, parent.id)]))
    return found.depends_on


async def _state(store: ValkeyBackend, job: NewJob) -> JobState:
    (found,) = await store.execute(rq.GetJobs(refs=[JobRef(job.queue, job.id)]))
    assert found is not None
    return found.state


@pytest.mark.feature("I1", "I5", "M5")
async def test_a_flow_over_the_slots_of_a_cluster_survives_clients_that_die(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client that ends a child dies before, in the middle of and after telling; others tell again."""
    queues = [f"q{n}" for n in range(6)]
    async with opened(cluster_servers().url, timeout=30) as store:
        children = [new(queue) for queue in queues for _ in range(3)]
        deps = [Dependency(child.queue, child.id) for child in children]
        parent = new("top", depends_on=deps)
        assert (await add(store, parent, *children))[0].state is JobState.BLOCKED
        steps = ("flow_outbox", "flow_notify", "flow_notified")
        for n, child in enumerate(children):
            assert await _state(store, parent) is JobState.BLOCKED
            with monkeypatch.context() as patch:
                patch.setattr(Functions, steps[n % 3], _dies)
                (job,) = await claim(store, child.queue, limit=1)
                assert await complete(store, job) == [Settled.OK]
            if n % 2:
                await asyncio.gather(*(store.execute(fl.Relay()) for _ in range(3)))
        while (await store.execute(fl.Relay())).more:
            pass
        assert (await store.execute(fl.Relay())).count == 0
        assert await _state(store, parent) is JobState.WAITING
        assert {edge.status for edge in await _edge(store, parent)} == {EdgeStatus.DONE}
        (job,) = await claim(store, "top", limit=5)
        assert job.id == parent.id


async def _dies(*_: object) -> None:
    raise StorageError("the client died")


@pytest.mark.feature("I5", "I8")
async def test_a_child_that_ends_while_its_flow_is_being_added_is_not_overlooked(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url, timeout=30) as store:
        early, late = new("early"), new("late")
        await add(store, early, late)
        (job,) = await claim(store, "late", limit=1)
        await complete(store, *await claim(store, "early", limit=1))
        ended = asyncio.Event()
        link = Functions.flow_link

        async def ends_first(self: Functions, *arguments: Any) -> list[Any]:
            if not ended.is_set():
                ended.set()
                await complete(store, job)
            return await link(self, *arguments)

        monkeypatch.setattr(Functions, "flow_link", ends_first)
        deps = [Dependency("early", early.id), Dependency("late", late.id)]
        parent = new("top", depends_on=deps)
        await add(store, parent)
        if not ended.is_set():  # one server links in the step that adds
            await complete(store, job)
        assert await _state(store, parent) is JobState.WAITING
        assert [edge.value for edge in await _edge(store, parent)] == [b"1", b"1"]


@pytest.mark.feature("I1", "I5")
@pytest.mark.parametrize("step", ["flow_add", "flow_link", "flow_linked"])
async def test_a_client_that_dies_while_it_adds_a_flow_leaves_no_job_blocked_for_ever(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(cluster_servers().url, timeout=30) as store:
        known = new("known")
        await add(store, known, now_ms=START_MS)
        deps = [Dependency("known", known.id), Dependency("fresh", "f", OnFailure.IGNORE)]
        jobs = [new("top", "t", depends_on=deps), new("fresh", "f")]
        call, calls = getattr(Functions, step), 0

        async def dies(self: Functions, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if step == "flow_add" and calls == 1:  # the dependents are written, their children are not
                return await call(self, *arguments)
            raise StorageError("the client died")

        with monkeypatch.context() as patch:
            patch.setattr(Functions, step, dies)
            with pytest.raises(StorageError):
                await add(store, *jobs, now_ms=START_MS)
        assert await _state(store, jobs[0]) is JobState.BLOCKED
        await store.execute(fl.Relay(now_ms=START_MS + 1_000))
        assert {edge.status for edge in await _edge(store, jobs[0])} == {EdgeStatus.OPEN}, "it may be slow"
        late_ms = START_MS + LINKING_MS
        await store.execute(fl.Relay(now_ms=late_ms))
        await complete(store, *await claim(store, "known", "fresh", now_ms=late_ms), now_ms=late_ms)
        assert await _state(store, jobs[0]) is JobState.WAITING
        gone = step == "flow_add"
        statuses = [edge.status for edge in await _edge(store, jobs[0])]
        assert statuses == [EdgeStatus.DONE, EdgeStatus.IGNORED if gone else EdgeStatus.DONE]


@pytest.mark.feature("I1", "Z14")
async def test_a_flow_that_is_added_again_after_its_client_died_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(cluster_servers().url, timeout=30) as store:
        known = new("known")
        await add(store, known)
        deps = [Dependency("known", known.id), Dependency("fresh", "f")]
        jobs = [new("top", "t", depends_on=deps), new("fresh", "f")]
        with monkeypatch.context() as patch:
            patch.setattr(Functions, "flow_link", _dies)
            with pytest.raises(StorageError):
                await add(store, *jobs)
        answers = await add(store, *jobs)
        assert [one.outcome for one in answers] == [AddOutcome.QUEUED] * 2
        await complete(store, *await claim(store, "known", "fresh"))
        assert await _state(store, jobs[0]) is JobState.WAITING


@pytest.mark.feature("I5")
async def test_what_is_left_in_the_outboxes_of_several_queues_is_told(url: str) -> None:
    async with opened(url, timeout=30) as store:
        for queue in ("a", "b", "c"):
            child = new(queue)
            await add(store, child)
            deps = [Dependency(queue, child.id)]
            for _ in range(3):
                await add(store, *(new(f"{queue}-top", depends_on=deps) for _ in range(400)))
        jobs = await claim(store, "a", "b", "c")
        await complete(store, *jobs)
        relayed = await store.execute(fl.Relay(limit=500))
        while relayed.more:
            relayed = await store.execute(fl.Relay(limit=500))
        for queue in ("a", "b", "c"):
            counts = await store.execute(rq.CountJobs(queue=f"{queue}-top"))
            assert counts[JobState.WAITING] == 1_200
        assert await store.execute(fl.Relay()) == fl.Relayed(0)


@pytest.mark.feature("I3")
async def test_the_values_of_children_outlive_their_records(url: str) -> None:
    gone = StoredOptions(keep_completed=Keep(0, 0), result_ttl_ms=0)
    async with opened(url, timeout=30) as store:
        children = [new(f"q{n}", options=gone) for n in range(4)]
        parent = new("top", depends_on=[Dependency(child.queue, child.id) for child in children])
        await add(store, parent, *children, now_ms=START_MS)
        jobs = await claim(store, "q0", "q1", "q2", "q3", now_ms=START_MS)
        await complete(store, *jobs, now_ms=START_MS)
        await store.execute(rq.Prune(now_ms=START_MS + 120_000))
        found = await store.execute(rq.GetJobs(refs=[JobRef(one.queue, one.id) for one in children]))
        assert found == [None] * 4
        assert [edge.value for edge in await _edge(store, parent)] == [b"1"] * 4


@pytest.mark.feature("I1", "I2", "I3", "J8", "M5")
async def test_a_thousand_children_in_ten_slots_though_workers_are_killed(tmp_path: Path) -> None:
    url = f"{cluster_servers().url}?namespace={new_id()}&timeout=30"
    async with staged(tmp_path, url) as stage:
        node = await add_flow(stage, [child_of(n) for n in range(CHILDREN)])
        await storm(stage, random.Random(4))
        found = await node.job.result(timeout=60)
        assert found == {"values": list(range(CHILDREN)), "failed": []}
        assert stage.lines("gathered") == [node.id], "the parent ran once"
        ended = [row for row in await stage.history() if row.job_id == node.id]
        assert ended[0].started_ms is not None
        for queue in QUEUES:
            for row in await stage.history(queue):
                assert row.finished_ms <= ended[0].started_ms, "no parent before its children"


@pytest.mark.feature("I9", "J8", "M5")
@pytest.mark.parametrize("on_failure", ["fail", "ignore", "continue"])
async def test_one_of_a_thousand_children_in_ten_slots_fails_for_good(
    tmp_path: Path, on_failure: str
) -> None:
    url = f"{cluster_servers().url}?namespace={new_id()}&timeout=30"
    async with staged(tmp_path, url) as stage:
        await check_one_failure(stage, on_failure, CHILDREN)


@pytest.mark.feature("I8")
async def test_a_child_added_to_a_job_behind_a_long_chain_reads_none_of_the_chain() -> None:
    chain = [new(job_id="j0"), *(new(job_id=f"j{n}", depends_on=[_on(f"j{n - 1}")]) for n in range(1, 50))]
    async with opened(valkey_server().url) as store:
        await add(store, *chain)
        calls = []
        for parent in ("j0", "j49"):
            before = _calls()
            await add(store, new(parent=_on(parent)))
            calls.append(_calls() - before)
        assert calls[0] == calls[1]


def _on(job_id: str) -> Dependency:
    return Dependency("q", job_id)


def _calls() -> int:
    with valkey_server().client() as admin:
        stats = admin.info("commandstats")
    return sum(int(row["calls"]) for name, row in stats.items() if name.startswith("cmdstat_fcall"))
