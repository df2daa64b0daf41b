"""Events, history and counts: written in chunks, folded now and then, trimmed to their bounds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from tests.backends.sqlite.support import add, claim, ended, new, opened, settle
from windlass.backend import requests as rq
from windlass.backends.memory import MemoryBackend
from windlass.backends.sqlite import SqliteBackend, inspection, loading_more, logs, tx
from windlass.core.ids import new_id
from windlass.core.job import EVENTS_KEPT, AttemptRecord, ErrorInfo, EventType, JobRef, NewJob
from windlass.core.outcome import Outcome, Settlement
from windlass.core.states import JobState
from windlass.engine import pruning
from windlass.errors import ConfigError, HistoryTrimmedError

NOW = 1_700_000_000_000


async def test_events_are_kept_up_to_their_bound_exactly(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        for first in range(0, 12_500, 2_500):
            await add(store, *[new(id=f"job{number}") for number in range(first, first + 2_500)])
        page = await store.execute(rq.ReadEvents(queue="q", limit=3))
        assert (page.oldest_id, page.last_id) == (12_500 - EVENTS_KEPT + 1, 12_500)
        assert [event.id for event in page.events] == [2_501, 2_502, 2_503]
        page = await store.execute(rq.ReadEvents(queue="q", after=9_999, limit=5_000))
        assert [event.id for event in page.events] == list(range(10_000, 12_501))
        assert page.events[0].job_id == "job9999"
        conn = sqlite3.connect(path)
        (oldest,) = conn.execute("SELECT min(first_id) FROM windlass_default_event").fetchone()
        conn.close()
        assert oldest > 1  # the rows are gone, too


async def test_counts_are_exact_while_chunks_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tx, "FOLD_CHUNKS", 5)
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        for number in range(1, 23):
            await add(store, new(task=f"t{number % 3}"))
            assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == number
            assert sum(row.total for row in await store.execute(rq.ReadCounters(queue="q"))) == number
    async with opened(path) as store:
        for number in range(23, 40):
            await add(store, new(task=f"t{number % 3}"))
            (info,) = await store.execute(rq.ListQueues())
            assert info.counts["waiting"] == number
        jobs = await claim(store, limit=100)
        await settle(store, *map(ended, jobs))
        counts = await store.execute(rq.CountJobs(queue="q"))
        assert (counts[JobState.WAITING], counts[JobState.COMPLETED]) == (0, 39)
        totals = {(row.task, row.outcome): row.total for row in await store.execute(rq.ReadCounters())}
        assert totals == {(f"t{n}", outcome): 13 for n in range(3) for outcome in ("enqueued", "completed")}


async def test_a_cursor_below_the_oldest_record_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, *[new() for _ in range(4)], now_ms=NOW)
        await settle(store, *map(ended, await claim(store, now_ms=NOW)), now_ms=NOW)
        await store.execute(rq.Prune(now_ms=NOW + 86_400_000))
        with pytest.raises(HistoryTrimmedError) as caught:
            await store.execute(rq.ReadHistory(queue="q"))
        assert caught.value.oldest == 5
        page = await store.execute(rq.ReadHistory(queue="q", after=4))
        assert (page.records, page.last, page.newest, page.oldest) == ([], 4, 4, 5)
        await add(store, new(), now_ms=NOW)
        await settle(store, *map(ended, await claim(store, now_ms=NOW)), now_ms=NOW)
        page = await store.execute(rq.ReadHistory(queue="q", after=4))
        assert (len(page.records), page.last, page.newest) == (1, 5, 5)


@pytest.mark.parametrize("chunk", [2, 3, 1_000])
async def test_what_is_stored_in_runs_is_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(logs, "CHUNK", chunk)
    memory = MemoryBackend()
    async with opened(tmp_path / "jobs.db") as store:
        for backend in (memory, store):
            await _some_of_everything(backend)
        for after in range(25):
            events = rq.ReadEvents(queue="q", after=after, limit=4)
            assert await store.execute(events) == await memory.execute(events)
        for after in range(8):
            page = rq.ReadHistory(queue="q", after=after, limit=3)
            want, got = await memory.execute(page), await store.execute(page)
            assert (got.last, got.newest) == (want.last, want.newest)
            assert [_without_token(row) for row in got.records] == [
                _without_token(row) for row in want.records
            ]


async def _some_of_everything(backend: MemoryBackend | SqliteBackend) -> None:
    """Eight jobs of two tasks start together and end in different ways, in no particular order."""
    jobs = [
        NewJob(queue="q", id=f"j{n}", request_id=f"j{n}", task=f"t{n // 3}", payload=b"", delay_ms=n // 7)
        for n in range(8)
    ]
    await backend.execute(rq.Add(jobs=jobs, now_ms=NOW))
    claim_ = rq.Claim(
        worker="w", queues=[rq.ClaimQueue("q", 9, 9)], limit=9, claim_id=new_id(), now_ms=NOW + 5
    )
    tokens = {job.id: job.token or "" for job in (await backend.execute(claim_)).jobs}
    ends = [
        Settlement(queue="q", id=job_id, token=tokens[job_id], outcome=outcome, duration_ms=number)
        for number, (job_id, outcome) in enumerate(
            [
                ("j4", Outcome.COMPLETE),
                ("j3", Outcome.COMPLETE),
                ("j5", Outcome.RETRY),
                ("j1", Outcome.COMPLETE),
                ("j2", Outcome.COMPLETE),
                ("j0", Outcome.COMPLETE),
                ("j6", Outcome.FAIL),
                ("j7", Outcome.COMPLETE),
            ]
        )
    ]
    await backend.execute(rq.Settle(items=ends, now_ms=NOW + 9))


def _without_token(row: AttemptRecord) -> tuple[object, ...]:
    return msgspec.structs.astuple(row)[1:]


@pytest.mark.parametrize("archived", [None, {"q": 5}, {"q": 30}, {}])
async def test_history_is_trimmed_as_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archived: dict[str, int] | None
) -> None:
    monkeypatch.setattr(pruning, "HISTORY_KEPT", 10)
    monkeypatch.setattr(pruning, "HISTORY_HELD", 25)
    memory = MemoryBackend()
    async with opened(tmp_path / "jobs.db") as store:
        for backend in (memory, store):
            at = NOW
            for round_ in range(8):
                await backend.execute(rq.Add(jobs=[_job(round_, n) for n in range(5)], now_ms=at))
                wanted = [rq.ClaimQueue("q", 9, 9)]
                request = rq.Claim(worker="w", queues=wanted, limit=9, claim_id=new_id(), now_ms=at)
                jobs = (await backend.execute(request)).jobs
                await backend.execute(
                    rq.Settle(items=[_done(job.id, job.token or "") for job in jobs], now_ms=at)
                )
                at += 1_000
            if archived is not None:
                await backend.execute(rq.Archive(name="lake", cursors=archived, now_ms=at))
        for late_ms in (0, 5_000, 86_400_000 + 3_500, 8 * 86_400_000):
            prune = rq.Prune(now_ms=at + late_ms - 8_000)
            want, got = await memory.execute(prune), await store.execute(prune)
            assert (got.history, got.jobs) == (want.history, want.jobs), late_ms
            assert await _history(store) == await _history(memory)
            assert await store.execute(rq.ReadCounters()) == await memory.execute(rq.ReadCounters())


def _job(round_: int, number: int) -> NewJob:
    return NewJob(queue="q", id=f"r{round_}n{number}", task="t", payload=b"")


def _done(job_id: str, token: str) -> Settlement:
    return Settlement(queue="q", id=job_id, token=token, outcome=Outcome.COMPLETE)


async def _history(backend: MemoryBackend | SqliteBackend) -> tuple[list[str], int, int]:
    for after in range(100):
        try:
            page = await backend.execute(rq.ReadHistory(queue="q", after=after))
        except HistoryTrimmedError:
            continue
        return [ended.job_id for ended in page.records], page.newest, page.oldest
    raise AssertionError


async def test_long_lists_are_walked_in_bounded_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "SORTABLE", 5)
    monkeypatch.setattr(inspection, "SCAN", 7)
    async with opened(tmp_path / "jobs.db") as store:
        for number in range(60):
            await add(store, new("q" if number % 3 else "other", id=f"job{number}", task=f"t{number % 2}"))
        for newest_first in (True, False):
            seen: list[int] = []
            cursor, pages = None, 0
            while True:
                request = rq.ListJobs(queue="q", task="t1", limit=5, cursor=cursor, newest_first=newest_first)
                page = await store.execute(request)
                seen += [job.seq for job in page.jobs]
                pages += 1
                if page.cursor is None:
                    break
                cursor = page.cursor
            want = [number + 1 for number in range(60) if number % 3 and number % 2]
            assert seen == (want[::-1] if newest_first else want)
            assert pages > len(want) / 5 + 1
        with pytest.raises(ConfigError):
            await store.execute(rq.ListJobs(queue="q", cursor="elsewhere"))


async def test_a_walk_passes_over_what_no_filter_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "SORTABLE", 0)
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, *[new(id=f"job{number}", task=f"t[{number % 2}]") for number in range(6)])
        jobs = await claim(store, limit=4)
        errors = ["ValueError", "OSError", "ValueError"]
        for job, error_class in zip(jobs, errors, strict=False):
            error = ErrorInfo(error_class=error_class)
            await settle(store, ended(job, Outcome.FAIL, error=error))

        async def found(**filters: object) -> list[str]:
            page = await store.execute(msgspec.convert({"queue": "q", **filters}, rq.ListJobs))
            return [job.id for job in page.jobs]

        assert await found(error_class="ValueError") == ["job2", "job0"]
        assert await found(error_class="ValueError", task="t[1*") == []
        assert await found(task="t[1]") == ["job5", "job3", "job1"]
        assert await found(task="?[1]", states=["waiting", "failed"]) == ["job5", "job1"]
        assert await found(states=["active"]) == ["job3"]


def test_a_part_of_a_chunk_is_that_part_of_the_whole() -> None:
    runs: list[logs.EventRun] = [
        (5, EventType.COMPLETED, "a", "t", {}),
        (6, EventType.COMPLETED, ["b", "c", "d"], "t", {}),
        (7, EventType.FAILED, ["e", "f"], "u", {}),
    ]
    ((_, chunk),) = logs.event_chunks(runs, 6)
    whole = logs.unpack_events(11, chunk)
    assert [(event.id, event.job_id) for event in whole] == list(zip(range(11, 17), "abcdef", strict=True))
    for start in range(8):
        for count in range(8):
            assert logs.unpack_events(11, chunk, start, count) == whole[start : start + count]


async def test_the_oldest_ready_job_is_found_among_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "HEAD", 3)
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="low", priority=-9), now_ms=NOW)
        await add(store, *[new(priority=5) for _ in range(6)], now_ms=NOW + 10)
        (info,) = await store.execute(rq.ListQueues())
        assert info.oldest_ready_ms == NOW


async def test_very_many_waiting_jobs_are_purged_without_sorting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading_more, "SORTABLE", 10)
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, *[new(id=f"job{number}") for number in range(30)])
        await add(store, *[new(id=f"late{number}", delay_ms=9_000) for number in range(30)])
        states = [JobState.WAITING, JobState.SCHEDULED]
        gone: list[str] = []
        while ids := (await store.execute(rq.Purge(queue="q", states=states, limit=8))).ids:
            gone += ids
        assert sorted(gone) == sorted([f"{kind}{n}" for kind in ("job", "late") for n in range(30)])


async def test_text_that_is_no_unicode_does_not_lose_a_job(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a"), new(id="b"))
        (bad, good) = await claim(store)
        error = ErrorInfo(error_class="OSError", message="no file \udcff here", traceback="\ud800")
        await store.execute(rq.Report(ref=bad.ref, logs=["fine", "half \udc80"]))
        await settle(store, ended(bad, Outcome.FAIL, error=error, reason="\udcff"), ended(good))
        (found, other) = await store.execute(rq.GetJobs(refs=[JobRef("q", "a"), JobRef("q", "b")]))
        assert found is not None
        assert other is not None
        assert (found.state, other.state) == (JobState.FAILED, JobState.COMPLETED)
        assert found.errors[0].message == "no file ? here"
        assert (await store.execute(rq.GetLogs(ref=bad.ref))).lines == ["fine", "half ?"]
        assert (await store.execute(rq.ReadEvents(queue="q"))).events


async def test_a_payload_changes_between_small_and_large(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new(id="a"))
        for payload in (b"x" * 5_000, b"small", b"", b"y" * 2_001, b"y" * 2_000):
            await store.execute(rq.ChangeJob(ref=JobRef("q", "a"), payload=payload))
            (job,) = await store.execute(rq.GetJobs(refs=[JobRef("q", "a")]))
            assert job is not None
            assert job.payload == payload
        conn = sqlite3.connect(path)
        assert conn.execute("SELECT count(*) FROM windlass_default_payload").fetchone() == (0,)
        conn.close()
