"""What a job waited for: queue times that a program without this field has left behind."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.core.job import JobRecord
from windlass.core.queue_time import QueueTime, count, forget_stale
from windlass.core.states import JobState


def put_back(known: QueueTime, **fields: Any) -> JobRecord:
    """A job that was started at 50 and put back at 80."""
    about = {"queue": "q", "id": "a", "task": "t", "payload": b"", "enqueued_ms": 1, "deliveries": 1}
    return JobRecord(**{**about, "started_ms": 50, "ready_ms": 80, **fields}, queue_time=known)


@pytest.mark.feature("Q2")
def test_a_queue_time_from_before_the_last_start_is_not_counted_again() -> None:
    job = put_back(QueueTime(49, 10, 11, 12, 13))
    count(job, 85)
    assert job.queue_time == QueueTime(85, in_line_ms=5)


@pytest.mark.feature("Q2")
def test_neither_is_it_for_a_job_that_is_due_later() -> None:
    job = put_back(QueueTime(49, 10), state=JobState.RETRYING, due_ms=90, ready_ms=90)
    count(job, 95)
    assert job.queue_time == QueueTime(95, in_line_ms=5)


@pytest.mark.feature("Q2")
@pytest.mark.parametrize(
    ("known", "kept"),
    [
        (QueueTime(49), False),
        (QueueTime(50, in_line_ms=1), False),  # moved and started by one claim
        (QueueTime(50), True),  # put back in the millisecond of its start
        (QueueTime(80), True),
        (QueueTime(81, in_line_ms=1), True),
    ],
)
def test_only_a_queue_time_from_before_the_last_start_is_dropped(known: QueueTime, kept: bool) -> None:
    job = put_back(known)
    forget_stale(job)
    assert job.queue_time == (known if kept else None)


@pytest.mark.feature("Q2")
def test_a_job_that_was_never_started_keeps_its_queue_time() -> None:
    job = put_back(QueueTime(5), started_ms=None)
    forget_stale(job)
    assert job.queue_time == QueueTime(5)
