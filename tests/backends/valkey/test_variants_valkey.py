"""The contract tests on the paths that production takes, on Valkey: the clock is the server's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.backends.valkey.servers import make_harness
from windlass_conformance import Harness
from windlass_conformance.variants import VARIANTS, Runs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.service("valkey")

RUNS = Runs({"valkey": tuple(VARIANTS), "cluster": ("own-plain",)}, "valkey", moves_clock=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    found = RUNS.pairs(metafunc.function)
    metafunc.parametrize(("harness", "variant"), found, indirect=["harness"])


@pytest.fixture
async def harness(
    request: pytest.FixtureRequest, variant: str, declare_missing: Callable[..., None]
) -> AsyncIterator[Harness]:
    """A fresh namespace, and how it is spoken to."""
    made = make_harness(request.param)
    made.variant, made.on_missing = VARIANTS[variant], declare_missing
    async with made as started:
        yield started


globals().update(RUNS.tests())
