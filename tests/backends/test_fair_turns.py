"""Fair turns and limits with many groups, one of them huge: the conformance check at a larger size.

``WINDLASS_FAIR_JOBS=100000`` runs it with 100,000 jobs of 1,000 groups.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.backends.harnesses import make_harness
from windlass.core.limit_rules import GroupLimits, Rate
from windlass_conformance.fairness import check_fairness

if TYPE_CHECKING:
    from pathlib import Path

_GIVEN = os.environ.get("WINDLASS_FAIR_JOBS")
JOBS = int(_GIVEN or 5_000)


@pytest.mark.feature("H6", "H7", "H13")
@pytest.mark.timeout(0 if _GIVEN else 240)
@pytest.mark.parametrize(
    "limits", [None, GroupLimits(concurrency=2, rate=Rate(5, 1_000))], ids=["free", "limited"]
)
@pytest.mark.parametrize("backend_name", os.environ.get("WINDLASS_FAIR_STORES", "memory").split(","))
async def test_many_groups_of_which_one_is_huge(
    backend_name: str, limits: GroupLimits | None, tmp_path: Path
) -> None:
    async with make_harness(backend_name, tmp_path) as harness:
        await check_fairness(harness, JOBS, JOBS // 100, limits)
