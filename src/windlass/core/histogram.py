"""Histograms of milliseconds that can be added up, for example to get the percentiles of a day from minutes.

Each value below 50 has its own bucket. Above that, each bucket is 4 % wider than the previous one, and its
representative value is within 2 % of all values in it. A histogram is a list of ``(bucket, count)``, sorted
by bucket. It has only integers, so adding histograms in any order gives the same result.

Percentiles are nearest-rank: the smallest value that at least the given share of values does not exceed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

#: Values below this are their own bucket.
EXACT = 50
GROWTH = 1.04
#: The percentiles of every roll-up, in thousandths.
PERCENTILES = {"p50": 500, "p95": 950, "p99": 990}
#: The representative value of a bucket, relative to its start: equally far (relatively) from both ends.
MIDDLE = 2 * GROWTH / (1 + GROWTH)

Histogram = list[tuple[int, int]]


def bucket_of(value: int) -> int:
    """The bucket of a value. A negative value (the clock was set back) counts as zero."""
    if value < EXACT:
        return max(value, 0)
    return EXACT + math.floor(math.log(value / EXACT) / math.log(GROWTH))


def value_of(bucket: int) -> float:
    """The representative value of a bucket."""
    if bucket < EXACT:
        return float(bucket)
    return float(EXACT * GROWTH ** (bucket - EXACT) * MIDDLE)


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
