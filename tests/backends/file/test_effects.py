"""Effects are enough: a store that only applies them is the store that decided, after every single step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.backends.file.twins import TwinBackend
from tests.backends.test_state_machine import SETTINGS
from windlass_conformance import Harness, contract_tests
from windlass_conformance.machine import machine_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from windlass.backend import Backend


class TwinHarness(Harness):
    """Every connection to a namespace reaches the same pair of twins."""

    def __init__(self) -> None:
        super().__init__("twins")
        self._stores: dict[str, TwinBackend] = {}

    def connect(self, namespace: str) -> Backend:
        return self._stores.setdefault(namespace, TwinBackend()).clone()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with TwinHarness() as started:
        yield started


globals().update(contract_tests())


@pytest.mark.timeout(240)
def test_twins_stay_equal_whatever_happens() -> None:
    run_state_machine_as_test(machine_for(TwinBackend), settings=SETTINGS)
