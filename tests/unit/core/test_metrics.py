"""Roll-ups: rows of attempts, and that they add up in any order."""

from __future__ import annotations

import random

import pytest

from windlass.core.job import AttemptOutcome, AttemptRecord
from windlass.core.rollups import Measure, merged, rows_of, total

pytestmark = pytest.mark.feature("Q3", "Q9")


def attempt(
    at_ms: int, task: str, outcome: AttemptOutcome, wait: int | None, run: int | None
) -> AttemptRecord:
    return AttemptRecord(
        f"r{at_ms}", "j", 1, 1, "q", task, None, (), "w", 0, 0, 0, at_ms, wait, run, outcome, None, None
    )


def test_percentiles_are_within_two_percent() -> None:
    rng = random.Random(7)
    values = [round(rng.lognormvariate(6, 2)) for _ in range(5_000)]
    measure = Measure()
    for value in values:
        measure.add(value)
    values.sort()
    assert (measure.count, measure.sum_ms, measure.max_ms) == (5_000, sum(values), values[-1])
    for per_mille in (1, 500, 950, 990, 1_000):
        true = values[-(-5_000 * per_mille // 1_000) - 1]
        assert measure.percentile_ms(per_mille) == pytest.approx(true, rel=0.02, abs=0.5)


def test_nothing_measured_has_no_figures() -> None:
    assert (Measure().average_ms, Measure().percentile_ms(500)) == (None, None)


def test_a_time_that_went_back_counts_as_none() -> None:
    measure = Measure()
    measure.add(-5)
    assert (measure.count, measure.sum_ms, measure.percentile_ms(500)) == (1, 0, 0)


def test_rows_add_up_however_the_history_is_cut() -> None:
    rng = random.Random(3)
    history = [
        attempt(
            rng.randrange(10_000_000),
            rng.choice("abc"),
            rng.choice(list(AttemptOutcome)),
            rng.choice([None, rng.randrange(5_000)]),
            rng.choice([None, rng.randrange(100_000)]),
        )
        for _ in range(500)
    ]
    whole = rows_of(history)
    cuts = sorted(rng.sample(range(500), 7))
    parts = [rows_of(history[a:b]) for a, b in zip([0, *cuts], [*cuts, 500], strict=True)]
    rng.shuffle(parts)
    assert merged((row for part in parts for row in part), "minute") == whole
    assert merged(merged((row for part in parts for row in part), "minute"), "hour") == merged(whole, "hour")
    everything = total(whole)
    assert sum(everything.outcomes.values()) == 500
    assert everything.runs == sum(record.outcome in ("completed", "failed", "retrying") for record in history)
