"""The contract tests on the paths that production takes, on RabbitMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.backends.amqp.servers import make_harness
from windlass_conformance import Harness
from windlass_conformance.variants import VARIANTS, Runs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.service("rabbitmq")

RUNS = Runs(
    {"amqp": ("own-plain",)},
    "amqp",
    modules=(
        "contract_add", "contract_cancel", "contract_change", "contract_claim", "contract_due",
        "contract_events", "contract_fencing", "contract_lease", "contract_listen", "contract_purge",
        "contract_repeat", "contract_report", "contract_retention", "contract_settle",
    ),
)  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    found = RUNS.pairs(metafunc.function)
    metafunc.parametrize(("harness", "variant"), found, indirect=["harness"])


@pytest.fixture
async def harness(
    request: pytest.FixtureRequest, variant: str, declare_missing: Callable[..., None]
) -> AsyncIterator[Harness]:
    """A fresh namespace, and how it is spoken to."""
    made = make_harness()
    made.variant, made.on_missing = VARIANTS[variant], declare_missing
    async with made as started:
        yield started


globals().update(RUNS.tests())
