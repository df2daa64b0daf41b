"""The pump of a store whose claims go apart from its settlements. Nothing here waits."""

from __future__ import annotations

from typing import Any

from tests.unit.worker.pump_support import POLL_MS, end, give, pump_of, shown
from windlass import QueueSpec
from windlass.worker.pump import DONE, Pump, Wait


def apart(slots: int = 1, **options: Any) -> Pump:
    pump = pump_of(slots, **options)
    pump.claims_separately = True
    return pump


def test_with_claims_separately_the_next_job_is_claimed_while_the_last_end_is_settled() -> None:
    pump = apart()
    give(pump, 1)
    assert shown(pump.next(0)) == ("wait until", POLL_MS)
    pump.freed("mail")
    pump.ended(end("a"))
    assert shown(pump.next_in_second_lane(0)) == (["a"], 0)
    assert shown(pump.next(0)) == ([], 1)
    assert pump.next_in_second_lane(0) is None


def test_with_claims_separately_each_end_wakes_the_driver() -> None:
    """Others may be on their way to the store: the slot is free, and the next job can come."""
    pump = apart(2)
    give(pump, 2)
    assert [pump.ended(end(token)) for token in "ab"] == [True, True]


def test_with_claims_separately_only_so_many_ends_may_be_unsettled() -> None:
    pump = apart()
    for number in range(50):
        give(pump, 1)
        pump.freed("mail")
        pump.ended(end(f"{number}"))
    assert shown(pump.next(0)) == ("wait until", POLL_MS)
    settling = pump.next_in_second_lane(0)
    assert settling is not None and len(settling.settlements) == 50
    assert shown(pump.next(0)) == ("wait until", POLL_MS)
    pump.answered(settling, None, 0)
    assert shown(pump.next(0)) == ([], 1)


def test_with_claims_separately_a_closing_worker_waits_for_its_settlements() -> None:
    pump = apart()
    give(pump, 1)
    pump.freed("mail")
    pump.ended(end("a"))
    pump.close()
    assert isinstance(pump.next(0), Wait)
    settling = pump.next_in_second_lane(0)
    assert settling is not None
    assert isinstance(pump.next(0), Wait)
    pump.answered(settling, None, 0)
    assert pump.next(0) is DONE


def test_with_claims_separately_nothing_is_settled_before_a_lost_reply_is_reconciled() -> None:
    pump = apart()
    pump.ended(end("a"))
    pump.step_failed(0)
    assert pump.next_in_second_lane(0) is None
    assert shown(pump.next(POLL_MS)) == ("reconcile", ["a"])
    assert pump.next_in_second_lane(POLL_MS) is None
    pump.reconciled()
    assert shown(pump.next_in_second_lane(POLL_MS)) == (["a"], 0)


def test_with_a_bound_of_a_queue_a_settlement_claims_as_well() -> None:
    pump = apart(2, queues={"mail": QueueSpec(cap=1)})
    give(pump, 1)
    pump.freed("mail")
    pump.ended(end("a"))
    assert pump.next_in_second_lane(0) is None
    assert shown(pump.next(0)) == (["a"], 2)


def test_with_claims_separately_time_passes_also_while_an_end_waits_to_be_settled() -> None:
    """The store may be slow to settle: a job that is due meanwhile must not wait for it."""
    pump = apart(2)
    give(pump, 1)
    pump.freed("mail")
    pump.ended(end("a"))
    wait = pump.next(0)
    assert isinstance(wait, Wait)
    pump.woke(wait.until_ms, frozenset())
    assert shown(pump.next(wait.until_ms)) == ([], 2)
