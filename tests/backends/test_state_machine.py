"""Every backend against the memory store, by random operations.

The examples are the same in every run. For a long, random hunt set ``WINDLASS_MACHINE_EXAMPLES`` to a number.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.backends.harnesses import HARNESSES, make_harness
from windlass_conformance.machine import machine_for
from windlass_conformance.own_clock import own_machine_for

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.backend import Backend

_HUNT = os.environ.get("WINDLASS_MACHINE_EXAMPLES")
SETTINGS = settings(
    max_examples=int(_HUNT) if _HUNT else 60,
    stateful_step_count=50,
    deadline=None,
    derandomize=_HUNT is None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.feature("U7", "L16")
@pytest.mark.timeout(0 if _HUNT else 300)
@pytest.mark.parametrize("backend_name", HARNESSES)
def test_a_backend_does_what_the_memory_store_does(backend_name: str, tmp_path: Path) -> None:
    def make() -> Backend:
        harness = make_harness(backend_name, tmp_path)
        return harness.connect(harness.namespace)

    run_state_machine_as_test(machine_for(make), settings=SETTINGS)


#: A history by a real clock cannot be run again as it was, so none is made smaller.
OWN_SETTINGS = settings(SETTINGS, max_examples=int(_HUNT) if _HUNT else 20, phases=[Phase.generate])


@pytest.mark.feature("U7", "L16")
@pytest.mark.timeout(0 if _HUNT else 300)
@pytest.mark.parametrize("backend_name", HARNESSES)
def test_a_backend_does_the_same_by_its_own_clock_alone_and_in_company(
    backend_name: str, tmp_path: Path
) -> None:
    def make() -> Backend:
        harness = make_harness(backend_name, tmp_path)
        return harness.connect(harness.namespace)

    run_state_machine_as_test(own_machine_for(make), settings=OWN_SETTINGS)
