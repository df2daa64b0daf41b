"""Making the log shorter: while everybody works, while processes die, and never at the cost of a job."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.backends.file.stranger import digest, work
from tests.backends.file.support import add, claim, client, ended, jobs_of, log_of, new, opened, settle
from tests.backends.file.twins import state
from tests.backends.test_state_machine import SETTINGS
from windlass.backend import requests as rq
from windlass.backends.file import compaction, effects, snapshot
from windlass.backends.file.compaction import Compaction
from windlass.backends.file.store import FileStore
from windlass.backends.file.threads import FileWriter
from windlass.core import probe
from windlass.core.job import JobRef
from windlass.core.options import StoredOptions
from windlass.core.states import JobState
from windlass_conformance.machine import machine_for

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.backend import Backend
    from windlass.backends.file import FileBackend

backend_name = "file"
pytestmark = [pytest.mark.feature("L9")]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact after next to nothing, in tiny pieces, again and again."""
    monkeypatch.setattr(compaction, "SHORT_LOG", 2_000)
    monkeypatch.setattr(compaction, "FACTOR", 0)
    monkeypatch.setattr(snapshot, "PIECE", 3)
    monkeypatch.setattr("windlass.backends.file.compaction.PAUSE_S", 0.0)


def generation(store: FileBackend) -> int:
    return store._open_store().session.log.current.generation


async def settled(store: FileBackend) -> None:
    """Wait until no compaction is due or under way."""
    writer = store._open_store()._writer
    assert isinstance(writer, FileWriter)
    async with asyncio.timeout(20):
        while writer.upkeep.due:  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.001)


@pytest.mark.usefixtures("eager")
async def test_a_store_that_is_compacted_while_it_works_stays_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with opened(path, synchronous="off") as store:
        for turn in range(60):
            await work(store, turn, "w")
        first, before = generation(store), digest(store)
        assert first > 3
    for _ in range(2):
        async with opened(path, synchronous="off") as store:
            assert digest(store) == before


@pytest.mark.usefixtures("eager")
@pytest.mark.timeout(240)
def test_a_backend_that_compacts_all_the_time_does_what_the_memory_store_does(tmp_path: Path) -> None:
    made: list[FileBackend] = []

    def make() -> Backend:
        made.append(client(tmp_path / f"store-{len(made)}", synchronous="off"))
        return made[-1]

    run_state_machine_as_test(machine_for(make), settings=settings(SETTINGS, max_examples=20))
    assert any("00000003.log" <= name for store in made for name in os.listdir(store._settings.directory))


@pytest.mark.parametrize("seed", range(5))
async def test_a_snapshot_with_the_steps_since_it_began_is_the_store(tmp_path: Path, seed: int) -> None:
    """Pieces are taken between random requests; loading them and replaying all steps must give the same."""
    chance = random.Random(seed)
    live = FileStore()
    steps: list[bytes] = []
    pieces: list[Any] = []
    taken: Any = None
    for turn in range(300):
        if turn == 100:
            taken = iter(_small_pieces(live))
            place = live.last_place
        if taken is not None and chance.random() < 0.5:
            pieces += next(taken, [])
        live.apply(_random_request(chance, turn), 1_000_000 + turn * 50)
        step = effects.encode(live.take_step())
        if taken is not None:
            steps.append(step)
    for piece in taken:
        pieces += piece
    loaded = FileStore()
    loaded.follow(effects.decode(effects.encode(effects.LogStep(0, place, pieces))))
    for step in steps:
        loaded.follow(effects.decode(step))
    assert state(loaded) == state(live)


def _small_pieces(store: FileStore) -> Any:
    size, snapshot.PIECE = snapshot.PIECE, 2
    try:
        yield from snapshot.pieces(store)
    finally:
        snapshot.PIECE = size


def _random_request(chance: random.Random, turn: int) -> rq.Request[Any]:
    ref = JobRef("q", f"job{chance.randrange(30)}")
    match chance.randrange(8):
        case 0 | 1 | 2:
            group = chance.choice([None, "g1", "g2"])
            options = StoredOptions(group=group)
            return rq.Add(
                jobs=[new(id=ref.id, request_id="", options=options, delay_ms=chance.choice([0, 300]))]
            )
        case 3:
            wanted = [rq.ClaimQueue("q", 3, 3)]
            return rq.Claim(worker="w", queues=wanted, limit=3, claim_id=f"c{turn}", lease_ms=400)
        case 4:
            return rq.Recover()
        case 5:
            return rq.RemoveJobs(refs=[ref], force=True)
        case 6:
            return rq.Report(ref=ref, logs=[f"line {turn}"])
        case _:
            return rq.CancelJobs(refs=[ref])


async def test_disk_use_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty times as many bytes as may stay go through; what is there never exceeds what is promised."""
    monkeypatch.setattr(compaction, "SHORT_LOG", 100_000)
    monkeypatch.setattr("windlass.backends.file.compaction.PAUSE_S", 0.0)
    path = tmp_path / "store"
    largest = written = 0
    async with opened(path, synchronous="off") as store:
        for _ in range(60):
            await add(store, *[new(payload=b"x" * 1_000) for _ in range(50)])
            jobs = await claim(store, 50)
            await settle(store, *[ended(job) for job in jobs])
            await store.execute(rq.Purge(queue="q", states=[JobState.COMPLETED]))
            written += 50 * 1_000
            largest = max(largest, _size(path))
        await settled(store)
        assert written == 3_000_000
        live = log_of(path).stat().st_size
        assert largest < 3 * (live + 100_000) + 200_000
        assert sorted(name for name in os.listdir(path / "default") if name.endswith((".log", ".tmp"))) == [
            log_of(path).name
        ]


def _size(path: Path) -> int:
    total = 0
    for name in os.listdir(path / "default"):
        try:
            total += os.stat(path / "default" / name).st_size
        except FileNotFoundError:
            pass  # replaced meanwhile
    return total


@pytest.mark.usefixtures("eager")
async def test_a_follower_goes_over_to_the_new_generation(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with opened(path, synchronous="off") as store, opened(path, synchronous="full") as other:
        for turn in range(30):
            await work(store, turn, "w")
        await settled(store)
        before = generation(other)
        assert digest(other) == digest(store)
        assert generation(other) == generation(store) > before


@pytest.mark.usefixtures("eager")
async def test_a_compaction_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    points = probe.Probe()

    def no_room(point: str, facts: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    points.arm("file.compacting", no_room, times=1_000)
    before = probe.install(points)
    try:
        async with opened(path, synchronous="off") as store:
            for turn in range(20):
                await work(store, turn, "w")
            points_reached = points.count("file.compacting")
            assert points_reached > 0
            assert generation(store) == 1
            assert "cannot be made shorter for now" in caplog.text
            told = digest(store)
    finally:
        probe.install(before)
    async with opened(path, synchronous="off") as store:
        assert digest(store) == told
        await add(store, new())
        await settled(store)
        assert generation(store) > 1
        assert len(await jobs_of(store)) > 20
    assert not [name for name in os.listdir(path / "default") if name.endswith(".tmp")]


async def test_two_processes_never_compact_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    async with opened(path) as store, opened(path, timeout=7) as other:
        await work(store, 0, "w")
        await work(other, 1, "w")
        first = Compaction(store._open_store().session)
        second = Compaction(other._open_store().session)
        assert first.advance() is False, "it has begun"
        assert second.advance() is True, "the other has it in hand"
        while not first.advance():
            pass
        assert digest(store) == digest(other)
        assert generation(store) == generation(other) == 2
