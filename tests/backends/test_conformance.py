"""The conformance suite of ``windlass_conformance``, on every backend of ``harnesses``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.backends.harnesses import HARNESSES, make_harness
from windlass_conformance import Harness, all_tests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@pytest.fixture(params=HARNESSES)
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, declare_missing: Callable[..., None]
) -> AsyncIterator[Harness]:
    """A fresh store of each backend."""
    async with make_harness(request.param, tmp_path) as started:
        started.on_missing = declare_missing
        yield started


globals().update(all_tests())
