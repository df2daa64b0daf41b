"""Sets of 64-bit hashes, as sorted arrays.

These functions sort and search. ``unique`` and ``isin`` of numpy 2.4 put every value into a hash table, which
takes ten times as long for millions of hashes, and the driver runs them while no task does.
"""

from __future__ import annotations

from typing import Any


def counted(values: Any) -> tuple[Any, Any]:
    """The distinct hashes in order, and how often each occurs."""
    import numpy as np

    found: tuple[Any, Any] = np.unique(values, return_counts=True)  # sorts only with return_counts
    return found


def unique(values: Any) -> Any:
    """The distinct hashes in order."""
    return counted(values)[0]


def is_in(values: Any, others: Any) -> Any:
    """Which of ``values`` are in ``others``. Neither needs to be sorted."""
    import numpy as np

    if not len(others):
        return np.zeros(len(values), bool)
    ordered = np.sort(others)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[at] == values


def have_common(values: Any, others: Any) -> bool:
    """Whether the two have a hash in common."""
    import numpy as np

    return bool(is_in(np.sort(values), others).any())
