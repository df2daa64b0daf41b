"""Sets of 64-bit hashes, as sorted arrays.

By sorting and searching: ``unique`` and ``isin`` of numpy 2.4 put every value into a hash table, which takes
ten times as long for millions of hashes, and the driver does it while no task runs.
"""

from __future__ import annotations

from typing import Any


def counted(values: Any) -> tuple[Any, Any]:
    """Each hash once, in order, and how often it comes."""
    import numpy as np

    found: tuple[Any, Any] = np.unique(values, return_counts=True)  # the one form of it that sorts
    return found


def unique(values: Any) -> Any:
    """Each hash once, in order."""
    return counted(values)[0]


def is_in(values: Any, others: Any) -> Any:
    """Which of ``values`` are among ``others``, each in any order."""
    import numpy as np

    if not len(others):
        return np.zeros(len(values), bool)
    ordered = np.sort(others)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[at] == values


def have_common(values: Any, others: Any) -> bool:
    """Whether some hash is in both."""
    import numpy as np

    return bool(is_in(np.sort(values), others).any())
