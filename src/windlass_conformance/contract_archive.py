"""``Archive``: history is kept for archivers, but not forever."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import ARCHIVER_KEPT_MS, HISTORY_KEPT_MS, ArchiverInfo
from windlass.errors import HistoryTrimmedError
from windlass_conformance.harness import QUEUE, START_MS, Harness


async def archive(harness: Harness, name: str = "lake", **cursors: int) -> None:
    await harness.do(rq.Archive(name=name, cursors=cursors))


async def kept(harness: Harness, after: int = 0) -> list[str]:
    """Prune, and return the jobs that still have rows in the history."""
    await harness.do(rq.Prune())
    return [row.job_id for row in (await harness.do(rq.ReadHistory(queue=QUEUE, after=after))).records]


@pytest.mark.feature("Q11")
async def test_what_an_archiver_has_not_copied_is_held_past_its_day(harness: Harness) -> None:
    await harness.finish("a")
    await archive(harness, mail=0)
    harness.pass_ms(2 * HISTORY_KEPT_MS)
    assert await kept(harness) == ["a"]


@pytest.mark.feature("Q11")
async def test_what_was_copied_goes_when_its_day_is_over(harness: Harness) -> None:
    for job_id in ("a", "b", "c"):
        await harness.finish(job_id)
    await archive(harness, mail=2)
    assert await kept(harness) == ["a", "b", "c"]
    harness.pass_ms(HISTORY_KEPT_MS)
    await archive(harness, mail=2)
    assert await kept(harness, after=2) == ["c"]
    with pytest.raises(HistoryTrimmedError):
        await harness.do(rq.ReadHistory(queue=QUEUE, after=1))


@pytest.mark.feature("Q11")
async def test_the_slowest_archiver_decides(harness: Harness) -> None:
    for job_id in ("a", "b"):
        await harness.finish(job_id)
    harness.pass_ms(HISTORY_KEPT_MS)
    await archive(harness, "quick", mail=2)
    await archive(harness, "slow", mail=1)
    assert await kept(harness, after=1) == ["b"]


@pytest.mark.feature("Q11")
async def test_an_archiver_that_never_named_a_queue_holds_all_of_it(harness: Harness) -> None:
    await harness.finish("a")
    await archive(harness, other=7)
    harness.pass_ms(HISTORY_KEPT_MS)
    assert await kept(harness) == ["a"]


@pytest.mark.feature("Q11")
async def test_an_archiver_that_is_silent_for_a_week_holds_nothing_any_more(harness: Harness) -> None:
    await harness.finish("a")
    await archive(harness, mail=0)
    harness.pass_ms(ARCHIVER_KEPT_MS - 1)
    assert await kept(harness) == ["a"]
    assert await harness.do(rq.ListArchivers()) != []
    harness.pass_ms(1)
    assert await harness.do(rq.ListArchivers()) == []
    assert await kept(harness, after=1) == []


@pytest.mark.feature("Q11")
async def test_archivers_are_listed_by_name_with_their_cursors(harness: Harness) -> None:
    await archive(harness, "zoo", mail=3)
    harness.pass_ms(5)
    await archive(harness, "ant", mail=1, news=2)
    assert await harness.do(rq.ListArchivers()) == [
        ArchiverInfo(name="ant", cursors={"mail": 1, "news": 2}, seen_ms=START_MS + 5),
        ArchiverInfo(name="zoo", cursors={"mail": 3}, seen_ms=START_MS),
    ]


@pytest.mark.feature("Q11")
async def test_cursors_never_go_back_and_queues_not_named_stay_as_they_were(harness: Harness) -> None:
    await archive(harness, mail=5, news=2)
    harness.pass_ms(1)
    await archive(harness, mail=3)
    await archive(harness)
    (info,) = await harness.do(rq.ListArchivers())
    assert (info.cursors, info.seen_ms) == ({"mail": 5, "news": 2}, START_MS + 1)


@pytest.mark.feature("Q11", "L1")
async def test_archivers_survive_reopening(harness: Harness) -> None:
    await archive(harness, mail=5)
    before = await harness.do(rq.ListArchivers())
    await harness.reopen()
    assert await harness.do(rq.ListArchivers()) == before
