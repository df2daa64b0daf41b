"""The log itself: cut anywhere, changed anywhere, newer, foreign, read-only, gone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import subprocess
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.file.support import add, claim, client, ended, jobs_of, log_of, new, opened, settle
from windlass import ConfigError, StorageError, Windlass
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.file import effects, frames
from windlass.backends.file.errors import DamagedLogError
from windlass.backends.file.frames import FrameKind
from windlass.core.job import JobRef
from windlass.core.outcome import Settled
from windlass.core.states import JobState
from windlass.errors import StoreReplacedError

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.backends.file import FileBackend

pytestmark = [pytest.mark.feature("L9")]


async def a_few_steps(path: Path) -> list[tuple[int, dict[str, JobState]]]:
    """A store with some steps; after each, the length of the log and what was acknowledged by then."""
    known: list[tuple[int, dict[str, JobState]]] = []
    async with opened(path, synchronous="off") as store:

        async def note() -> None:
            states = {job_id: job.state for job_id, job in (await jobs_of(store)).items()}
            known.append((log_of(path).stat().st_size, states))

        await note()
        await add(store, new(id="a"), new(id="b"))
        await note()
        await add(store, new(id="c", delay_ms=60_000))
        await note()
        jobs = await claim(store, 2)
        await note()
        await settle(store, ended(jobs[0]))
        await note()
        await store.execute(rq.CancelJobs(refs=[JobRef("q", "c")]))
        await note()
    return known


def frames_of(log: Path) -> list[frames.Frame]:
    data = memoryview(log.read_bytes())
    found: list[frames.Frame] = []
    at = 0
    while (frame := frames.read(data, at)) is not None:
        found.append(frame)
        at = frame.end
    return found


async def states_of(store: FileBackend) -> dict[str, JobState]:
    return {job_id: job.state for job_id, job in (await jobs_of(store)).items()}


def a_write_and_a_read() -> list[rq.Request[Any]]:
    return [rq.Add(jobs=[new()]), rq.CountJobs(queue="q")]


async def test_of_adds_at_one_time_those_that_cannot_be_written_fail_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        tasks = ["t", "\ud800", "t", "t", "t"]
        adds = [rq.Add(jobs=[new(id=f"j{at}", task=task)]) for at, task in enumerate(tasks)]
        adds[3].jobs[0].priority = 2**70
        answers = await asyncio.gather(*(store.execute(it) for it in adds), return_exceptions=True)
        refused = [at for at, answer in enumerate(answers) if isinstance(answer, ConfigError)]
        assert refused == [1, 3]
        assert set(await states_of(store)) == {"j0", "j2", "j4"}
        steps = [frame for frame in frames_of(log_of(tmp_path / "store")) if frame.kind == FrameKind.STEP]
        assert len(steps) == 1  # they did share a step


async def test_an_add_that_spoils_the_step_of_several_fails_alone(tmp_path: Path) -> None:
    """Its due time is more than the log can hold, which shows only when the step is written."""
    async with opened(tmp_path / "store") as store:
        adds = [rq.Add(jobs=[new(id=f"j{at}")]) for at in range(3)]
        adds[1].jobs[0].delay_ms = 2**64 - 1
        answers = await asyncio.gather(*(store.execute(it) for it in adds), return_exceptions=True)
        assert [isinstance(answer, ConfigError) for answer in answers] == [False, True, False]
        assert set(await states_of(store)) == {"j0", "j2"}
    async with opened(tmp_path / "store") as store:
        assert set(await states_of(store)) == {"j0", "j2"}


# --- cut --------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
async def test_a_log_cut_at_any_byte_keeps_what_was_acknowledged_by_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs"
    known = await a_few_steps(path)
    log = log_of(path)
    whole = log.read_bytes()
    first = known[0][0]
    for cut in range(first, len(whole)):
        log.write_bytes(whole[:cut])
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="windlass.file"):
            async with opened(path, synchronous="off") as store:
                length, expected = max((one for one in known if one[0] <= cut), key=lambda one: one[0])
                assert await states_of(store) == expected, f"cut at byte {cut}"
                await add(store, new(id="later"))
                assert list(await states_of(store)) == [*expected, "later"]
        reported = [record for record in caplog.records if "cut off" in record.getMessage()]
        assert len(reported) == (cut != length), f"cut at byte {cut}"
        if reported:
            assert f"{cut - length} bytes at byte {length}" in reported[0].getMessage()
            assert (path / "default" / "torn").read_bytes() == whole[length:cut]


@pytest.mark.timeout(60)
async def test_a_log_cut_inside_its_snapshot_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    known = await a_few_steps(path)
    log = log_of(path)
    whole = log.read_bytes()
    for cut in range(known[0][0]):
        log.write_bytes(whole[:cut])
        store = client(path)
        with pytest.raises(DamagedLogError, match="snapshot is not whole") as caught:
            await store.open()
        assert str(log) in str(caught.value)
        assert log.read_bytes() == whole[:cut], "nothing was changed"


# --- flipped ------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
async def test_a_byte_flipped_in_the_middle_is_named_and_never_skipped(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    await a_few_steps(path)
    log = log_of(path)
    whole = log.read_bytes()
    steps = frames_of(log)
    last = steps[-1].start
    chance = random.Random(8)
    places = sorted(chance.sample(range(last), 300)) + [frame.start for frame in steps[:-1]]
    for place in places:
        log.write_bytes(
            whole[:place] + bytes([whole[place] ^ (1 << chance.randrange(8))]) + whole[place + 1 :]
        )
        damaged = log.read_bytes()
        frame = next(frame for frame in steps if place < frame.end)
        with pytest.raises(DamagedLogError) as caught:
            async with opened(path, synchronous="off") as store:
                await add(store, new(id="later"))
        assert caught.value.offset == frame.start, f"byte {place}"
        assert f"{log} is damaged at byte {frame.start}" in str(caught.value)
        assert log.read_bytes() == damaged, "nothing was written, nothing was cut"


async def test_a_flipped_byte_in_the_last_step_is_a_torn_tail_and_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs"
    await a_few_steps(path)
    log = log_of(path)
    whole, last = log.read_bytes(), frames_of(log)[-1]
    log.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with caplog.at_level(logging.WARNING, logger="windlass.file"):
        async with opened(path) as store:
            await add(store, new(id="later"))
    assert f"cut off {len(whole) - last.start} bytes at byte {last.start}" in caplog.text
    assert len((path / "default" / "torn").read_bytes()) == len(whole) - last.start


async def test_a_process_that_has_the_store_open_notices_damage_before_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened(path) as store:
        await add(store, new(id="a"))
        log = log_of(path)
        whole = log.read_bytes()
        log.write_bytes(whole[:-30])
        with pytest.raises(DamagedLogError, match=r"it was [0-9]+ bytes long before"):
            await add(store, new(id="b"))
        log.write_bytes(whole)
        await add(store, new(id="b"))


# --- newer, foreign -------------------------------------------------------------------------------------


def of_format(frame: bytes, format: int) -> bytes:
    """The same frame as a newer version would write it."""
    body = frame[frames.HEADER_SIZE :]
    _, _, kind, _, _, number = frames._HEADER.unpack_from(frame)
    checksum = frames._sum(format, kind, number, body)
    return frames._HEADER.pack(frames.MAGIC, format, kind, len(body), checksum, number) + body


async def test_a_step_of_a_newer_format_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened(path) as store:
        await add(store, new(id="a"))
        log = log_of(path)
        whole = log.read_bytes()
        number = frames_of(log)[-1].number + 1
        body = effects.encode(effects.LogStep(0, 0, []))
        log.write_bytes(whole + of_format(frames.make(FrameKind.STEP, number, body), frames.FORMAT + 1))
        changed = log.read_bytes()
        for request in a_write_and_a_read():
            with pytest.raises(StorageError, match=r"format 3 .* up to 2: .* Upgrade this process"):
                await store.execute(request)
    with pytest.raises(StorageError, match="Upgrade this process"):
        await client(path).open()
    assert log.read_bytes() == changed, "nothing was cut"


async def test_damage_before_a_step_of_a_newer_format_is_named_and_never_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    await a_few_steps(path)
    log = log_of(path)
    whole, last = log.read_bytes(), frames_of(log)[-1]
    body = effects.encode(effects.LogStep(0, 0, []))
    newer = of_format(frames.make(FrameKind.STEP, last.number + 1, body), frames.FORMAT + 1)
    log.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) + newer)
    changed = log.read_bytes()
    with pytest.raises(DamagedLogError, match=f"whole steps follow at byte {len(whole)}"):
        async with opened(path) as store:
            await add(store, new(id="later"))
    assert log.read_bytes() == changed, "nothing was cut"


async def test_a_store_of_a_newer_format_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened(path) as store:
        await add(store, new(id="a"))
    current = path / "default" / "current"
    current.write_text(
        json.dumps(json.loads(current.read_text()) | {"format": frames.FORMAT + 1, "how": "unknown"})
    )
    with pytest.raises(StorageError, match="Upgrade this process"):
        await client(path).open()


async def test_a_directory_that_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear all")
    with pytest.raises(StorageError, match="not empty and was not made by windlass"):
        await client(tmp_path).open()
    assert os.listdir(tmp_path) == ["letters.txt"]


async def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("")
    with pytest.raises(StorageError, match="jobs"):
        await client(tmp_path / "jobs").open()


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"format": "x"}', '{"format": 1}'])
async def test_a_current_file_that_does_not_read_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jobs"
    async with opened(path):
        pass
    (path / "default" / "current").write_text(text)
    with pytest.raises(DamagedLogError, match="current is damaged"):
        await client(path).open()


# --- the directory ----------------------------------------------------------------------------------------


async def test_a_directory_that_vanishes_makes_calls_fail_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened(path) as store:
        await add(store, new(id="a"))
        path.rename(tmp_path / "elsewhere")
        for request in a_write_and_a_read():
            with pytest.raises(StoreReplacedError, match="was deleted or replaced"):
                await store.execute(request)
        (tmp_path / "elsewhere").rename(path)
        await add(store, new(id="b"))
        assert list(await states_of(store)) == ["a", "b"]


async def test_a_new_store_in_the_place_of_the_old_one_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened(path, timeout=3) as store:
        await add(store, new(id="old"))
        shutil.rmtree(path)
        async with opened(path) as other:
            await add(other, new(id="new"))
            await add(store, new(id="newer"))
            assert list(await states_of(other)) == ["new", "newer"]


async def test_a_restored_backup_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened(path) as store:
        await add(store, new(id="a"))
        shutil.copytree(path / "default", tmp_path / "backup", ignore=shutil.ignore_patterns("wake"))
        await add(store, new(id="b"))
        shutil.rmtree(path / "default")
        shutil.copytree(tmp_path / "backup", path / "default")
        await add(store, new(id="c"))
        assert list(await states_of(store)) == ["a", "c"]


async def test_a_reader_of_events_starts_over_when_another_store_is_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with Windlass(f"file://{path}?timeout=3") as app, aclosing(app.queue("q").events(0)) as events:
        await app.queue("q").add_bulk([{"name": "n", "job_id": f"old{n}"} for n in range(3)])
        assert [(await anext(events)).job_id for _ in range(3)] == ["old0", "old1", "old2"]
        shutil.rmtree(path)
        async with opened(path) as other:
            await add(other, new(id="new"))
        found = [await anext(events) for _ in range(2)]
        assert [(event.type, event.job_id) for event in found] == [("gap", ""), ("enqueued", "new")]


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of 8 MB that can be filled or made read-only; needs the right to mount."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this user may not mount a file system")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def remount(path: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(path)], check=True)


async def test_a_read_only_disk_is_told_with_advice(small_disk: Path) -> None:
    async with opened(small_disk / "jobs") as store:
        await add(store, new(id="a"))
    remount(small_disk, "ro")
    for path in (small_disk / "jobs", small_disk / "others"):
        with pytest.raises(StorageError, match="read-only: mount it for writing"):
            await client(path).open()


@pytest.mark.timeout(120)
async def test_a_full_disk_refuses_adds_harms_nothing_and_work_goes_on(small_disk: Path) -> None:
    path = small_disk / "jobs"
    stored: list[str] = []
    async with opened(path) as store:
        with pytest.raises(StorageError, match="the disk is full: make room"):
            while True:
                jobs = [new(payload=b"x" * 1_000) for _ in range(100)]
                await add(store, *jobs)
                stored += [job.id for job in jobs]
        with pytest.raises(StorageError, match="the disk is full"):
            while True:  # to the last byte
                job = new(payload=b"x" * 10)
                await add(store, job)
                stored.append(job.id)
        assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize < 64 << 10
        assert list(await states_of(store)) == stored, "reads work; refused adds left nothing behind"
        for _ in range(20):
            with pytest.raises(StorageError, match="the disk is full"):
                await add(store, *[new(payload=b"x" * 1_000) for _ in range(100)])
    async with opened(path) as store:
        assert list(await states_of(store)) == stored, "all is there after a restart"
        remount(small_disk, "size=64m")
        await add(store, new(id="later"))
        done = 0
        while leased := await claim(store, 1_000):
            done += (await settle(store, *[ended(job) for job in leased])).count(Settled.OK)
        assert done == len(stored) + 1


# --- names --------------------------------------------------------------------------------------------------


async def test_a_store_that_is_not_open_says_so(tmp_path: Path) -> None:
    backend = open_backend(f"file://{tmp_path / 'jobs'}")
    with pytest.raises(StorageError, match="is not open"):
        await backend.execute(rq.ListQueues())


async def test_urls_that_mean_nothing_are_refused() -> None:
    for url in (
        "file://",
        "file:///",
        "file://host/x",
        "file:///x?synchronous=maybe",
        "file:///x?timeout=no",
    ):
        with pytest.raises(ConfigError):
            open_backend(url)
