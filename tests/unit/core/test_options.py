"""Job options: what is accepted, what is refused and how, how they merge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.option_values import (
    KEEP_COMPLETED,
    KEEP_FAILED,
    Keep,
    Priority,
    check_known,
    instant_to_ms,
    seconds_to_ms,
    to_keep,
)
from windlass.core.options import ALL_UNSAID, DEFAULT_OPTIONS, JobOptions, StoredOptions
from windlass.errors import ConfigError


@pytest.mark.feature("A10", "A13")
def test_the_defaults_are_those_of_the_documents() -> None:
    stored = DEFAULT_OPTIONS.stored()
    assert stored == StoredOptions(unsaid=ALL_UNSAID)
    assert (stored.max_attempts, stored.max_stalls, stored.timeout_ms, stored.lease_ms) == (3, 2, None, None)
    assert stored.keep_completed == Keep(86_400_000, 10_000) == KEEP_COMPLETED
    assert stored.keep_failed == Keep(180 * 86_400_000, 10_000) == KEEP_FAILED


@pytest.mark.feature("C21")
def test_options_that_the_caller_changes_later_stay_as_they_were_given() -> None:
    trace, fallbacks = {"tenant": "acme"}, [{"model": "small"}]
    stored = JobOptions(trace=trace, fallbacks=fallbacks).stored()
    trace["tenant"] = fallbacks[0]["model"] = "other"
    assert (stored.trace, stored.fallbacks) == ({"tenant": "acme"}, ({"model": "small"},))


@pytest.mark.feature("A38")
def test_a_plain_job_stores_that_it_says_nothing() -> None:
    assert msgspec.json.encode(DEFAULT_OPTIONS.stored()) == b'{"unsaid":63}'
    assert msgspec.json.encode(StoredOptions()) == b"{}"


@pytest.mark.feature("A38")
def test_what_is_said_is_what_was_given_even_if_it_is_usual() -> None:
    assert DEFAULT_OPTIONS.merged({"max_attempts": 3}).stored().unsaid == ALL_UNSAID - 1
    assert JobOptions(timeout=5, keep_failed=True).stored().unsaid == ALL_UNSAID - 4 - 32
    assert DEFAULT_OPTIONS.merged({"timeout": 5}).as_unsaid().stored() == StoredOptions(
        timeout_ms=5_000, unsaid=ALL_UNSAID
    )


@pytest.mark.feature("A38")
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"priority": 2**20}, "priority"),
        ({"priority": -(2**20) - 1}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"max_stalls": -1}, "max_stalls"),
        ({"backtrace": -1}, "backtrace"),
        ({"job_id": "a:b"}, "job_id"),
        ({"tags": "red"}, "tags"),
        ({"tags": [""]}, "tags"),
        ({"tags": ["x" * 129]}, "tags"),
        ({"tags": ["a"] * 33}, "tags"),
        ({"tags": [1]}, "tags"),
        ({"trace": {"a": 1}}, "trace"),
        ({"trace": "a=b"}, "trace"),
        ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5}, "run_at"),
    ],
)
def test_what_cannot_work_is_refused_when_the_options_are_made(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        JobOptions(**options)
    assert caught.value.option == complaint


@pytest.mark.feature("A38")
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),
        ({"run_at": "tomorrow"}, "run_at"),
        ({"timeout": 0}, "timeout"),
        ({"lease": 0.5}, "lease"),
        ({"stall_delay": -1}, "stall_delay"),
        ({"expires_in": 0}, "expires_in"),
        ({"keep_id": -5}, "keep_id"),
        ({"result_ttl": -1}, "result_ttl"),
        ({"keep_completed": "all"}, "keep_completed"),
        ({"keep_failed": -1}, "keep_failed"),
        ({"keep_failed": {"ages": 5}}, "ages"),
        ({"backoff": {"jitter": 2}}, "backoff.jitter"),
    ],
)
def test_durations_and_rules_are_checked_before_anything_is_stored(
    options: dict[str, Any], complaint: str
) -> None:
    made = JobOptions(**options)
    with pytest.raises(ConfigError) as caught:
        made.check()
    assert caught.value.option == complaint


@pytest.mark.feature("A38", "O19")
def test_a_misspelt_option_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_attempts'"):
        DEFAULT_OPTIONS.merged({"max_attemps": 5})
    with pytest.raises(ConfigError, match=r"known: .*priority"):
        DEFAULT_OPTIONS.merged({"zzzzzz": 5})


@pytest.mark.feature("A38")
def test_an_error_tells_option_wish_and_value() -> None:
    with pytest.raises(ConfigError) as caught:
        JobOptions(max_attempts=0)
    assert (caught.value.option, caught.value.got) == ("max_attempts", 0)
    assert "whole number" in caught.value.want
    assert isinstance(caught.value, ValueError)


@pytest.mark.feature("A38")
def test_the_more_special_options_win_and_the_others_stay() -> None:
    base = JobOptions(priority=1, max_attempts=9)
    merged = base.merged({"priority": 2})
    assert (merged.priority, merged.max_attempts, base.priority) == (2, 9, 1)
    assert base.merged({}) is base


@pytest.mark.feature("A8", "A38")
def test_a_time_overrules_a_general_delay_and_the_other_way_round() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert JobOptions(delay=5).merged({"run_at": at}).delay == 0
    assert JobOptions(run_at=at).merged({"delay": 5}).run_at is None
    assert JobOptions(run_at=at).merged({"priority": 5}).run_at == at


@pytest.mark.feature("A8")
@pytest.mark.parametrize(
    ("value", "ms"),
    [(0, 0), (1, 1_000), (1.5, 1_500), (0.0001, 1), (timedelta(minutes=2), 120_000), (timedelta(0), 0)],
)
def test_durations_are_seconds_or_timedeltas(value: Any, ms: int) -> None:
    assert seconds_to_ms(value, "delay") == ms


@given(st.floats(min_value=0, max_value=3e9, allow_nan=False))
def test_a_duration_is_never_off_by_more_than_a_millisecond(seconds: float) -> None:
    assert abs(seconds_to_ms(seconds, "delay") - seconds * 1_000) <= 1


@pytest.mark.parametrize("wrong", [-0.1, "1", None, True, float("inf"), float("nan"), 4e9])
def test_durations_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        seconds_to_ms(wrong, "delay")


@pytest.mark.feature("A8", "B4")
def test_instants_are_aware_datetimes_or_seconds() -> None:
    assert instant_to_ms(datetime(1970, 1, 2, tzinfo=UTC), "run_at") == 86_400_000
    assert instant_to_ms(1.5, "run_at") == 1_500
    for wrong in (datetime(2030, 1, 1), -1, "now", True, 1e12, None):
        with pytest.raises(ConfigError):
            instant_to_ms(wrong, "run_at")


@pytest.mark.feature("A13")
@pytest.mark.parametrize(
    ("value", "keep"),
    [
        (True, Keep(None, None)),
        (False, Keep(0, 0)),
        (0, Keep(None, 0)),
        (100, Keep(None, 100)),
        (timedelta(hours=1), Keep(3_600_000, None)),
        ({"age": 60}, Keep(60_000, None)),
        ({"count": 5}, Keep(None, 5)),
        ({"age": 60, "count": 5}, Keep(60_000, 5)),
        ({}, Keep(None, None)),
        (Keep(1, 2), Keep(1, 2)),
    ],
)
def test_every_spelling_of_a_retention_rule(value: Any, keep: Keep) -> None:
    assert to_keep(value, "keep_completed") == keep


@pytest.mark.feature("A13")
def test_cancelled_jobs_are_kept_like_completed_ones() -> None:
    options = StoredOptions(keep_completed=Keep(1, 1), keep_failed=Keep(2, 2))
    assert [options.keep_for(state).count for state in ("completed", "cancelled", "failed")] == [1, 1, 2]


@pytest.mark.feature("G2")
def test_the_named_priorities_are_in_order_and_in_range() -> None:
    named = [Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.CRITICAL]
    assert named == sorted(named)
    for value in named:
        JobOptions(priority=value)


@pytest.mark.feature("A38")
def test_stored_options_survive_their_encoding() -> None:
    options = JobOptions(
        max_attempts=9,
        backoff={"type": "fixed", "delay": 1},
        timeout=5,
        lease=60,
        result_ttl=10,
        keep_completed=5,
        tags=["a", "b"],
        keep_id=60,
        trace={"k": "v"},
    ).stored()
    assert msgspec.json.decode(msgspec.json.encode(options), type=StoredOptions) == options


def test_check_known_passes_what_is_known() -> None:
    check_known(["a", "b"], {"a", "b", "c"}, "thing")
