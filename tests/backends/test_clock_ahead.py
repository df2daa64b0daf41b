"""The tests of a machine whose clock was ahead, on the stores that go by the machine's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.backends.harnesses import HARNESSES, make_harness
from windlass_conformance import Harness, clock_tests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(params=HARNESSES)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """A fresh store of each backend."""
    async with make_harness(request.param, tmp_path) as started:
        yield started


globals().update(clock_tests())
