"""The whole conformance suite on Valkey 9, on Redis 7 and on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.backends.valkey.servers import DEPLOYMENTS, make_harness
from windlass_conformance import Harness, all_tests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.service("valkey")


@pytest.fixture(params=DEPLOYMENTS)
async def harness(
    request: pytest.FixtureRequest, declare_missing: Callable[..., None]
) -> AsyncIterator[Harness]:
    """A fresh namespace of each deployment."""
    async with make_harness(request.param) as started:
        started.on_missing = declare_missing
        yield started


globals().update(all_tests())
