"""Valkey, Redis and a cluster against the memory store, by random operations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.backends.valkey.servers import DEPLOYMENTS, make_harness
from windlass.testing.machine import machine_for

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
