"""Records: history rows, run ids, fingerprints, retention rules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.job import (
    AttemptOutcome,
    AttemptRecord,
    ErrorInfo,
    JobRecord,
    WorkerFacts,
    attempt_record,
    ended_run_id,
    fingerprint,
)
from windlass.core.option_values import DEFAULT_RESULT_TTL_MS, GRACE_MS, Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement
from windlass.core.patterns import matches
from windlass.core.queue_time import QueueTime
from windlass.core.retention import keep_until, result_until, spare_until
from windlass.core.settle_rules import complete_all
from windlass.core.states import JobState
from windlass.core.transitions import ChangeRecorder


def record(**fields: Any) -> JobRecord:
    return JobRecord(**{"queue": "q", "id": "a", "task": "t", "payload": b"", **fields})


@pytest.mark.feature("Q2", "Q11")
def test_the_row_of_an_attempt_is_keyed_by_its_token() -> None:
    job = record(token="tok", worker="w", attempts=2, deliveries=4, ready_ms=10, started_ms=25, enqueued_ms=5)
    row = attempt_record(job, AttemptOutcome.COMPLETED, 60, duration_ms=30)
    assert (row.run_id, row.attempt, row.delivery, row.worker) == ("tok", 3, 4, "w")
    assert (row.wait_ms, row.duration_ms, row.finished_ms) == (15, 30, 60)


@pytest.mark.feature("Q2")
def test_the_row_of_an_end_without_an_attempt_has_attempt_zero() -> None:
    row = attempt_record(record(worker="old", started_ms=3), AttemptOutcome.CANCELLED, 9)
    assert (row.attempt, row.worker, row.started_ms, row.wait_ms) == (0, None, None, None)
    assert row.run_id.startswith("end.q.a.")


@pytest.mark.feature("Q2")
def test_ends_without_an_attempt_have_ids_of_their_own() -> None:
    ids = {
        ended_run_id(record(seq=seq, manual_retries=retries, id=job_id))
        for seq in (1, 2)
        for retries in (0, 1)
        for job_id in ("a", "b")
    }
    assert len(ids) == 8


@pytest.mark.feature("Q2", "Q11")
def test_history_rows_are_arrays_on_the_wire_and_only_grow_at_the_end() -> None:
    row = attempt_record(record(token="t"), AttemptOutcome.FAILED, 1, error=ErrorInfo(error_class="E"))
    data = msgspec.json.encode(row)
    assert msgspec.json.decode(data, type=AttemptRecord) == row
    fields = msgspec.json.decode(data)
    assert fields[0] == "t" and fields[-2:] == [1, None]
    assert msgspec.json.decode(msgspec.json.encode(fields[:-1]), type=AttemptRecord) == row  # of version 2
    assert (
        msgspec.json.decode(msgspec.json.encode([*fields, "from a newer release"]), type=AttemptRecord) == row
    )


@pytest.mark.feature("C20", "Q11")
def test_errors_that_differ_in_numbers_and_quotes_have_one_fingerprint() -> None:
    one = fingerprint("KeyError", "user 17 not found in 'db1' at 0x7ffe")
    two = fingerprint("KeyError", "user 9 not found in 'db2' at 0x1")
    assert one == two
    assert len(one) == 16
    assert fingerprint("ValueError", "user 17 not found in 'db1' at 0x7ffe") != one
    assert fingerprint("KeyError", "group 17 not found in 'db1' at 0x7ffe") != one


@given(st.text(), st.text(max_size=2_000))
def test_a_fingerprint_is_always_sixteen_hex_digits(name: str, message: str) -> None:
    text = fingerprint(name, message)
    assert len(text) == 16 and int(text, 16) >= 0


# --- retention ------------------------------------------------------------------------------------


@pytest.mark.feature("E5")
def test_a_result_is_kept_for_an_hour_unless_told_otherwise() -> None:
    assert result_until(StoredOptions(), 5) == 5 + DEFAULT_RESULT_TTL_MS == 5 + 3_600_000
    assert result_until(StoredOptions(result_ttl_ms=7), 5) == 12
    assert result_until(StoredOptions(result_ttl_ms=0), 5) == 5


@pytest.mark.feature("A13")
def test_no_record_goes_before_whoever_waits_could_read_it() -> None:
    options = StoredOptions(keep_completed=Keep(0, 0))
    assert keep_until(options, "completed", 5) == spare_until(options, 5) == 5 + GRACE_MS


@pytest.mark.feature("A13", "E8")
def test_an_explicit_result_ttl_holds_the_record() -> None:
    options = StoredOptions(keep_completed=Keep(0, 0), result_ttl_ms=GRACE_MS * 3)
    assert keep_until(options, "completed", 0) == spare_until(options, 0) == GRACE_MS * 3


@pytest.mark.feature("A13")
def test_without_an_age_a_record_never_grows_too_old() -> None:
    assert keep_until(StoredOptions(keep_failed=Keep(None, 5)), "failed", 0) is None


@given(
    age=st.integers(0, 10**12) | st.none(),
    ttl=st.integers(0, 10**9) | st.none(),
    now=st.integers(0, 10**13),
    state=st.sampled_from([JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED]),
)
def test_a_record_is_never_too_old_before_it_may_be_spared(
    age: int | None, ttl: int | None, now: int, state: JobState
) -> None:
    options = StoredOptions(keep_completed=Keep(age), keep_failed=Keep(age), result_ttl_ms=ttl)
    until = keep_until(options, state, now)
    assert until is None or until >= spare_until(options, now) >= now + GRACE_MS


# --- patterns -------------------------------------------------------------------------------------


@pytest.mark.feature("A30")
@pytest.mark.parametrize(
    ("text", "pattern", "fits"),
    [
        ("send", "send", True),
        ("send", "s*", True),
        ("send", "s?nd", True),
        ("send", "S*", False),
        ("send", "*x*", False),
        ("run[fast]", "run[fast]", True),
        ("runf", "run[fast]", False),
        ("a*b", "a*b", True),
        ("", "*", True),
        ("a", "", False),
    ],
)
def test_only_star_and_question_mark_are_special(text: str, pattern: str, fits: bool) -> None:
    assert matches(text, pattern) is fits


def test_a_pattern_that_is_longer_than_the_text_is_not_even_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.core.patterns.fnmatchcase", lambda text, pattern: 1 / 0)
    assert not matches("abc", "x" * 1_000_000)
    assert not matches("abc", "????")
    with pytest.raises(ZeroDivisionError):
        matches("abc", "***abc***")


@pytest.mark.feature("Q2")
@pytest.mark.parametrize(
    "change",
    [
        {"options": StoredOptions(tags=("a",))},
        {"task": "other"},
        {"started_ms": 8},
        {"queue": "other"},
        {"worker": "host:2:b"},
        {"deliveries": 2},
        {"attempts": 1},
        {"priority": 5},
        {"queue_time": QueueTime(6, parked_ms=1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_jobs_that_complete_together_have_the_history_of_jobs_that_complete_alone(
    change: dict[str, Any],
) -> None:
    options, facts, other = StoredOptions(), WorkerFacts("1.0"), WorkerFacts("2.0")
    alike: dict[str, Any] = {
        **{"queue": "q", "task": "t", "options": options, "started_ms": 7, "worker": "host:1:a"},
        **{"deliveries": 1, "attempts": 0, "priority": 0, "queue_time": None},
    }
    jobs = [
        JobRecord(
            id=f"job{n}", payload=b"", token=f"c.{n}", enqueued_ms=n, ready_ms=n + 1, **{**alike, **fields}
        )
        for n, fields in enumerate([{}, {}, change, change, {}, {}])
    ]
    ends = [
        Settlement(
            queue=job.queue,
            id=job.id,
            token=job.token or "",
            outcome=Outcome.COMPLETE,
            duration_ms=n,
            facts=facts if n < 5 else other,
        )
        for n, job in enumerate(jobs)
    ]
    alone = [
        attempt_record(job, AttemptOutcome.COMPLETED, 9, end.duration_ms, None, end.facts)
        for job, end in zip(jobs, ends, strict=True)
    ]
    together = ChangeRecorder(9, lambda: 1)
    complete_all(jobs, ends, together)
    assert [record for some in together.attempts for record in some.records()] == alone
    assert len(together.attempts[0].more) == 1, "the first two are alike"
