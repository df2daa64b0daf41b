"""Log-bucket histograms: exact below 50, within 2 % above, the same in Python, Spark and DuckDB."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.pipeline import histogram as h

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES = st.lists(st.integers(0, 10**10), min_size=1, max_size=200)


def exact(values: list[int], per_mille: int) -> int:
    return sorted(values)[-(-len(values) * per_mille // 1000) - 1]


@given(st.integers(0, 2**53))
def test_the_value_of_a_bucket_is_within_two_percent(value: int) -> None:
    shown = h.value_of(h.bucket_of(value))
    assert shown == value if value < 50 else abs(shown - value) <= 0.02 * value


@given(VALUES)
def test_percentiles_are_within_two_percent_of_the_exact_ones(values: list[int]) -> None:
    for per_mille in (1, 500, 950, 990, 999, 1000):
        got = h.percentile(h.build(values), per_mille)
        assert got is not None
        want = exact(values, per_mille)
        assert got == want if want < 50 else abs(got - want) <= 0.02 * want


@given(VALUES, VALUES, VALUES)
def test_sums_do_not_depend_on_order(a: list[int], b: list[int], c: list[int]) -> None:
    parts = [h.build(a), h.build(b), h.build(c)]
    whole = h.build(a + b + c)
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
    hist = h.build(values)
    with duckdb.connect() as connection:
        h.register_duckdb(connection)
        for per_mille in (500, 950, 990, 1000):
            query = "SELECT hist_percentile(?::STRUCT(bucket INTEGER, count BIGINT)[], ?)"
            (got,) = connection.execute(query, [h.as_entries(hist), per_mille]).fetchone() or (None,)
            assert got == pytest.approx(h.percentile(hist, per_mille), rel=1e-12)


def test_spark_buckets_and_values_are_pythons(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    rng = random.Random(3)
    values = [-5, 0, 1, 49, 50, 51, 52, 53, 54, 55, *(rng.randrange(10**12) for _ in range(200))]
    frame = spark.createDataFrame([(value,) for value in values], "v bigint")
    bucket = h.bucket_column(F.col("v"))
    for row in frame.select("v", bucket.alias("b"), h.value_column(bucket).alias("x")).collect():
        assert row.b == h.bucket_of(row.v)
        assert row.x == pytest.approx(h.value_of(row.b), rel=1e-12)


def test_spark_percentiles_are_pythons(spark: SparkSession) -> None:
    rng = random.Random(4)
    hists = [h.build(rng.randrange(2_000) for _ in range(size)) for size in (1, 2, 19, 20, 21, 400)]
    rows = [(h.as_entries(hist), sum(count for _, count in hist)) for hist in [*hists, []]]
    frame = spark.createDataFrame(rows, "h array<struct<bucket:int,count:bigint>>, n bigint")
    wanted = {"p50": 500, "p95": 950, "p99": 990}
    got = frame.select(h.percentile_buckets("h", "n", wanted).alias("at")).collect()
    for hist, row in zip([*hists, []], got, strict=True):
        for name, per_mille in wanted.items():
            bucket = row["at"][name]
            assert (None if bucket is None else h.value_of(bucket)) == h.percentile(hist, per_mille)
