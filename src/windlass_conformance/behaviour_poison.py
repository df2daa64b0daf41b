"""One odd value from user code harms nothing else: the job that made it fails, and its neighbours complete.

Every test has honest jobs beside the odd one, runs on the system's clock as production does, and asserts that
the honest ones were run and completed exactly once.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any

import pytest

from windlass import (
    BatchError,
    Cancel,
    ConfigError,
    Job,
    JobState,
    RateLimitError,
    Retry,
    Snooze,
    StorageError,
    Suspend,
    Windlass,
    WindlassError,
    Worker,
    current_job,
)
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.backoff import Backoff
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.option_values import Keep
from windlass.core.outcome import Outcome
from windlass.testing.wrapper import BackendWrapper
from windlass_conformance import targets
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import eventually

#: Honest jobs on each side of the odd ones.
HONEST = 4
SURROGATE = os.fsdecode(b"caf\xe9.txt")


class Live:
    """An app and a worker on the harness's store, on the system's clock; counts the runs of every job."""

    def __init__(self, harness: Harness, wrap: Callable[[Any], Any] | None = None, **options: Any) -> None:
        backend = harness.connect(harness.namespace)
        self.app = Windlass("memory://", **options)
        self.app.store = Store(backend if wrap is None else wrap(backend), SYSTEM_CLOCK)
        self.queue = self.app.queue("mail")
        self.runs: Counter[str] = Counter()
        self.honest: list[Job[Any]] = []
        self.worker: Worker | None = None

    async def __aenter__(self) -> Live:
        await self.app.store.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with asyncio.timeout(15):
            if self.worker is not None:
                await self.worker.close()
            await self.app.close()

    async def add(self, name: str, **options: Any) -> Job[Any]:
        """A job between honest ones, all retried without a wait."""
        options = {"backoff": 0, "max_attempts": 2} | options
        before = await self.queue.add_bulk([{"name": "honest"} for _ in range(HONEST)])
        odd = await self.queue.add(name, **options)
        after = await self.queue.add_bulk([{"name": "honest"} for _ in range(HONEST)])
        self.honest += [*before, *after]
        return odd

    async def work(
        self,
        handler: Callable[[Job[Any]], Any],
        told: dict[str, Callable[..., Any]] | None = None,
        **options: Any,
    ) -> Worker:
        """Let ``handler`` run the odd jobs, honest ones end by themselves. ``callbacks``: by event."""

        async def run(job: Job[Any]) -> Any:
            self.runs[job.id] += 1
            if job.name == "honest":
                return "done"
            return await handler(job) if inspect.iscoroutinefunction(handler) else handler(job)

        self.worker = Worker("mail", run, url_or_app=self.app, grace=1, cancel_wait=1, **options)
        for event, callback in (told or {}).items():
            self.worker.on(event, callback)
        await self.worker.start()
        return self.worker

    async def check_honest(self) -> None:
        """Every honest job ran once, completed, and was never stalled."""
        for job in self.honest:
            assert await job.result(timeout=20) == "done"
        assert {(self.runs[job.id], job.stalled_count, job.attempts) for job in self.honest} == {(1, 0, 0)}

    async def ends(self, job: Job[Any], state: JobState = JobState.FAILED) -> Job[Any]:
        """Wait for the end of an odd job."""
        assert await job.wait_until_finished(timeout=20) is state
        await self.check_honest()
        return job


def raiser(error: Callable[[], BaseException]) -> Callable[[Job[Any]], Any]:
    """A handler that raises what ``error`` makes."""

    def run(job: Job[Any]) -> Any:
        raise error()

    return run


# --- errors that cannot be stored as they are ---------------------------------------------------------


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class Liar(Exception):
    @property  # type: ignore[misc] # that is the point
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Claims(Exception):
    """An application's own error that has attributes of ours."""

    error_class = 5
    remote_traceback = b"\xff"


class Unsure(Exception):
    @property
    def unrecoverable(self) -> bool:
        raise KeyError("perhaps")


class Last(BaseException):
    """Not even an ``Exception``."""


class OddName(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override] # that is the point
        return "Odd\ud800Name"


class Renamed(Exception, metaclass=OddName):
    pass


def odd_notes() -> BaseException:
    error = ValueError("with notes")
    error.__notes__ = [SURROGATE, 5, NoText()]  # type: ignore[list-item] # that is the point
    return error


def deep_chain() -> BaseException:
    error: BaseException = ValueError("the first")
    for _ in range(20_000):
        after = ValueError("the last")
        after.__cause__ = error
        error = after
    return error


def groups_in_groups() -> BaseException:
    """Few objects, but a tree of them has more than a billion leaves."""
    error: Exception = ValueError("x")
    for _ in range(30):
        error = ExceptionGroup("twice", [error, error])
    return error


ERRORS: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "a lone surrogate": (lambda: ValueError(SURROGATE), "ValueError", "caf\\udce9.txt"),
    "NUL and escapes": (lambda: ValueError("a\x00b\x1b[2J"), "ValueError", "a\\x00b\\x1b[2J"),
    "five megabytes": (lambda: ValueError("x" * 5_000_000), "ValueError", "x" * 100),
    "no text": (NoText, "NoText", "<a NoText that cannot be printed>"),
    "a text that exits": (Deadly, "Deadly", "<a Deadly that cannot be printed>"),
    "no class": (lambda: Liar("x"), "Liar", "x"),
    "attributes of ours": (lambda: Claims("x"), "Claims", "x"),
    "an attribute that raises": (lambda: Unsure("x"), "Unsure", "x"),
    "a base exception": (lambda: Last("x"), "Last", "x"),
    "an exit": (lambda: SystemExit("x"), "SystemExit", "x"),
    "a name with a surrogate": (lambda: Renamed("x"), "Odd\\ud800Name", "x"),
    "odd notes": (odd_notes, "ValueError", "with notes"),
    "a chain of thousands": (deep_chain, "ValueError", "the last"),
    "groups in groups": (groups_in_groups, "ExceptionGroup", "twice"),
}


async def test_odd_errors_are_failed_attempts_that_count_and_end(harness: Harness) -> None:
    async with Live(harness) as live:
        odd = {what: await live.add(what) for what in ERRORS}

        def handler(job: Job[Any]) -> None:
            raise ERRORS[job.name][0]()

        await live.work(handler)
        for what, job in odd.items():
            _, error_class, message = ERRORS[what]
            await live.ends(job)
            assert (live.runs[job.id], job.attempts, job.record.reason) == (2, 2, "attempts"), what
            assert {error.error_class for error in job.errors} == {error_class}, what
            for error in job.errors:
                assert error.message.startswith(message), what
                assert len(error.message) <= 10_000 and len(error.traceback) <= 32_000, what
                error.traceback.encode()  # well-formed


async def test_odd_errors_of_plain_functions_count_as_well(harness: Harness) -> None:
    async with Live(harness) as live:
        makers: dict[str, Callable[[], BaseException]] = {
            "surrogate": lambda: ValueError(SURROGATE),
            "stop": lambda: StopIteration("no future may hold it"),
            "last": lambda: Last("x"),
        }

        def run(job: Job[Any]) -> str:
            live.runs[job.id] += 1
            if job.name == "honest":
                return "done"
            raise makers[job.name]()

        odd = [await live.add(name) for name in makers]
        live.worker = Worker("mail", run, url_or_app=live.app, grace=1, cancel_wait=1)
        await live.worker.start()
        for job in odd:
            await live.ends(job)
            assert (live.runs[job.id], job.attempts) == (2, 2)


@pytest.mark.feature("T1")
async def test_odd_errors_of_a_child_process_count_and_are_kept(harness: Harness) -> None:
    async with Live(harness) as live:
        task = live.app.task(queue="mail", isolation="process", backoff=0, max_attempts=2)
        odd = task(targets.fail_oddly)
        honest = task(targets.double)
        jobs = {kind: await odd.enqueue(kind) for kind in ("surrogate", "attributes", "exit", "cancel")}
        doubled = [await honest.enqueue(n) for n in range(4)]
        live.worker = Worker("mail", url_or_app=live.app, grace=1, cancel_wait=1, process_slots=1)
        await live.worker.start()
        for kind, job in jobs.items():
            wanted = JobState.CANCELLED if kind == "cancel" else JobState.FAILED
            assert await job.wait_until_finished(timeout=30) is wanted, kind
        assert [await job.result(timeout=30) for job in doubled] == [0, 2, 4, 6]
        said = {kind: [(e.error_class, e.message) for e in job.errors] for kind, job in jobs.items()}
        assert said["surrogate"] == [("ValueError", "caf\\udce9.txt")] * 2
        assert said["attributes"] == [("Claims", "x")] * 2
        assert said["exit"] == [("SystemExit", "x")] * 2
        assert jobs["cancel"].record.reason == "\\ud800"


@pytest.mark.feature("H17")
async def test_an_odd_end_of_a_batch_fails_its_jobs_and_no_other(harness: Harness) -> None:
    async with Live(harness) as live:
        ends: dict[str, Callable[[], BaseException]] = {
            "surrogate": lambda: ValueError(SURROGATE),
            "number": lambda: BatchError({0.5: ValueError("x")}),  # type: ignore[dict-item] # the point
            "class": lambda: Liar("x"),
            "stop": lambda: StopIteration("x"),
        }

        async def batch(jobs: list[Job[Any]]) -> None:
            live.runs.update(job.id for job in jobs)
            raise ends[jobs[0].name]()

        async def honest(job: Job[Any]) -> str:
            live.runs[job.id] += 1
            return "done"

        live.app.register("honest", honest)
        for name in ends:
            live.app.register(name, batch, batch=2)
        odd = [await live.add(name) for name in ends]
        live.worker = Worker("mail", url_or_app=live.app, grace=1, cancel_wait=1)
        await live.worker.start()
        for job in odd:
            await live.ends(job)


class Fewer(list[Any]):
    """Says one length and gives another."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Broken(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no items")


@pytest.mark.feature("H17")
@pytest.mark.parametrize("kind", [Fewer, Broken])
async def test_an_odd_list_of_results_fails_the_jobs_of_its_batch_and_no_other(
    harness: Harness, kind: type[list[Any]]
) -> None:
    async with Live(harness) as live:

        async def batch(jobs: list[Job[Any]]) -> list[Any]:
            return kind(job.id for job in jobs)

        async def honest(job: Job[Any]) -> str:
            live.runs[job.id] += 1
            return "done"

        live.app.register("honest", honest)
        live.app.register("odd", batch, batch=2)
        odd = [await live.add("odd") for _ in range(2)]
        live.worker = Worker("mail", url_or_app=live.app, grace=1, cancel_wait=1)
        await live.worker.start()
        for job in odd:
            await live.ends(job)


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
            while await job.get_state() in (JobState.WAITING, JobState.ACTIVE):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
            assert (job.state, job.attempts) == (JobState.RETRYING, 1)
            assert job.record.due_ms is not None and 0 < job.record.due_ms - job.record.enqueued_ms < 60_000


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
    """Refuses every settlement of some jobs while it is reachable; ``forgives``: but takes a failure."""

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
    """Says after every settlement that others are to be notified, and fails to notify them."""

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


# --- wrong input: a typed error at once, nothing changed --------------------------------------------------


async def test_a_reason_that_is_no_text_is_refused_and_changes_nothing(harness: Harness) -> None:
    async with Live(harness) as live:
        job = await live.add("odd", delay=3_600)
        for reason in (None, 5, b"x", ValueError("x")):
            with pytest.raises(ConfigError, match="reason"):
                await job.cancel(reason)  # type: ignore[arg-type] # the point
            with pytest.raises(ConfigError, match="reason"):
                await live.queue.kill(job.id, reason)  # type: ignore[arg-type] # the point
            with pytest.raises(ConfigError, match="reason"):
                await live.queue.cancel_jobs(state="scheduled", reason=reason)  # type: ignore[arg-type]
        assert await job.get_state() is JobState.SCHEDULED
        await live.work(lambda job: "done")
        await live.check_honest()
        await job.cancel("\ud800" + "x" * 5_000_000)
        await job.refresh()
        assert (job.state, job.record.reason[:7]) == (JobState.CANCELLED, "\\ud800x")
        assert len(job.record.reason) <= 2_000


async def test_options_that_no_store_could_keep_are_refused_and_add_nothing(harness: Harness) -> None:
    odd: list[dict[str, Any]] = [
        {"tags": [SURROGATE]},
        {"tags": ["x" * 129]},
        {"tags": [5]},
        {"group": SURROGATE},
        {"group": "x" * 257},
        {"trace": {"a": SURROGATE}},
        {"trace": {"a": "x" * 100_000}},
        {"job_id": SURROGATE},
        {"unique": SURROGATE},
        {"unique": "x" * 257},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1e30},
        {"delay": 10**400},
        {"timeout": True},
        {"priority": True},
        {"priority": 10**30},
        {"max_attempts": 2.0},
        {"max_attempts": float("nan")},
        {"backoff": Backoff(delay_ms=-1)},
        {"backoff": Backoff(delay_ms=10**30)},
        {"backoff": Backoff(jitter=float("nan"))},
        {"backoff": {"delay": float("inf")}},
        {"keep_completed": Keep(age_ms="x")},  # type: ignore[arg-type] # the point
        {"cost": 1e30},
        {"run_at": float("nan")},
        {"expires_in": 1e300},
        {"lease": "x" * 5_000_000},
    ]
    async with Live(harness) as live:
        for options in odd:
            with pytest.raises(ConfigError) as caught:
                await live.queue.add("odd", **options)
            assert len(str(caught.value)) < 1_000, options
        with pytest.raises(ConfigError):
            await live.queue.add("odd", SURROGATE)
        with pytest.raises(ConfigError):
            await live.queue.add(SURROGATE)
        assert await live.queue.count() == 0


async def test_a_worker_with_an_odd_label_is_refused_and_workers_can_be_listed(harness: Harness) -> None:
    async with Live(harness) as live:
        wrong: Any
        for wrong in (5, None, SURROGATE, "x" * 257):
            with pytest.raises(ConfigError, match="tag"):
                Worker("mail", raiser(lambda: ValueError("x")), url_or_app=live.app, tag=wrong)
        for wrong in (5, "", SURROGATE, "x" * 257):
            with pytest.raises(ConfigError, match="id"):
                Worker("mail", raiser(lambda: ValueError("x")), url_or_app=live.app, id=wrong)
        await live.add("fine")
        worker = await live.work(lambda job: "done", tag="blue", heartbeat=0.05)
        await live.check_honest()
        async with asyncio.timeout(10):
            while not (found := await live.app.workers()):  # noqa: ASYNC110 - there is no event for a beat
                await asyncio.sleep(0.01)
        assert [(info.id, info.tag) for info in found] == [(worker.id, "blue")]


@needs("schedules")
async def test_a_schedule_whose_end_has_passed_is_refused_and_not_kept(harness: Harness) -> None:
    async with Live(harness) as live:
        past = SYSTEM_CLOCK.now_ms() / 1000 - 86_400
        with pytest.raises(ConfigError, match="end must be in the future"):
            await live.queue.upsert_job_scheduler("late", {"every": 60, "end": past})
        assert await live.queue.get_job_schedulers() == []
        # Code that was right when it was written keeps starting.
        live.app.schedule("old", {"every": 60, "end": past}, "honest", queue="mail")
        await live.add("fine")
        await live.work(lambda job: "done")
        await live.check_honest()
        (old,) = await live.queue.get_job_schedulers()
        assert (old.name, old.next_run) == ("old", None)


async def test_a_worker_refuses_tasks_whose_backoff_strategy_it_does_not_have(harness: Harness) -> None:
    async with Live(harness, backoff_strategies={"gentle": lambda n, e: 0}) as live:

        @live.app.task(queue="mail", name="odd", backoff="gentel")
        async def odd() -> None: ...

        @live.app.task(queue="mail", name="mine", backoff="of_the_worker", max_attempts=2)
        async def mine() -> str:
            if current_job().attempt == 1:
                raise ValueError("once")
            return "done"

        theirs = {"of_the_worker": lambda n, e: 0}
        worker = Worker("mail", url_or_app=live.app, backoff_strategies=theirs)
        with pytest.raises(ConfigError, match=r"backoff of task 'odd'.*did you mean 'gentle'"):
            await worker.start()
        also = {**theirs, "gentel": lambda n, e: 0}
        live.worker = Worker("mail", url_or_app=live.app, backoff_strategies=also)
        await live.worker.start()
        assert await (await mine.enqueue()).result(timeout=20) == "done"


#: Arguments that make sense to no verb, or to few.
ODD = (SURROGATE, None, b"x", "", object(), "x" * 1_000_000, float("nan"), -1, 10**30, True)


def verbs(live: Live, job: Job[Any], odd: Any) -> Iterator[Callable[[], Any]]:
    """Calls of the verbs that users have, each with an odd argument."""
    queue, app = live.queue, live.app
    for verb in ("get_job", "cancel", "kill", "remove", "retry", "get_job_logs"):
        yield partial(getattr(queue, verb), odd)
    for verb in ("get", "remove", "pause", "resume", "run"):
        yield partial(getattr(queue, f"{verb}_job_scheduler"), odd)
    for option in ("name", "state", "tag", "error", "cursor", "limit", "data"):
        yield partial(queue.search_jobs, **{option: odd})
    for option in ("states", "cursor", "limit"):
        yield partial(queue.get_jobs, **{option: odd})
    for option in ("start", "limit"):
        yield partial(queue.get_job_logs, job.id, **{option: odd})
    for option in ("depends_on", "parent"):
        yield partial(queue.add, "n", delay=3_600, **{option: odd})
    yield partial(queue.signal, job.id, odd)
    yield partial(queue.update_result_ttl, job.id, odd)
    yield partial(queue.clean, odd)
    yield partial(queue.clean, 3_600, odd)
    yield partial(job.change_priority, odd)
    yield partial(job.change_delay, odd)
    yield partial(job.log, odd)
    yield partial(app.mark, odd)
    yield partial(app.command_worker, odd, "quiet")


@pytest.mark.parametrize("odd", ODD, ids=[f"{odd!r:.12}" for odd in ODD])
async def test_verbs_take_an_odd_argument_or_refuse_it_with_a_typed_error(harness: Harness, odd: Any) -> None:
    async with Live(harness) as live:
        job = await live.add("odd", delay=3_600)
        for call in verbs(live, job, odd):
            try:
                await call()
            except WindlassError as exc:  # an outage, which a caller would wait for, it is not
                assert not isinstance(exc, StorageError), (call, exc)
                assert len(str(exc)) < 1_000
        await live.work(lambda job: "done")
        await live.check_honest()


async def test_callbacks_that_raise_anything_stop_no_worker(harness: Harness) -> None:
    def leak(*facts: Any) -> None:
        raise asyncio.CancelledError

    def last(*facts: Any) -> None:
        raise Last("x")

    async with Live(harness) as live:
        odd = await live.add("odd")
        told = {"active": last, "completed": leak, "retrying": last, "failed": leak}
        await live.work(raiser(lambda: ValueError("x")), told)
        await live.ends(odd)
        more = await live.add("more")
        await live.ends(more)


async def test_callbacks_that_answer_with_anything_stop_no_worker(harness: Harness) -> None:
    class Odd:
        @property  # type: ignore[misc] # that is the point
        def __class__(self) -> Any:
            raise RuntimeError("no class")

    async def last() -> None:
        raise Last("x")

    async with Live(harness) as live:
        odd = await live.add("odd")
        events = ("ready", "active", "completed", "retrying", "failed", "drained")
        told = {event: lambda *facts: Odd() for event in events}
        worker = await live.work(raiser(lambda: ValueError("x")), told)
        worker.on("completed", lambda *facts: last())
        await live.ends(odd)
        more = await live.add("more")
        await live.ends(more)


async def test_context_that_cannot_travel_refuses_the_add(harness: Harness) -> None:
    locale: ContextVar[str] = ContextVar("locale")
    async with Live(harness) as live:
        live.app.carry(locale)
        for odd in (SURROGATE, "x" * 100_000):
            reset = locale.set(odd)
            with pytest.raises(ConfigError):
                await live.queue.add("odd")
            locale.reset(reset)
        assert await live.queue.count() == 0
        await live.add("fine")
        await live.work(lambda job: "done")
        await live.check_honest()
