"""The parts of the conformance suite where queues matter, on quorum queues.

A test that needs priorities asserts their refusal here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.amqp.servers import make_harness
from windlass_conformance import Harness, all_tests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.service("rabbitmq")

#: Add, claim, settle, retry, delay, cancel, repeats, poison, stops, lost connections. The other modules pass
#: as well (see docs/amqp.md), but their tests do not differ by the type of a queue.
MODULES = frozenset(
    {
        "contract_add", "contract_cancel", "contract_claim", "contract_due", "contract_fencing",
        "contract_lease", "contract_repeat", "contract_settle", "behaviour_cancel", "behaviour_closing",
        "behaviour_faults", "behaviour_poison_ends", "behaviour_poison_errors", "behaviour_retry",
        "behaviour_shutdown", "behaviour_wrong_input",
    }
)  # fmt: skip


@pytest.fixture(params=["amqp"])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """A fresh namespace of quorum queues on the broker."""

    def unproved(*rows: str, **_: Any) -> None:
        """A refusal proves nothing, and classic queues do not refuse."""
        request.node.add_marker(pytest.mark.feature_unproved(*rows))

    async with make_harness("queue_type=quorum") as started:
        started.on_missing = unproved
        yield started


_CHOSEN = {name: test for name, test in all_tests().items() if test.__module__.rpartition(".")[2] in MODULES}
globals().update(_CHOSEN)


def test_every_module_that_is_named_has_tests() -> None:
    assert {test.__module__.rpartition(".")[2] for test in _CHOSEN.values()} == MODULES
