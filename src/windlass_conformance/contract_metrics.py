"""The verbs for roll-ups: progress, add, read, prune; and marks."""

from __future__ import annotations

import asyncio

import pytest

from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.core.job import ARCHIVER_KEPT_MS, HISTORY_KEPT_MS
from windlass.core.outcome import Outcome
from windlass.core.rollups import KEPT_MS, Mark, Measure, MetricsCursor, MetricsRow, rows_of
from windlass.errors import HistoryTrimmedError
from windlass_conformance.harness import QUEUE, START_MS, Harness

NEEDS = "metrics"

MINUTE, HOUR = 60_000, 3_600_000
#: The start of the tests' first minute and hour.
FIRST_MINUTE, FIRST_HOUR = START_MS - START_MS % MINUTE, START_MS - START_MS % HOUR


def row(start_ms: int = FIRST_MINUTE, task: str = "send", **outcomes: int) -> MetricsRow:
    """A row of attempts that all waited 5 ms and ran 1,000 ms."""
    count = sum(outcomes.values())
    made = MetricsRow(start_ms=start_ms, task=task, outcomes=outcomes)
    for _ in range(count):
        made.wait.add(5)
        made.duration.add(1_000)
    return made


async def add(harness: Harness, after: int, upto: int, *rows: MetricsRow, queue: str = QUEUE) -> bool:
    return await harness.do(mq.AddMetrics(queue=queue, after=after, upto=upto, rows=list(rows)))


async def read(harness: Harness, step: str = "minute", **fields: object) -> list[MetricsRow]:
    request = mq.ReadMetrics(**{"queue": QUEUE, "step": step, **fields})  # type: ignore[arg-type]
    return (await harness.do(request)).rows


@pytest.mark.feature("Q3")
async def test_rows_are_kept_by_minute_and_by_hour(harness: Harness) -> None:
    later = row(FIRST_MINUTE + MINUTE, completed=1)
    assert await add(harness, 0, 4, row(completed=2, failed=1), later) is True
    assert await read(harness) == [row(completed=2, failed=1), later]
    (hour,) = await read(harness, "hour")
    assert (hour.start_ms, hour.outcomes) == (FIRST_HOUR, {"completed": 3, "failed": 1})
    assert (hour.duration.count, hour.duration.sum_ms, hour.duration.max_ms) == (4, 4_000, 1_000)


@pytest.mark.feature("Q3", "Q9")
async def test_what_comes_later_is_added_up(harness: Harness) -> None:
    await add(harness, 0, 2, row(completed=2))
    slow = MetricsRow(start_ms=FIRST_MINUTE, task="send", outcomes={"completed": 1, "retrying": 4})
    slow.duration = Measure(count=1, sum_ms=9_000, max_ms=9_000, buckets={183: 1})
    await add(harness, 2, 7, slow)
    (found,) = await read(harness)
    assert found.outcomes == {"completed": 3, "retrying": 4}
    assert (found.duration.sum_ms, found.duration.max_ms) == (11_000, 9_000)
    assert found.duration.buckets == {**row(completed=2).duration.buckets, 183: 1}
    assert found.wait == row(completed=2).wait


@pytest.mark.feature("Q3")
async def test_nothing_is_added_unless_the_cursor_is_where_the_rows_begin(harness: Harness) -> None:
    assert await add(harness, 1, 2, row(completed=1)) is False
    assert await read(harness) == []
    assert await add(harness, 0, 2, row(completed=1)) is True
    assert await add(harness, 0, 2, row(completed=1)) is False
    assert await read(harness) == [row(completed=1)]


@pytest.mark.feature("Q3")
async def test_of_many_who_roll_up_at_once_one_wins(harness: Harness) -> None:
    clients = [await harness.clone() for _ in range(4)]
    answers = await asyncio.gather(
        *(
            client.execute(
                mq.AddMetrics(queue=QUEUE, after=0, upto=3, rows=[row(completed=3)], now_ms=harness.now_ms)
            )
            for client in clients
        )
    )
    assert sorted(answers) == [False, False, False, True]
    assert await read(harness) == [row(completed=3)]


@pytest.mark.feature("Q3")
async def test_progress_tells_how_far_each_queue_is(harness: Harness) -> None:
    assert await harness.do(mq.MetricsProgress()) == []
    await harness.add("waits", "idle")
    for job_id in ("a", "b"):
        await harness.finish(job_id)
    assert await harness.do(mq.MetricsProgress()) == [MetricsCursor(queue=QUEUE, at=0, newest=2, oldest=1)]
    await add(harness, 0, 2, row(completed=2))
    await harness.finish("d")
    expected = [MetricsCursor(queue=QUEUE, at=2, newest=3, oldest=1)]
    assert await harness.do(mq.MetricsProgress()) == expected
    assert await harness.do(mq.MetricsProgress(queue=QUEUE)) == expected
    assert await harness.do(mq.MetricsProgress(queue="none")) == []


@pytest.mark.feature("Q3")
async def test_rows_are_read_by_time_and_task_page_by_page(harness: Harness) -> None:
    rows = [row(FIRST_MINUTE + n * MINUTE, task, completed=n + 1) for n in range(3) for task in ("a b", "c")]
    await add(harness, 0, 12, *rows)
    found: list[MetricsRow] = []
    cursor: str | None = None
    for _ in range(10):
        page = await harness.do(mq.ReadMetrics(queue=QUEUE, cursor=cursor, limit=4))
        assert len(page.rows) <= 4
        found += page.rows
        cursor = page.cursor
        if cursor is None:
            break
    assert found == rows
    second = FIRST_MINUTE + MINUTE
    assert await read(harness, since_ms=second, until_ms=second + 1) == rows[2:4]
    assert await read(harness, task="c") == rows[1::2]
    assert await read(harness, queue="none") == await read(harness, task="none") == []


@pytest.mark.feature("Q3")
async def test_queues_and_namespaces_are_rolled_up_apart(harness: Harness) -> None:
    await add(harness, 0, 1, row(completed=1))
    await add(harness, 0, 2, row(completed=2), queue="other")
    assert await read(harness) == [row(completed=1)]
    assert await read(harness, queue="other") == [row(completed=2)]
    stranger = await harness.stranger()
    page = await stranger.execute(mq.ReadMetrics(queue=QUEUE, now_ms=harness.now_ms))
    assert page.rows == []


@pytest.mark.feature("Q2", "Q3")
async def test_minutes_are_kept_for_90_days_and_hours_for_five_years(harness: Harness) -> None:
    await add(harness, 0, 1, row(completed=1))
    harness.now_ms = FIRST_MINUTE + KEPT_MS["minute"]
    assert (await harness.do(rq.Prune())).metrics == 0
    assert len(await read(harness)) == 1
    harness.pass_ms(1)
    assert (await harness.do(rq.Prune())).metrics == 1
    assert await read(harness) == []
    assert len(await read(harness, "hour")) == 1
    harness.now_ms = FIRST_HOUR + KEPT_MS["hour"]
    await harness.do(rq.Prune())
    assert len(await read(harness, "hour")) == 1
    harness.pass_ms(1)
    await harness.do(rq.Prune())
    assert await read(harness, "hour") == []


@pytest.mark.feature("Q3", "L1")
async def test_roll_ups_survive_reopening(harness: Harness) -> None:
    await harness.finish("a")
    await add(harness, 0, 1, row(completed=1))
    await harness.reopen()
    assert await read(harness) == [row(completed=1)]
    assert await harness.do(mq.MetricsProgress()) == [MetricsCursor(queue=QUEUE, at=1, newest=1, oldest=1)]


@pytest.mark.feature("Q3")
async def test_history_is_held_until_it_is_rolled_up(harness: Harness) -> None:
    for job_id in ("a", "b"):
        await harness.finish(job_id)
    await add(harness, 0, 1, row(completed=1))
    harness.pass_ms(2 * HISTORY_KEPT_MS)
    await harness.do(rq.Prune())
    assert [r.job_id for r in (await harness.do(rq.ReadHistory(queue=QUEUE, after=1))).records] == ["b"]
    with pytest.raises(HistoryTrimmedError):
        await harness.do(rq.ReadHistory(queue=QUEUE, after=0))
    await add(harness, 1, 2, row(completed=1))
    await harness.do(rq.Prune())
    assert await harness.do(mq.MetricsProgress()) == [MetricsCursor(queue=QUEUE, at=2, newest=2, oldest=3)]


@pytest.mark.feature("Q3")
async def test_history_is_not_held_for_a_roll_up_that_nobody_does(harness: Harness) -> None:
    for job_id in ("a", "b"):
        await harness.finish(job_id)
    await add(harness, 0, 1, row(completed=1))
    harness.pass_ms(ARCHIVER_KEPT_MS - 1)
    await harness.do(rq.Prune())
    assert [c.oldest for c in await harness.do(mq.MetricsProgress())] == [2]
    harness.pass_ms(1)
    await harness.do(rq.Prune())
    assert [c.oldest for c in await harness.do(mq.MetricsProgress())] == [3]


@pytest.mark.feature("Q2", "Q3")
async def test_the_rows_of_a_history_count_every_attempt_once(harness: Harness) -> None:
    for outcome in (Outcome.COMPLETE, Outcome.FAIL, Outcome.COMPLETE):
        job = await harness.start(f"job-{harness.now_ms}")
        harness.pass_ms(40_000)
        await harness.settle(job, outcome, duration_ms=40_000)
    rows = rows_of(await harness.history())
    assert [(r.start_ms - FIRST_MINUTE, r.outcomes) for r in rows] == [
        (MINUTE, {"completed": 1}),
        (2 * MINUTE, {"completed": 1, "failed": 1}),
    ]
    assert sum(r.duration.sum_ms for r in rows) == 120_000
    assert sum(r.wait.count for r in rows) == 3


@pytest.mark.feature("Q9")
async def test_marks_are_listed_in_order_and_put_once(harness: Harness) -> None:
    first = await harness.do(mq.AddMark(id="m1", label="deploy 41"))
    assert first == Mark(id="m1", at_ms=START_MS, label="deploy 41")
    harness.pass_ms(5)
    await harness.do(mq.AddMark(id="m2", label="deploy 42"))
    assert await harness.do(mq.AddMark(id="m1", label="again")) == first
    assert [mark.label for mark in await harness.do(mq.ListMarks())] == ["deploy 41", "deploy 42"]
    assert [mark.id for mark in await harness.do(mq.ListMarks(since_ms=START_MS + 1))] == ["m2"]
