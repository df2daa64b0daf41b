"""Valkey, Redis and a cluster against the memory store, by random operations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.backends.valkey.servers import DEPLOYMENTS, make_harness
from windlass.core.paths import counts
from windlass_conformance.machine import machine_for
from windlass_conformance.own_clock import own_machine_for

if TYPE_CHECKING:
    from windlass.backend import Backend

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")

_HUNT = os.environ.get("WINDLASS_MACHINE_EXAMPLES")
SETTINGS = settings(
    max_examples=int(_HUNT) if _HUNT else 40,
    stateful_step_count=50,
    deadline=None,
    derandomize=_HUNT is None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.feature("U7", "L16")
@pytest.mark.timeout(0 if _HUNT else 300)
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_a_deployment_does_what_the_memory_store_does(deployment: str) -> None:
    def make() -> Backend:
        harness = make_harness(deployment)
        return harness.connect(harness.namespace)

    run_state_machine_as_test(machine_for(make, apart=deployment == "cluster"), settings=SETTINGS)


#: A history by a real clock cannot be run again as it was, so none is made smaller.
OWN_SETTINGS = settings(SETTINGS, phases=[Phase.generate])
#: The special paths that histories by the store's own clock must take.
OWN_PATHS = (
    *("valkey.add_alone", "valkey.add_plain", "valkey.add_together", "valkey.lease_plain"),
    *(
        "valkey.complete_run",
        "valkey.handoff_registered",
        "valkey.handoff_assigned",
        "valkey.handoff_claimed",
    ),
)


@pytest.mark.feature("U7", "L16")
@pytest.mark.timeout(0 if _HUNT else 300)
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_a_deployment_does_the_same_by_its_own_clock_alone_and_in_company(deployment: str) -> None:
    def make() -> Backend:
        harness = make_harness(deployment)
        return harness.connect(harness.namespace)

    before = dict(counts)
    run_state_machine_as_test(own_machine_for(make, apart=deployment == "cluster"), settings=OWN_SETTINGS)
    assert [name for name in OWN_PATHS if counts[name] == before[name]] == []
