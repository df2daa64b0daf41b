"""Histograms of milliseconds that can be added up: the percentiles of a day from those of its minutes.

A value below 50 has a bucket of its own. From there buckets grow by 4 %, and the value that stands for one
is at most 2 % from everything in it. A histogram is a list of ``(bucket, count)``, sorted by bucket, holding
integers only: adding two up in any order gives the same result, always.

Percentiles are nearest-rank: the smallest value that at least the given share does not exceed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

#: Values below this are their own bucket.
EXACT = 50
GROWTH = 1.04
#: The percentiles of every roll-up, in thousandths.
PERCENTILES = {"p50": 500, "p95": 950, "p99": 990}
#: What stands for a bucket that begins at ``low``: equally far (relatively) from both its ends.
MIDDLE = 2 * GROWTH / (1 + GROWTH)

Histogram = list[tuple[int, int]]


def bucket_of(value: int) -> int:
    """The bucket of a value. Below zero (a clock that went back) counts as zero."""
    if value < EXACT:
        return max(value, 0)
    return EXACT + math.floor(math.log(value / EXACT) / math.log(GROWTH))


def value_of(bucket: int) -> float:
    """The value that stands for a bucket."""
    if bucket < EXACT:
        return float(bucket)
    return float(EXACT * GROWTH ** (bucket - EXACT) * MIDDLE)


def build(values: Iterable[int]) -> Histogram:
    """The histogram of some values."""
    counts: dict[int, int] = {}
    for value in values:
        bucket = bucket_of(value)
        counts[bucket] = counts.get(bucket, 0) + 1
    return sorted(counts.items())


def merge(parts: Iterable[Iterable[tuple[int, int] | Mapping[str, int]]]) -> Histogram:
    """The sum of histograms, as tuples or as rows with ``bucket`` and ``count``."""
    counts: dict[int, int] = {}
    for part in parts:
        for entry in part:
            bucket, count = (entry["bucket"], entry["count"]) if isinstance(entry, Mapping) else entry
            counts[bucket] = counts.get(bucket, 0) + count
    return sorted(counts.items())


def percentile(histogram: Histogram, per_mille: int) -> float | None:
    """The value that ``per_mille`` thousandths do not exceed; None for an empty histogram."""
    total = sum(count for _, count in histogram)
    wanted = -(-total * per_mille // 1000)
    seen = 0
    for bucket, count in histogram:
        seen += count
        if seen >= wanted:
            return value_of(bucket)
    return None
