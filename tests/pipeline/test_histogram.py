"""Log-bucket histograms: exact below 50, within 2 % above, the same in Python and DuckDB."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.pipeline import histogram as h

VALUES = st.lists(st.integers(0, 10**10), min_size=1, max_size=200)


def build(values: list[int]) -> h.Histogram:
    return sorted(Counter(map(h.bucket_of, values)).items())


def exact(values: list[int], per_mille: int) -> int:
    return sorted(values)[-(-len(values) * per_mille // 1000) - 1]


@given(st.integers(0, 2**53))
def test_the_value_of_a_bucket_is_within_two_percent(value: int) -> None:
    shown = h.value_of(h.bucket_of(value))
    assert shown == value if value < 50 else abs(shown - value) <= 0.02 * value


@given(VALUES)
def test_percentiles_are_within_two_percent_of_the_exact_ones(values: list[int]) -> None:
    for per_mille in (1, 500, 950, 990, 999, 1000):
        got = h.percentile(build(values), per_mille)
        assert got is not None
        want = exact(values, per_mille)
        assert got == want if want < 50 else abs(got - want) <= 0.02 * want


@given(VALUES, VALUES, VALUES)
def test_sums_do_not_depend_on_order(a: list[int], b: list[int], c: list[int]) -> None:
    parts = [build(a), build(b), build(c)]
    whole = build(a + b + c)
    assert h.merge(parts) == h.merge(reversed(parts)) == h.merge([h.merge(parts[:2]), parts[2]]) == whole


def test_an_empty_histogram_has_no_percentile() -> None:
    assert h.percentile([], 500) is None


def test_rows_of_tables_can_be_added_up() -> None:
    assert h.merge([h.as_entries([(1, 2)]), [(1, 3), (4, 1)]]) == [(1, 5), (4, 1)]


@pytest.mark.feature("Q9")
def test_duckdb_gives_the_same_percentiles() -> None:
    import duckdb

    rng = random.Random(7)
    values = [int(rng.lognormvariate(5, 2)) for _ in range(500)]
    hist = build(values)
    with duckdb.connect() as connection:
        h.register_duckdb(connection)
        for per_mille in (500, 950, 990, 1000):
            query = "SELECT hist_percentile(?::STRUCT(bucket INTEGER, count BIGINT)[], ?)"
            (got,) = connection.execute(query, [h.as_entries(hist), per_mille]).fetchone() or (None,)
            assert got == pytest.approx(h.percentile(hist, per_mille), rel=1e-12)


def test_duckdb_buckets_are_pythons() -> None:
    import duckdb
    import pyarrow as pa

    rng = random.Random(3)
    values = [-5, *range(3_000), *(rng.randrange(10**12) for _ in range(2_000)), None]
    rows = pa.table({"v": pa.array(values, pa.int64())})
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        got = connection.sql(f"SELECT {h.bucket_sql('v')} FROM rows").fetchall()
    assert [row[0] for row in got] == [None if value is None else h.bucket_of(value) for value in values]


def test_values_of_buckets_are_those_of_one_bucket() -> None:
    assert list(h.values_until(500)) == [h.value_of(bucket) for bucket in range(501)]
