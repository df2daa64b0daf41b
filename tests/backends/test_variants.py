"""The contract tests on the paths that production takes: see ``windlass_conformance.variants``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.backends.harnesses import make_harness
from windlass_conformance import Harness
from windlass_conformance.variants import VARIANTS, Runs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

#: Calls to a store in memory are carried out one by one: there is no other way to send them together.
RUNS = Runs({"memory": ("own-plain",), "sqlite": tuple(VARIANTS), "file": tuple(VARIANTS)})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    found = RUNS.pairs(metafunc.function)
    metafunc.parametrize(("harness", "variant"), found, indirect=["harness"])


@pytest.fixture
async def harness(
    request: pytest.FixtureRequest, variant: str, tmp_path: Path, declare_missing: Callable[..., None]
) -> AsyncIterator[Harness]:
    """A fresh store, and how it is spoken to."""
    made = make_harness(request.param, tmp_path)
    made.variant, made.on_missing = VARIANTS[variant], declare_missing
    async with made as started:
        yield started


globals().update(RUNS.tests())
