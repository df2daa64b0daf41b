"""Sets of hashes answer what numpy's own functions do."""

from __future__ import annotations

import numpy as np
import pytest

from windlass.pipeline import hashsets

EMPTY = np.array([], np.uint64)


def drawn(seed: int, count: int, among: int = 2**64 - 1) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.random.default_rng(seed).integers(0, among, count, dtype=np.uint64, endpoint=True)


@pytest.mark.parametrize("among", [1, 7, 500, 2**64 - 1])
@pytest.mark.parametrize("counts", [(0, 0), (0, 5), (5, 0), (1, 1), (300, 200)])
def test_sets_of_hashes_are_those_of_numpy(among: int, counts: tuple[int, int]) -> None:
    left, right = drawn(1, counts[0], among), drawn(2, counts[1], among)
    assert hashsets.unique(left).tolist() == np.unique(left).tolist()
    values, times = hashsets.counted(left)
    assert values.tolist() == np.unique(left).tolist()
    assert times.sum() == len(left)
    assert hashsets.is_in(left, right).tolist() == np.isin(left, right).tolist()
    assert hashsets.have_common(left, right) == bool(np.isin(left, right).any())


def test_the_largest_hash_is_found() -> None:
    largest = np.array([2**64 - 1], np.uint64)
    assert hashsets.is_in(largest, np.array([0, 2**64 - 1], np.uint64)).tolist() == [True]
    assert not hashsets.have_common(largest, np.array([0, 2**64 - 2], np.uint64))
    assert not hashsets.have_common(largest, EMPTY)
