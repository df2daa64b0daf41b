"""Heartbeats of workers, and the election of leaders."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import WorkerInfo
from windlass.core.states import JobState
from windlass_conformance.harness import START_MS, Harness

INFO = WorkerInfo(
    id="host:1:ab",
    hostname="host",
    pid=1,
    tag="mailer",
    queues=("mail", "default"),
    concurrency=16,
    busy=3,
    rss_kb=1_000,
    cpu_percent=12.5,
    version="1.0",
    quiet=True,
    stacks="thread MainThread\n  wait()",
)


async def beat(harness: Harness, worker_id: str, busy: int = 0) -> None:
    await harness.do(rq.Beat(worker=WorkerInfo(id=worker_id, busy=busy)))


async def workers(harness: Harness, stale_ms: int = 45_000) -> list[str]:
    return [worker.id for worker in await harness.do(rq.ListWorkers(stale_ms=stale_ms))]


@pytest.mark.feature("J20", "R1", "R3", "L5")
async def test_a_heartbeat_is_listed_as_it_was_sent_with_the_stores_times(harness: Harness) -> None:
    assert await harness.do(rq.Beat(worker=INFO)) is None
    (found,) = await harness.do(rq.ListWorkers())
    wanted = WorkerInfo(
        id="host:1:ab",
        hostname="host",
        pid=1,
        tag="mailer",
        queues=("mail", "default"),
        concurrency=16,
        busy=3,
        rss_kb=1_000,
        cpu_percent=12.5,
        version="1.0",
        quiet=True,
        stacks="thread MainThread\n  wait()",
        started_ms=START_MS,
        beat_ms=START_MS,
    )
    assert found == wanted


@pytest.mark.feature("R1", "R3", "L5")
async def test_later_beats_update_the_worker_but_not_its_start(harness: Harness) -> None:
    await beat(harness, "w", busy=1)
    harness.pass_ms(10_000)
    await beat(harness, "w", busy=2)
    (found,) = await harness.do(rq.ListWorkers())
    assert (found.busy, found.started_ms, found.beat_ms) == (2, START_MS, START_MS + 10_000)


@pytest.mark.feature("R2", "L5")
async def test_a_silent_worker_drops_out_of_the_list(harness: Harness) -> None:
    await beat(harness, "w")
    harness.pass_ms(44_999)
    assert await workers(harness) == ["w"]
    harness.pass_ms(1)
    assert await workers(harness) == []
    assert await workers(harness, stale_ms=60_000) == ["w"]


@pytest.mark.feature("R3", "L5")
async def test_a_worker_that_leaves_is_forgotten_at_once(harness: Harness) -> None:
    await beat(harness, "w")
    await harness.do(rq.Beat(worker=WorkerInfo(id="w"), gone=True))
    assert await workers(harness) == []
    await harness.do(rq.Beat(worker=WorkerInfo(id="w"), gone=True))


@pytest.mark.feature("J20")
async def test_workers_are_listed_by_id(harness: Harness) -> None:
    for worker_id in ("c", "a", "b"):
        await beat(harness, worker_id)
    assert await workers(harness) == ["a", "b", "c"]


@pytest.mark.feature("R1", "J3")
async def test_leases_do_not_depend_on_heartbeats(harness: Harness) -> None:
    await beat(harness, "w1")
    await harness.start("a")
    await harness.do(rq.Beat(worker=WorkerInfo(id="w1"), gone=True))
    await harness.do(rq.Recover())
    assert await harness.state("a") is JobState.ACTIVE


# --- leaders --------------------------------------------------------------------------------------


async def elect(harness: Harness, holder: str, role: str = "chores", ttl_ms: int = 1_000) -> bool:
    return await harness.do(rq.Elect(role=role, holder=holder, ttl_ms=ttl_ms))


@pytest.mark.feature("B12")
async def test_there_is_one_leader_at_a_time(harness: Harness) -> None:
    assert await elect(harness, "a") is True
    assert await elect(harness, "b") is False


@pytest.mark.feature("B12")
async def test_a_leader_keeps_its_role_by_asking_again(harness: Harness) -> None:
    await elect(harness, "a")
    harness.pass_ms(999)
    assert await elect(harness, "a") is True
    harness.pass_ms(999)
    assert await elect(harness, "b") is False


@pytest.mark.feature("B12")
async def test_a_silent_leader_is_replaced_when_its_time_is_over(harness: Harness) -> None:
    await elect(harness, "a")
    harness.pass_ms(999)
    assert await elect(harness, "b") is False
    harness.pass_ms(1)
    assert await elect(harness, "b") is True
    assert await elect(harness, "a") is False


@pytest.mark.feature("B12")
async def test_a_leader_that_resigns_makes_room_at_once(harness: Harness) -> None:
    await elect(harness, "a")
    assert await harness.do(rq.Resign(role="chores", holder="a")) is True
    assert await elect(harness, "b") is True


@pytest.mark.feature("B12")
async def test_nobody_can_resign_for_another(harness: Harness) -> None:
    await elect(harness, "a")
    assert await harness.do(rq.Resign(role="chores", holder="b")) is False
    assert await elect(harness, "b") is False


@pytest.mark.feature("B12")
async def test_resigning_what_one_no_longer_has_answers_no(harness: Harness) -> None:
    assert await harness.do(rq.Resign(role="chores", holder="a")) is False
    await elect(harness, "a")
    harness.pass_ms(1_000)
    assert await harness.do(rq.Resign(role="chores", holder="a")) is False


@pytest.mark.feature("B12")
async def test_roles_are_held_apart(harness: Harness) -> None:
    await elect(harness, "a", role="one")
    assert await elect(harness, "b", role="two") is True
