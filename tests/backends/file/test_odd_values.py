"""Values of the wrong type: refused before they reach the log, and passed over where they are in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.backends.file.support import add, claim, new, opened
from windlass import ConfigError, JobState, Windlass
from windlass.backend import requests as rq
from windlass.backend.urls import parse_url
from windlass.backends.file import effects, examine, frames, readback, repair
from windlass.core.job import ErrorInfo, JobRef, WorkerInfo
from windlass.core.outcome import Outcome, Settlement
from windlass.testing.faults import probing

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.backend import Backend

backend_name = "file"


def odd_requests() -> list[Any]:
    """Requests that user code once could bring about; mypy would refuse each."""
    ref = JobRef("q", "odd")
    return [
        rq.CancelJobs(refs=[ref], reason=None),  # type: ignore[arg-type]
        rq.CancelJobs(refs=[ref], reason=5),  # type: ignore[arg-type]
        rq.CancelJobs(refs=[ref], reason=object()),  # type: ignore[arg-type]
        rq.CancelJobs(refs=[ref], reason="\ud800"),
        rq.Report(ref=ref, logs=[5]),  # type: ignore[list-item]
        rq.Beat(worker=WorkerInfo(id="w", tag=5)),  # type: ignore[arg-type]
        rq.ChangeJob(ref=ref, delay_ms=1e30),  # type: ignore[arg-type]
        rq.ChangeJob(ref=ref, priority="high"),  # type: ignore[arg-type]
        rq.Add(jobs=[new(id="bad", payload="text")]),
        rq.Add(jobs=[new(id="bad", delay_ms=10**30)]),
    ]


async def states(store: Backend) -> dict[str, JobState]:
    page = await store.execute(rq.ListJobs(queue="q", limit=1_000))
    return {job.id: job.state for job in page.jobs}


async def test_a_value_that_would_not_read_back_is_refused_and_the_store_opens_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await add(store, new(id="odd"))
        for number, request in enumerate(odd_requests()):
            # Beside honest calls, which are often written in the same step.
            calls = [add(store, new(id=f"honest{number}-{n}")) for n in range(5)]
            refused, *added = await asyncio.gather(store.execute(request), *calls, return_exceptions=True)
            assert isinstance(refused, ConfigError), request
            assert not any(isinstance(answer, BaseException) for answer in added)
    async with opened(tmp_path) as store:
        found = await states(store)
        assert len(found) == 1 + 5 * len(odd_requests())
        assert set(found.values()) == {JobState.WAITING}


async def test_every_step_that_is_written_reads_back_as_it_is(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    def keep(point: str, facts: dict[str, Any]) -> None:
        frame = frames.read(memoryview(facts["data"]), 0)
        assert frame is not None
        bodies.append(bytes(frame.body))

    with probing() as probe:
        for _ in range(100):
            probe.arm("file.appending", keep)
        async with opened(tmp_path) as store:
            await add(store, *(new(id=f"j{n}") for n in range(20)))
            jobs = await claim(store, 5)
            ends = [
                Settlement(queue="q", id=job.id, token=job.token or "", outcome=outcome, delay_ms=5)
                for job, outcome in zip(jobs, Outcome, strict=False)
            ]
            await store.execute(rq.Settle(items=ends))
            await store.execute(rq.CancelJobs(refs=[JobRef("q", "j9")], reason="no"))
            await store.execute(rq.Report(ref=JobRef("q", "j10"), logs=["line"]))
    assert len(bodies) >= 5
    assert not any(effects.unread(effects.decode(body)) for body in bodies)


async def left_by_an_earlier_release(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose log holds values of the wrong type, as releases wrote it that did not look."""
    with monkeypatch.context() as patch:
        patch.setattr(readback, "check", lambda request: len(msgspec.msgpack.encode(request)))
        async with opened(path) as store:
            await add(store, new(id="odd"), new(id="failing"))
            await store.execute(rq.CancelJobs(refs=[JobRef("q", "odd")], reason=None))  # type: ignore[arg-type]
            (job,) = await claim(store, 1)
            info = ErrorInfo(error_class=5, message="no")  # type: ignore[arg-type]
            end = Settlement(queue="q", id=job.id, token=job.token or "", outcome=Outcome.FAIL, error=info)
            await store.execute(rq.Settle(items=[end]))
            await store.execute(rq.Beat(worker=WorkerInfo(id="w", tag=5)))  # type: ignore[arg-type]
            for n in range(100):
                await add(store, new(id=f"honest{n}"))


async def check_kept(path: Path) -> None:
    """No job whose record is odd runs again, and every acknowledged add is there."""
    async with opened(path) as store:
        found = await states(store)
        assert (found.pop("odd"), found.pop("failing")) == (JobState.FAILED, JobState.FAILED)
        assert len(found) == 100 and set(found.values()) == {JobState.WAITING}
        records = await store.execute(rq.GetJobs(refs=[JobRef("q", "odd"), JobRef("q", "failing")]))
        assert [job and job.reason for job in records] == ["bad_record"] * 2


async def test_a_log_of_an_earlier_release_with_odd_values_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await left_by_an_earlier_release(tmp_path, monkeypatch)
    await check_kept(tmp_path)


@pytest.mark.feature("X3")
async def test_a_repair_revives_no_job_whose_cancel_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await left_by_an_earlier_release(tmp_path, monkeypatch)
    url = parse_url(f"file://{tmp_path}")
    assert any("cannot be read" in found.text for found in examine(url, deep=True))
    assert any("as generation 2" in found.text for found in repair(url))
    assert not any("cannot be read" in found.text for found in examine(url, deep=True))
    await check_kept(tmp_path)


async def test_a_cancel_without_a_text_is_refused_at_once(tmp_path: Path) -> None:
    async with Windlass(f"file://{tmp_path}") as app:
        job = await app.queue("q").add("n")
        with pytest.raises(ConfigError, match="reason must be a text, got None"):
            await job.cancel(None)  # type: ignore[arg-type]
        assert await job.get_state() is JobState.WAITING
