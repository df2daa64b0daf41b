"""How long a failed job waits: every formula with its bounds, by seed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.backoff import DEFAULT_BACKOFF, Backoff, backoff_ms
from windlass.core.option_values import to_backoff
from windlass.errors import ConfigError

ERROR = ValueError("bad")


def delay(policy: Backoff, failures: int, seed: int = 0) -> int:
    ms = backoff_ms(policy, failures, ERROR, {}, random.Random(seed))
    assert ms is not None
    return ms


@pytest.mark.feature("C2", "A11")
def test_fixed_waits_the_same_every_time() -> None:
    policy = Backoff(type="fixed", delay_ms=500, jitter=0)
    assert [delay(policy, n) for n in (1, 2, 10, 1_000)] == [500] * 4


@pytest.mark.feature("C2", "A11")
def test_exponential_doubles_from_its_first_delay() -> None:
    policy = Backoff(type="exponential", delay_ms=2_000, jitter=0)
    assert [delay(policy, n) for n in (1, 2, 3, 4)] == [2_000, 4_000, 8_000, 16_000]


@pytest.mark.feature("C2")
def test_the_default_is_exponential_from_two_seconds_up_to_an_hour() -> None:
    assert (DEFAULT_BACKOFF.type, DEFAULT_BACKOFF.delay_ms) == ("exponential", 2_000)
    assert (DEFAULT_BACKOFF.cap_ms, DEFAULT_BACKOFF.jitter) == (3_600_000, 0.2)


@pytest.mark.feature("C2")
@pytest.mark.parametrize("failures", [12, 41, 42, 1_000, 1_000_000])
def test_the_cap_holds_however_often_a_job_failed(failures: int) -> None:
    assert delay(Backoff(jitter=0), failures) == 3_600_000


@pytest.mark.feature("C2")
def test_the_cap_also_holds_for_fixed_delays() -> None:
    assert delay(Backoff(type="fixed", delay_ms=90_000, cap_ms=60_000, jitter=0), 1) == 60_000


@pytest.mark.feature("C4")
@given(
    failures=st.integers(1, 60),
    jitter=st.floats(0, 1),
    base=st.integers(1, 10**7),
    seed=st.integers(0, 2**32),
)
def test_jitter_only_shortens_and_by_no_more_than_its_share(
    failures: int, jitter: float, base: int, seed: int
) -> None:
    policy = Backoff(delay_ms=base, jitter=jitter)
    full = delay(Backoff(delay_ms=base, jitter=0), failures)
    assert full * (1 - jitter) - 1 <= delay(policy, failures, seed) <= full


@pytest.mark.feature("C4")
def test_jitter_spreads_jobs_that_failed_together() -> None:
    policy = Backoff(delay_ms=10_000, jitter=1)
    delays = {delay(policy, 1, seed) for seed in range(100)}
    assert len(delays) > 90
    assert min(delays) < 1_000 and max(delays) > 9_000


@pytest.mark.feature("C4")
def test_the_same_seed_gives_the_same_delay() -> None:
    assert delay(Backoff(), 3, seed=7) == delay(Backoff(), 3, seed=7)


@pytest.mark.feature("C3")
@given(failures=st.integers(1, 26), seed=st.integers(0, 2**32))
def test_sidekiqs_formula(failures: int, seed: int) -> None:
    base = ((failures - 1) ** 4 + 15) * 1_000
    assert base <= delay(Backoff(type="sidekiq"), failures, seed) <= base + 30_000 * failures


@pytest.mark.feature("C3")
@pytest.mark.parametrize("failures", [1, 2, 10])
def test_sidekiqs_random_part_fills_its_whole_range_evenly(failures: int) -> None:
    """Without it, or with another range, jobs that failed together come back together."""
    base, span = ((failures - 1) ** 4 + 15) * 1_000, 30_000 * failures
    random_part = [delay(Backoff(type="sidekiq"), failures, seed) - base for seed in range(2_000)]
    assert min(random_part) < 0.01 * span and max(random_part) > 0.99 * span
    quarters = [sum(n * span / 4 <= part < (n + 1) * span / 4 for part in random_part) for n in range(4)]
    assert all(400 < quarter < 600 for quarter in quarters), quarters


@pytest.mark.feature("C3")
def test_sidekiqs_25_retries_take_about_three_weeks() -> None:
    days = sum(delay(Backoff(type="sidekiq"), n, seed=n) for n in range(1, 26)) / 86_400_000
    assert 20 < days < 22


@pytest.mark.feature("C5")
def test_a_registered_strategy_gets_the_failures_and_the_error() -> None:
    seen: list[tuple[int, BaseException]] = []

    def strategy(failures: int, error: BaseException) -> float:
        seen.append((failures, error))
        return 1.5

    ms = backoff_ms(Backoff(type="mine"), 4, ERROR, {"mine": strategy}, random.Random(0))
    assert (ms, seen) == (1_500, [(4, ERROR)])


@pytest.mark.feature("C5")
@pytest.mark.parametrize("answer", [None, -1, -0.5])
def test_a_strategy_may_give_up(answer: float | None) -> None:
    strategies = {"mine": lambda failures, error: answer}
    assert backoff_ms(Backoff(type="mine"), 1, ERROR, strategies, random.Random(0)) is None


@pytest.mark.feature("C5")
def test_a_strategy_that_nobody_here_knows_falls_back_to_the_default() -> None:
    ms = backoff_ms(Backoff(type="of another release"), 2, ERROR, {}, random.Random(0))
    assert ms is not None and 3_200 <= ms <= 4_000


@pytest.mark.feature("C5")
def test_a_strategy_that_fails_falls_back_to_the_default() -> None:
    def broken(failures: int, error: BaseException) -> float:
        raise RuntimeError("broken")

    ms = backoff_ms(Backoff(type="mine"), 1, ERROR, {"mine": broken}, random.Random(0))
    assert ms is not None and 1_600 <= ms <= 2_000


@pytest.mark.feature("A11", "C4")
@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ("fixed", Backoff(type="fixed")),
        ("mine", Backoff(type="mine")),
        (5, Backoff(type="fixed", delay_ms=5_000, jitter=0)),
        (0, Backoff(type="fixed", delay_ms=0, jitter=0)),
        ({"delay": 1}, Backoff(delay_ms=1_000)),
        ({"type": "fixed", "delay": 1, "jitter": True}, Backoff(type="fixed", delay_ms=1_000, jitter=0.1)),
        ({"type": "fixed", "jitter": False}, Backoff(type="fixed", jitter=0)),
        (
            {"type": "exponential", "delay": 3, "cap": 10, "jitter": 1},
            Backoff(delay_ms=3_000, cap_ms=10_000, jitter=1),
        ),
        (Backoff(delay_ms=1), Backoff(delay_ms=1)),
    ],
)
def test_every_spelling_of_a_policy(given_: object, wanted: Backoff) -> None:
    assert to_backoff(given_) == wanted


@pytest.mark.feature("A11")
@pytest.mark.parametrize(
    "wrong",
    [
        {"dealy": 5},
        {"type": ""},
        {"type": 5},
        {"jitter": 2},
        {"jitter": "much"},
        {"delay": -1},
        {"delay": "1s"},
        -1,
        None,
        object(),
        True,
    ],
)
def test_a_policy_that_cannot_work_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError):
        to_backoff(wrong)
