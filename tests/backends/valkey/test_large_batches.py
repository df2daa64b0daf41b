"""Large batches of every kind of jobs and ends, against the memory store.

Plain jobs end and are leased in runs, see ``lua/includes/52_completed.lua``: whatever stands between them,
and however long the runs are, nothing else may come of it than of one job after the other.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.backends.valkey.servers import make_harness
from windlass.backend import requests as rq
from windlass.core.job import JobRecord, NewJob
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settled, Settlement
from windlass_conformance.harness import Harness, UrlHarness, settlement

pytestmark = pytest.mark.service("valkey")

TURNS = 25
RARE = (Outcome.FAIL, Outcome.RETRY, Outcome.RELEASE, Outcome.CANCEL)
RESULTS = (b"null", b"null", b"null", b"1", None, b"large" * 100)


class Game:
    """Two stores that are asked the same, by the numbers of one generator."""

    def __init__(self, seed: int, *stores: Harness) -> None:
        self._rng = random.Random(seed)
        self._stores = stores
        self._held: list[JobRecord] = []
        self._ended: list[JobRecord] = []
        #: Tokens of the first store -> those that the second gave to the same leases.
        self._tokens: dict[str, str] = {}

    async def play(self) -> None:
        for turn in range(TURNS):
            passed = self._rng.choice((0, 1, 7))
            for store in self._stores:
                store.pass_ms(passed)
            added = [self._job(f"{turn}.{number}") for number in range(self._rng.choice((0, 3, 90)))]
            ends, limit = self._ends(), self._rng.choice((1, 5, 30, 250))
            answers = []
            for store, items in zip(self._stores, (ends, self._translated(ends)), strict=True):
                await store.do(rq.Add(jobs=list(added)))
                claim = store.claim_request(rq.ClaimQueue("mail", limit, limit), limit=limit)
                answers.append(await store.do(rq.Settle(items=list(items), claim=claim)))
            self._compare(ends, *answers)

    def _job(self, job_id: str) -> NewJob:
        """Most are plain; their ids are not all of one length."""
        rng = self._rng
        more: dict[str, Any] = {}
        if rng.random() < 0.1:
            more = rng.choice(
                ({"options": StoredOptions(tags=("x",))}, {"expires_in_ms": 2}, {"priority": 1})
            )
        task = rng.choice(("send", "send", "send", "bill"))
        return NewJob(**{"queue": "mail", "id": job_id, "task": task, "payload": b"[]", **more})

    def _ends(self) -> list[Settlement]:
        """Of some of the jobs that are held; a few come twice, late, or with a token that never was."""
        rng = self._rng
        ends = []
        for job in rng.sample(self._held, min(len(self._held), rng.choice((1, 8, 40, 250)))):
            fields: dict[str, Any] = {
                "result": rng.choice(RESULTS),
                "duration_ms": rng.choice((0, 0, 1, None)),
            }
            if rng.random() < 0.02:
                fields["token"] = "never.0"
            outcome = Outcome.COMPLETE
            if rng.random() < 0.1:
                outcome, fields["result"] = rng.choice(RARE), None
            ends += [settlement(job, outcome, **fields)] * rng.choice((1,) * 30 + (2,))
        ends += [settlement(job, Outcome.COMPLETE) for job in self._ended[:1]]
        rng.shuffle(ends)
        return ends

    def _translated(self, ends: list[Settlement]) -> list[Settlement]:
        """``ends`` under the tokens of the second store."""
        return [msgspec.structs.replace(end, token=self._tokens.get(end.token, end.token)) for end in ends]

    def _compare(self, ends: list[Settlement], one: rq.SettleResult, two: rq.SettleResult) -> None:
        assert one.items == two.items
        assert one.claimed is not None and two.claimed is not None
        claimed = one.claimed.jobs
        assert [_seen_of(job) for job in claimed] == [_seen_of(job) for job in two.claimed.jobs]
        for first, second in zip(claimed, two.claimed.jobs, strict=True):
            self._tokens[first.token or ""] = second.token or ""
        over = {end.id for end, settled in zip(ends, one.items, strict=True) if settled is Settled.OK}
        self._ended = [job for job in self._held if job.id in over] or self._ended
        self._held = [job for job in self._held if job.id not in over] + claimed


def _seen_of(job: JobRecord) -> JobRecord:
    """Each store numbers its jobs and their leases in its own way."""
    held, settled = job.token and "held", job.settled_token and "settled"
    return msgspec.structs.replace(job, seq=0, place=0, token=held, settled_token=settled)


async def _seen(store: Harness) -> list[Any]:
    events = [
        (event.type, event.job_id, event.task, event.at_ms, event.data) for event in await store.events()
    ]
    rows = [
        (row.job_id, row.outcome, row.duration_ms, row.task, row.attempt, row.started_ms, row.finished_ms)
        for row in await store.history()
    ]
    jobs = [await store.find(job_id) for job_id in sorted({row[0] for row in rows})]
    return [events, rows, [job and _seen_of(job) for job in jobs], await store.counts()]


@pytest.mark.feature("J4", "L6", "U7")
@pytest.mark.parametrize("deployment", ["valkey", "redis"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_large_batches_do_what_they_do_in_memory(deployment: str, seed: int) -> None:
    async with UrlHarness("memory", "memory://") as memory, make_harness(deployment) as store:
        await Game(seed, memory, store).play()
        expected, seen = await _seen(memory), await _seen(store)
        assert seen == expected
        assert len(expected[1]) > 300, "the game was too short to show anything"
