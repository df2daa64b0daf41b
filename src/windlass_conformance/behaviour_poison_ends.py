"""Results, reasons and delays that a store cannot store fail only their own job."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from windlass import Cancel, ConfigError, Job, JobState, RateLimitError, Retry, Snooze, Suspend
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.core.job import Event, EventType
from windlass.core.outcome import Outcome
from windlass.testing.wrapper import BackendWrapper
from windlass_conformance.harness import Harness
from windlass_conformance.live_worker import HONEST, SURROGATE, Live, NoText, raiser
from windlass_conformance.stage import eventually

# --- ends that a store cannot take as they are ---------------------------------------------------------


REASONS: dict[str, tuple[Callable[[], Any], str]] = {
    "an error": (lambda: ValueError("why"), "why"),
    "nothing": (lambda: None, ""),
    "a surrogate": (lambda: "\ud800", "\\ud800"),
    "a number": (lambda: 10**30, "1" + "0" * 30),
    "no text": (NoText, "<a NoText that cannot be printed>"),
    "five megabytes": (lambda: "x" * 5_000_000, "x" * 100),
}


async def test_a_handler_may_cancel_its_job_with_any_reason(harness: Harness) -> None:
    async with Live(harness) as live:
        odd = {what: await live.add(what) for what in REASONS}

        def handler(job: Job[Any]) -> None:
            raise Cancel(REASONS[job.name][0]())

        await live.work(handler)
        for what, job in odd.items():
            await live.ends(job, JobState.CANCELLED)
            assert live.runs[job.id] == 1
            assert job.record.reason.startswith(REASONS[what][1]), what
            assert len(job.record.reason) <= 2_000


async def test_odd_delays_of_backoff_strategies_are_the_default(harness: Harness) -> None:
    def angry(failures: int, error: BaseException) -> float:
        raise SystemExit("no delay")

    answers: dict[str, Any] = {
        "huge": 1e30,
        "huge_int": 10**400,
        "nan": float("nan"),
        "inf": float("inf"),
        "text": "soon",
        "true": True,
    }
    strategies: dict[str, Any] = {name: (lambda n, e, v=value: v) for name, value in answers.items()}
    async with Live(harness, backoff_strategies={**strategies, "angry": angry}) as live:
        odd = [await live.add(name, backoff=name) for name in (*answers, "angry")]
        await live.work(raiser(lambda: ValueError("x")))
        await live.check_honest()
        for job in odd:
            retried = await _first_retry(live, job.id)
            assert retried.data["attempt"] == 1
            assert 0 < retried.data["run_at_ms"] - retried.at_ms < 60_000


async def _first_retry(live: Live, job_id: str) -> Event:
    """The first ``retrying`` event of a job. Its state may have changed again on a slow machine."""
    async with asyncio.timeout(20):
        while True:
            page = await live.app.store.execute(rq.ReadEvents(queue="mail", limit=1_000))
            for event in page.events:
                if (event.job_id, event.type) == (job_id, EventType.RETRYING):
                    return event
            await asyncio.sleep(0.01)


async def test_odd_delays_of_signals_are_refused_as_an_error_of_the_handler(harness: Harness) -> None:
    signals: dict[str, Callable[[], BaseException]] = {
        "snooze": lambda: Snooze(1e30),
        "retry": lambda: Retry("x"),  # type: ignore[arg-type] # the point
        "limited": lambda: RateLimitError(None),  # type: ignore[arg-type] # the point
        "huge": lambda: Snooze(10**5_000),
        "suspend": lambda: Suspend("\ud800"),
    }
    async with Live(harness) as live:
        odd = [await live.add(name) for name in signals]

        def handler(job: Job[Any]) -> None:
            raise signals[job.name]()

        await live.work(handler)
        for job in odd:
            await live.ends(job)
            assert (live.runs[job.id], {e.error_class for e in job.errors}) == (2, {"ConfigError"})


async def test_results_that_cannot_be_stored_fail_their_job_only(harness: Harness) -> None:
    class Hostile:
        @property  # type: ignore[misc] # that is the point
        def __class__(self) -> Any:
            raise RuntimeError("no class")

    def generator() -> Any:
        yield 1

    endless: list[Any] = []
    endless.append(endless)
    results: dict[str, Any] = {
        "surrogate": SURROGATE,
        "hostile": Hostile(),
        "generator": generator(),
        "endless": endless,
        "nan": float("nan"),
        "class": Hostile,
    }
    async with Live(harness) as live:
        odd = [await live.add(name) for name in results]
        await live.work(lambda job: results[job.name])
        for job in odd:
            await live.ends(job)
            assert (live.runs[job.id], job.record.reason) == (1, "result")


async def test_odd_texts_of_a_running_job_are_kept_escaped(harness: Harness) -> None:
    async def handler(job: Job[Any]) -> str:
        await job.log(SURROGATE)
        await job.log("a\x00\x1b")
        await job.log("x" * 5_000_000)
        with pytest.raises(ConfigError):
            await job.update_progress(SURROGATE)
        await job.move_to_failed(ValueError(SURROGATE), SURROGATE)
        return "ignored"

    async with Live(harness) as live:
        odd = await live.add("odd")
        await live.work(handler)
        await live.ends(odd)
        lines, _ = await live.queue.get_job_logs(odd.id)
        assert lines[:2] == ["caf\\udce9.txt", "a\\x00\\x1b"]
        assert len(lines[2]) == 10_000
        assert (odd.record.reason, odd.errors[-1].message) == ("caf\\udce9.txt",) * 2


# --- a store that refuses a settlement -----------------------------------------------------------------


class Picky(BackendWrapper):
    """A store that refuses all settlements of some jobs; with ``forgives`` it accepts failures."""

    def __init__(self, inner: Any, forgives: bool = True) -> None:
        super().__init__(inner)
        self.forgives = forgives
        self.refused: Counter[str] = Counter()
        self.bad: set[str] = set()

    async def execute(self, request: Any) -> Any:
        if isinstance(request, rq.Settle):
            for end in request.items:
                if end.id in self.bad and not (self.forgives and end.outcome is Outcome.FAIL):
                    self.refused[end.id] += 1
                    raise OverflowError("this number is too large for me")
        return await self.inner.execute(request)

    def clone(self) -> Any:
        return self.inner.clone()


async def test_a_batch_that_the_store_refuses_is_settled_one_by_one(harness: Harness) -> None:
    picky: list[Picky] = []

    def wrap(inner: Any) -> Picky:
        picky.append(Picky(inner))
        return picky[0]

    async with Live(harness, wrap) as live:
        odd = await live.add("odd")
        picky[0].bad.add(odd.id)
        told: list[tuple[str, str]] = []
        callbacks: dict[str, Callable[..., Any]] = {
            "completed": lambda job, result: told.append(("completed", job.id)),
            "failed": lambda job, error: told.append(("failed", job.id)),
        }
        await live.work(lambda job: "done", callbacks)
        await live.ends(odd)
        await eventually(lambda: len(told) == 2 * HONEST + 1)
        assert sorted(told) == sorted([("failed", odd.id), *(("completed", job.id) for job in live.honest)])
        assert live.runs[odd.id] == 1
        assert odd.record.reason == "settlement_refused"
        assert "this number is too large for me" in odd.errors[-1].message
        assert picky[0].refused[odd.id] <= 2  # in its batch, and alone


class Relays(BackendWrapper):
    """A store that reports entries to relay after every settlement, and fails to relay them."""

    async def execute(self, request: rq.Request[Any]) -> Any:
        if isinstance(request, fl.Relay):
            raise OverflowError("this flow is too large for me")
        answer = await self.inner.execute(request)
        if isinstance(request, rq.Settle):
            answer.relay = True
        return answer

    def clone(self) -> Any:
        return self.inner.clone()


async def test_a_worker_drains_though_telling_of_ends_fails(harness: Harness) -> None:
    async with Live(harness, Relays) as live:
        await live.add("odd")
        worker = await live.work(lambda job: "done")
        async with asyncio.timeout(10):
            await worker.drain()
        await live.check_honest()


async def test_a_job_whose_failure_is_refused_too_harms_no_other_and_the_worker_closes(
    harness: Harness,
) -> None:
    picky: list[Picky] = []

    def wrap(inner: Any) -> Picky:
        picky.append(Picky(inner, forgives=False))
        return picky[0]

    async with Live(harness, wrap) as live:
        odd = await live.add("odd")
        picky[0].bad.add(odd.id)
        await live.work(lambda job: "done", lease=30)
        await live.check_honest()
        more = await live.add("more")
        assert await more.result(timeout=20) == "done"
        await live.check_honest()
        assert live.runs[odd.id] == 1
        assert await odd.get_state() is JobState.ACTIVE  # its lease runs out by itself
        assert picky[0].refused[odd.id] <= 3
