"""The pump: what a worker asks of its store next, as tables. Nothing here waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.worker.pump_support import (
    POLL_MS,
    claimed,
    cut_off,
    end,
    give,
    one_ended,
    paused,
    pump_of,
    shown,
)
from windlass import QueueSpec
from windlass.worker.pump import CHECK, DONE, Exchange, Pump, Wait

# --- tables --------------------------------------------------------------------------------------------


def fresh(pump: Pump) -> None:
    """Nothing has happened."""


def found_nothing(pump: Pump) -> None:
    give(pump, 0)


def found_one_due_later(pump: Pump) -> None:
    give(pump, 0, due_in_ms=300)


def full(pump: Pump) -> None:
    give(pump, 4)


def one_runs(pump: Pump) -> None:
    give(pump, 1)


def six_ended(pump: Pump) -> None:
    for token in "abcdef":
        pump.ended(end(token))


def paused_with_an_end(pump: Pump) -> None:
    one_ended(pump)
    pump.paused = True


def limited(pump: Pump) -> None:
    pump.limited_until_ms = 500


def closing(pump: Pump) -> None:
    pump.close()


def closing_while_one_runs(pump: Pump) -> None:
    one_runs(pump)
    pump.close()


def closing_with_an_end(pump: Pump) -> None:
    one_ended(pump)
    pump.close()


def hinted(pump: Pump) -> None:
    found_nothing(pump)
    pump.hint()


def hinted_while_it_asked(pump: Pump) -> None:
    exchange = pump.next(0)
    assert isinstance(exchange, Exchange)
    pump.hint()
    pump.answered(exchange, claimed(0), 0)


def smaller_than_what_runs(pump: Pump) -> None:
    full(pump)
    pump.slots = 2
    pump.hint()


def failed_once(pump: Pump) -> None:
    one_ended(pump)
    exchange = pump.next(0)
    assert isinstance(exchange, Exchange)
    pump.failed(exchange)
    pump.step_failed(0)


def failed_then_hurried(pump: Pump) -> None:
    failed_once(pump)
    pump.fail_fast()


def failed_in_a_hurry(pump: Pump) -> None:
    pump.fail_fast()
    failed_once(pump)


def reconciled(pump: Pump) -> None:
    cut_off(pump)
    assert shown(pump.next(0)) == ("reconcile", ["a"])
    pump.reconciled()


@pytest.mark.parametrize(
    ("before", "step"),
    [
        (fresh, ([], 4)),
        (found_nothing, ("wait until", POLL_MS)),
        (found_one_due_later, ("wait until", 301)),
        (full, ("wait until", POLL_MS)),
        (one_runs, ("wait until", POLL_MS)),
        (one_ended, (["a"], 4)),
        (six_ended, (["a", "b", "c", "d"], 4)),
        (paused, ("wait until", POLL_MS)),
        (paused_with_an_end, (["a"], 0)),
        (limited, ("wait until", 500)),
        (closing, DONE),
        (closing_while_one_runs, ("wait until", POLL_MS)),
        (closing_with_an_end, (["a"], 0)),
        (hinted, ([], 4)),
        (hinted_while_it_asked, ([], 4)),
        (smaller_than_what_runs, ("wait until", POLL_MS)),
        (failed_once, ("rest until", 100)),
        (cut_off, ("reconcile", ["a"])),
        (failed_then_hurried, ("reconcile", ["a"])),
        (failed_in_a_hurry, DONE),
        (reconciled, (["a"], 4)),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_comes_next(before: Callable[[Pump], None], step: object) -> None:
    pump = pump_of()
    before(pump)
    assert shown(pump.next(0)) == step


@pytest.mark.parametrize(
    ("failures", "rest_ms"), [(1, 100), (2, 200), (3, 400), (6, 3_200), (7, 5_000), (50, 5_000)]
)
def test_rests_grow_while_it_fails_and_begin_anew_after_an_answer(failures: int, rest_ms: float) -> None:
    pump = pump_of()
    for _ in range(failures):
        pump.step_failed(1_000)
    assert shown(pump.next(1_000)) == ("rest until", 1_000 + rest_ms)
    assert shown(pump.next(1_000 + rest_ms)) == ("reconcile", [])
    pump.reconciled()
    give(pump, 0, 10_000)
    pump.step_failed(20_000)
    assert shown(pump.next(20_000)) == ("rest until", 20_100)


def test_a_rest_is_shortened_by_its_jitter() -> None:
    pump = pump_of(jitter=lambda: 0.5)
    pump.step_failed(0)
    assert shown(pump.next(0)) == ("rest until", 50)


@pytest.mark.parametrize(
    ("now_ms", "topics", "ends", "looks"),
    [
        (POLL_MS, [], [], True),
        (POLL_MS - 5, [], [], True),  # clocks of event loops are coarse
        (POLL_MS - 6, [], [], False),
        (10, ["ready:mail"], [], True),
        (10, ["worker:me"], [], False),
        (POLL_MS, ["worker:me"], [], False),
        (POLL_MS, [], ["a"], False),  # the end woke it, not the time
    ],
)
def test_it_looks_for_jobs_again_when_told_or_when_its_time_passed(
    now_ms: float, topics: list[str], ends: list[str], looks: bool
) -> None:
    pump = pump_of()
    give(pump, 0)
    assert isinstance(pump.next(0), Wait)
    for token in ends:
        pump.ended(end(token))
    pump.woke(now_ms, frozenset(topics))
    if ends:
        give(pump, 0, now_ms)  # takes the end along
    assert isinstance(pump.next(now_ms), Exchange) is looks


def test_only_the_first_end_is_worth_a_wake() -> None:
    pump = pump_of()
    assert [pump.ended(end(token)) for token in "abc"] == [True, False, False]


@pytest.mark.parametrize(("empty", "then"), [(True, DONE), (False, ("wait until", POLL_MS))])
def test_a_pump_that_ends_when_all_is_done_checks_once_before_it_waits(empty: bool, then: object) -> None:
    pump = pump_of(until_empty=True)
    give(pump, 0)
    assert pump.next(0) is CHECK
    pump.checked(empty=empty)
    assert shown(pump.next(0)) == then
    if not empty:
        pump.woke(POLL_MS, frozenset())
        give(pump, 0, POLL_MS)
        assert pump.next(POLL_MS) is CHECK


def test_a_pump_does_not_check_while_something_runs() -> None:
    pump = pump_of(until_empty=True)
    give(pump, 1)
    assert isinstance(pump.next(0), Wait)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([0], [False]),  # nothing had come
        ([2], [True]),
        ([4], [False]),  # there may be more
        ([4, 0], [False, True]),
        ([2, 0], [True, False]),
    ],
)
def test_it_tells_once_that_no_jobs_are_left(answers: list[int], told: list[bool]) -> None:
    pump, seen = pump_of(), []
    for count in answers:
        pump.hint()
        seen.append(give(pump, count))
        for _ in range(count):
            pump.freed("mail")
    assert seen == told


def test_a_job_that_is_handed_out_begins_only_while_the_pump_waits() -> None:
    pump = pump_of(1)
    assert not pump.has_room("mail", 0), "it is about to ask"
    give(pump, 0)
    assert not pump.has_room("mail", 0), "it has not begun to wait"
    assert isinstance(pump.next(0), Wait)
    assert pump.has_room("mail", 0)
    pump.began("mail")
    assert pump.took_offer()
    assert not pump.has_room("mail", 0), "its slot is taken"


def test_slots_that_are_kept_for_a_queue_are_claimed_for_no_other() -> None:
    pump = pump_of(4, {"mail": QueueSpec(1), "urgent": QueueSpec(1, reserve=3)})
    exchange = pump.next(0)
    assert isinstance(exchange, Exchange)
    shares = {item.name: item.share for item in exchange.queues}
    assert shares["mail"] <= 1
    assert sum(shares.values()) == 4


# --- two lanes -----------------------------------------------------------------------------------------


def lanes(slots: int = 20, queues: Any = "mail") -> Pump:
    pump = pump_of(slots, queues)
    pump.overlaps = True
    return pump


def test_a_store_that_overlaps_is_asked_for_half_of_the_slots_by_each_lane() -> None:
    pump = lanes()
    assert shown(pump.next(0)) == ([], 10)
    assert pump.wants_second_lane(0)
    assert shown(pump.next_in_second_lane(0)) == ([], 10)
    assert not pump.wants_second_lane(0)
    assert pump.next_in_second_lane(0) is None
    assert shown(pump.next(0)) == ("wait until", POLL_MS)


@pytest.mark.parametrize(("ends", "wants"), [(14, False), (15, True)])
def test_a_second_lane_needs_half_a_batch_of_its_own(ends: int, wants: bool) -> None:
    pump = lanes()
    for number in range(ends):
        pump.ended(end(str(number)))
    pump.paused = True
    first = pump.next(0)
    assert isinstance(first, Exchange)
    assert len(first.settlements) == 10
    assert pump.wants_second_lane(0) is wants


@pytest.mark.parametrize(
    ("slots", "queues", "overlaps"),
    [(15, "mail", True), (20, {"mail": QueueSpec(1, cap=18)}, True), (20, "mail", False)],
)
def test_few_slots_bounded_queues_and_other_stores_have_one_lane(
    slots: int, queues: Any, overlaps: bool
) -> None:
    pump = lanes(slots, queues)
    pump.overlaps = overlaps
    first = pump.next(0)
    assert isinstance(first, Exchange)
    assert first.limit == slots
    assert not pump.wants_second_lane(0)


def test_no_more_jobs_are_left_only_when_no_other_lane_asks() -> None:
    pump = lanes()
    first, second = pump.next(0), pump.next_in_second_lane(0)
    assert isinstance(first, Exchange)
    assert second is not None
    assert not pump.answered(first, claimed(1), 0)
    assert pump.answered(second, claimed(1), 0)


def test_a_pump_is_not_done_while_the_other_lane_is_under_way() -> None:
    pump = lanes()
    for number in range(20):
        pump.ended(end(str(number)))
    pump.close()
    first, second = pump.next(0), pump.next_in_second_lane(0)
    assert isinstance(first, Exchange)
    assert second is not None
    pump.answered(first, None, 0)
    assert isinstance(pump.next(0), Wait)
    pump.failed(second)
    assert [one.token for one in pump.unsettled] == [str(number) for number in range(10, 20)]
    assert isinstance(pump.next(0), Exchange)
