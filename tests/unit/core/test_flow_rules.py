"""Which retried jobs wait for each other again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from windlass.core.flow_rules import RetriedTogether
from windlass.core.job import JobRef

JOBS = [JobRef("q", f"j{n}") for n in range(20_000)]


@pytest.mark.parametrize("from_the_first", [True, False])
def test_a_long_chain_is_retried_from_either_end_and_its_circle_is_found(from_the_first: bool) -> None:
    """A search from one end only would take minutes for one of the two orders."""
    retried = RetriedTogether(JOBS)
    pairs = list(pairwise(JOBS))
    for child, dependent in pairs if from_the_first else reversed(pairs):
        assert retried.may_wait(dependent, child)
    assert not retried.may_wait(JOBS[0], JOBS[-1])
    assert retried.may_wait(JOBS[-1], JOBS[0])


def test_a_job_does_not_wait_for_itself() -> None:
    assert not RetriedTogether(JOBS[:1]).may_wait(JOBS[0], JOBS[0])
