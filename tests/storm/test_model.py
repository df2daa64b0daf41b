"""The model of the lease protocol, over every interleaving; its broken variants are found out."""

from __future__ import annotations

import pytest

from tools.model import SMALL_RUNS, Run, check

pytestmark = [pytest.mark.slow, pytest.mark.service("spin"), pytest.mark.timeout(180)]


@pytest.mark.feature("J24", "U7")
@pytest.mark.parametrize("run", [run for run in SMALL_RUNS if run.holds], ids=lambda run: run.switches[-1])
def test_no_interleaving_breaks_the_lease_protocol(run: Run) -> None:
    result = check(run)
    assert result.errors == 0, result.complaint
    assert result.states > 10_000


@pytest.mark.feature("J24", "U7")
def test_without_fencing_the_checker_finds_the_double_completion() -> None:
    result = check(next(run for run in SMALL_RUNS if "-DNO_FENCING" in run.switches))
    assert result.errors == 1
    assert "completions<=1" in result.complaint


def test_a_store_that_forgets_who_settled_tells_a_worker_that_its_completion_is_lost() -> None:
    result = check(next(run for run in SMALL_RUNS if "-DNO_MEMORY" in run.switches))
    assert result.errors == 1
    assert "sent" in result.complaint
