"""A busy worker has two exchanges with the server under way: one batch runs while the other is settled."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.backends.valkey.servers import url_of
from windlass import Windlass, Worker
from windlass.backend import requests as rq
from windlass.core.ids import new_id
from windlass.core.states import JobState
from windlass.errors import StorageError

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")

SLOTS, JOBS = 20, 400


class _Watch:
    """Sees every exchange of a worker; loses the answers to those in ``lose``."""

    def __init__(self, app: Windlass, lose: tuple[int, ...] = ()) -> None:
        self._inner = app.store.backend.execute
        self._lose = lose
        self.under_way = self.most = self.exchanges = self.reconciled = 0
        app.store.backend.execute = self._execute  # type: ignore[method-assign]

    async def _execute(self, request: rq.Request[Any]) -> Any:
        if isinstance(request, rq.Reconcile):
            assert self.under_way == 0, "leases of an unanswered claim would be given back"
            self.reconciled += 1
        if not isinstance(request, rq.Settle):
            return await self._inner(request)
        assert len(request.items) <= SLOTS // 2
        self.exchanges += 1
        number = self.exchanges
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            answer = await self._inner(request)
        finally:
            self.under_way -= 1
        if number in self._lose:
            raise StorageError("the answer was lost")
        return answer


async def _work_off(app: Windlass, worker: Worker) -> None:
    queue = app.queue("lanes")
    await queue.add_bulk([{"name": "work", "data": number} for number in range(JOBS)])
    async with asyncio.timeout(60):
        await worker.drain()
    assert (await queue.get_job_counts())[JobState.COMPLETED] == JOBS


@pytest.fixture
def app() -> Windlass:
    return Windlass(f"{url_of('valkey')}?namespace={new_id()}")


async def test_two_lanes_never_hold_more_jobs_than_there_are_slots(app: Windlass) -> None:
    runs: Counter[int] = Counter()
    most = 0

    async def handler(job: Any) -> None:
        nonlocal most
        most = max(most, worker.busy)
        runs[job.data] += 1

    async with app:
        watch = _Watch(app)
        worker = Worker("lanes", handler, url_or_app=app, concurrency=SLOTS)
        await _work_off(app, worker)
        assert watch.most == 2
        assert runs == Counter(range(JOBS))
        assert most <= SLOTS
        assert watch.reconciled == 0


async def test_a_worker_without_many_slots_has_one_exchange_at_a_time(app: Windlass) -> None:
    async def handler(job: Any) -> None:
        return None

    async with app:
        watch = _Watch(app)
        await _work_off(app, Worker("lanes", handler, url_or_app=app, concurrency=8))
        assert watch.most == 1


@pytest.mark.feature("L7")
async def test_lost_answers_of_both_lanes_lose_no_job(app: Windlass) -> None:
    runs: Counter[int] = Counter()

    async def handler(job: Any) -> None:
        runs[job.data] += 1

    async with app:
        watch = _Watch(app, lose=(5, 6, 11))
        await _work_off(app, Worker("lanes", handler, url_or_app=app, concurrency=SLOTS))
        assert set(runs) == set(range(JOBS))
        assert watch.reconciled >= 2
        counts = await app.queue("lanes").get_job_counts()
        assert counts[JobState.ACTIVE] == counts[JobState.WAITING] == 0
