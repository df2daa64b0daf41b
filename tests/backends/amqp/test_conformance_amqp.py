"""The conformance suite on RabbitMQ: what the backend declares works, the rest is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.backends.amqp.servers import make_harness
from windlass_conformance import Harness, all_tests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.service("rabbitmq")


@pytest.fixture(params=["amqp"])
async def harness(
    request: pytest.FixtureRequest, declare_missing: Callable[..., None]
) -> AsyncIterator[Harness]:
    """A fresh namespace on the broker."""
    async with make_harness() as started:
        started.on_missing = declare_missing
        yield started


globals().update(all_tests())
