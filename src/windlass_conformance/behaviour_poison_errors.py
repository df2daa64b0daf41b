"""Errors of handlers that cannot be stored unchanged count, end the attempt, and affect no other job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from windlass import BatchError, Job, JobState, Worker
from windlass_conformance import targets
from windlass_conformance.harness import Harness
from windlass_conformance.live_worker import SURROGATE, Last, Live, NoText


class Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class Liar(Exception):
    @property  # type: ignore[misc] # that is the point
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Claims(Exception):
    """An error of an application with attributes that Windlass uses, too."""

    error_class = 5
    remote_traceback = b"\xff"


class Unsure(Exception):
    @property
    def unrecoverable(self) -> bool:
        raise KeyError("perhaps")


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
    """A sequence whose length differs from its number of items."""

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
