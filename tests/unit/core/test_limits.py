"""Rates, buckets and slots, as arithmetic."""

from __future__ import annotations

import random

import pytest

from windlass.core import limit_rules as lm
from windlass.core.limit_rules import Bucket, GroupLimits, QueueLimits, Rate, Usage
from windlass.errors import ConfigError

T = 1_000_000


@pytest.mark.parametrize(
    ("limits", "usage", "opens"),
    [
        (GroupLimits(), Usage(waiting=50, active=50), T),
        (GroupLimits(concurrency=2), Usage(waiting=1), T),
        (GroupLimits(concurrency=2), Usage(waiting=1, active=1), None),
        (GroupLimits(ordered=True), Usage(), T),
        (GroupLimits(ordered=True), Usage(first=6), None),
        (GroupLimits(ordered=True), Usage(first=7), T),
        (GroupLimits(concurrency=1), Usage(first=6), T),
        (GroupLimits(), Usage(paused=True), None),
        (GroupLimits(), Usage(hold_until_ms=T + 5), T + 5),
        (GroupLimits(rate=Rate(2, 100)), Usage(starts=[T - 100, T - 99]), T),
        (GroupLimits(rate=Rate(2, 100)), Usage(starts=[T - 50, T - 10]), T + 50),
        (GroupLimits(rate=Rate(2, 100)), Usage(starts=[T - 50, T - 10], waiting=1), T + 90),
        (GroupLimits(rate=Rate(2, 100)), Usage(starts=[T - 50, T - 10], waiting=2), None),
        (GroupLimits(bucket=Bucket(3, 1)), Usage(waiting_cost=2), T),
        (GroupLimits(bucket=Bucket(3, 1)), Usage(waiting_cost=3), None),
        (GroupLimits(bucket=Bucket(3, 2)), Usage(level=0, level_ms=T - 100), T + 400),
    ],
)
def test_when_one_more_may_be_let_in(limits: GroupLimits, usage: Usage, opens: int | None) -> None:
    assert lm.opens_at(limits, usage, 1, T, place=7) == opens


def test_a_job_that_waits_may_start_whatever_else_waits() -> None:
    limits = GroupLimits(concurrency=1, rate=Rate(1, 100))
    assert lm.opens_at(limits, Usage(waiting=5), 1, T, starting=True) == T


@pytest.mark.parametrize("seed", range(5))
def test_starts_that_are_allowed_never_exceed_a_window(seed: int) -> None:
    rng = random.Random(seed)
    limits = GroupLimits(rate=Rate(rng.randint(1, 6), rng.randint(5, 200)), bucket=Bucket(7, 20))
    usage, now_ms, starts, spent = Usage(), T, [], []
    assert limits.rate is not None
    for _ in range(500):
        cost = rng.randint(1, 7)
        at_ms = lm.opens_at(limits, usage, cost, now_ms, starting=True)
        assert at_ms is not None
        if at_ms <= now_ms:
            lm.take_start(limits, usage, cost, now_ms)
            starts.append(now_ms)
            spent.append((now_ms, cost))
        else:
            now_ms = max(now_ms, at_ms - rng.randint(0, 1))
        now_ms += rng.choice([0, 0, 1, 30])
    for one, later in zip(starts, starts[limits.rate.max :], strict=False):
        assert later - one >= limits.rate.per_ms
    for first, (begin, _) in enumerate(spent):
        total = 0
        for at, cost in spent[first:]:
            total += cost
            assert total <= 7 + 0.02 * (at - begin) + 1e-9, "capacity and what flowed in"


def test_the_time_that_is_told_is_the_first_at_which_a_start_is_allowed() -> None:
    limits = GroupLimits(rate=Rate(3, 70), bucket=Bucket(4, 13))
    usage, now_ms = Usage(), T
    for _ in range(50):
        at_ms = lm.opens_at(limits, usage, 2, now_ms, starting=True)
        assert at_ms is not None
        if at_ms > now_ms:
            before = lm.opens_at(limits, usage, 2, at_ms - 1, starting=True)
            assert before is not None
            assert before > at_ms - 1
            now_ms = at_ms
        lm.take_start(limits, usage, 2, now_ms)


@pytest.mark.parametrize(
    ("limits", "starts", "active", "hold_ms", "room"),
    [
        (QueueLimits(), [], 5, 0, (lm.NO_LIMIT, None)),
        (QueueLimits(concurrency=3), [], 5, 0, (0, None)),
        (QueueLimits(concurrency=8), [], 5, 0, (3, None)),
        (QueueLimits(rate=Rate(3, 10)), [T - 10, T - 9, T - 1], 0, 0, (1, None)),
        (QueueLimits(rate=Rate(2, 10)), [T - 9, T - 1], 0, 0, (0, T + 1)),
        (QueueLimits(), [], 0, T + 9, (0, T + 9)),
    ],
)
def test_the_room_of_a_queue(
    limits: QueueLimits, starts: list[int], active: int, hold_ms: int, room: tuple[int, int | None]
) -> None:
    assert lm.queue_room(limits, starts, active, hold_ms, T) == room


def test_an_idle_group_is_one_that_nothing_would_be_different_without() -> None:
    limits = GroupLimits(rate=Rate(1, 100), bucket=Bucket(1, 1))
    assert lm.is_idle(limits, Usage(), T)
    assert not lm.is_idle(limits, Usage(size=1), T)
    assert not lm.is_idle(limits, Usage(starts=[T - 99]), T)
    assert lm.is_idle(limits, Usage(starts=[T - 100]), T)
    assert not lm.is_idle(limits, Usage(level=0, level_ms=T - 999), T)
    assert lm.is_idle(limits, Usage(level=0, level_ms=T - 1_000), T)


def test_rates_and_buckets_can_be_written_in_several_ways() -> None:
    assert lm.to_rate((5, 1)) == lm.to_rate({"max": 5, "duration": 1}) == Rate.per_second(5)
    assert lm.to_rate(None) is None
    assert lm.to_bucket((10, 2.5)) == lm.to_bucket({"capacity": 10, "refill_per_s": 2.5}) == Bucket(10, 2.5)


@pytest.mark.parametrize("bad", [0, -1, True, 10_001, 1.5, None])
def test_a_rate_needs_a_sensible_count(bad: object) -> None:
    with pytest.raises(ConfigError):
        Rate(bad, 1_000)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"ordered": "yes"}, {"ordered": True, "skip_delayed": 1}, {"bucket": 3}])
def test_limits_of_a_group_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        lm.to_group_limits(**wrong)
