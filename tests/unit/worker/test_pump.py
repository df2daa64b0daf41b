"""The pump: what a worker asks of its store next, as tables and as properties. Nothing here waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from windlass import QueueSpec
from windlass.backend.requests import Claimed
from windlass.core.job import JobRecord
from windlass.core.outcome import Outcome, Settlement
from windlass.worker.options import to_specs
from windlass.worker.pump import CHECK, DONE, AllDone, Check, Exchange, Pump, ReconcileStep, Wait
from windlass.worker.shares import SharePlanner

POLL_MS = 2_000


def pump_of(slots: int = 4, queues: Any = "mail", **options: Any) -> Pump:
    shares = SharePlanner(to_specs(queues, slots), "weighted")
    return Pump(shares, slots=slots, poll_ms=POLL_MS, **options)


def end(token: str, queue: str = "mail") -> Settlement:
    return Settlement(queue=queue, id=token, token=token, outcome=Outcome.COMPLETE)


def claimed(count: int = 0, *, due_in_ms: int | None = None, queue: str = "mail") -> Claimed:
    jobs = [JobRecord(queue=queue, id=str(n), task="t", payload=b"") for n in range(count)]
    return Claimed(jobs, now_ms=0, next_due_in_ms=due_in_ms)


def give(pump: Pump, count: int, now_ms: float = 0, **answer: Any) -> bool:
    """Answer the exchange that is next with ``count`` jobs, and begin them."""
    exchange = pump.next(now_ms)
    assert isinstance(exchange, Exchange)
    drained = pump.answered(exchange, claimed(count, **answer) if exchange.queues else None, now_ms)
    for _ in range(count):
        pump.began("mail")
    return drained


def shown(step: object) -> object:
    """A step as the tables write it: what is settled, and how many are claimed."""
    if isinstance(step, Exchange):
        return [one.token for one in step.ends], step.limit
    if isinstance(step, Wait):
        return ("rest until" if step.ignore_hints else "wait until"), step.until_ms
    if isinstance(step, ReconcileStep):
        return "reconcile", step.ends
    return step


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


def one_ended(pump: Pump) -> None:
    give(pump, 1)
    pump.freed("mail")
    pump.ended(end("a"))


def six_ended(pump: Pump) -> None:
    for token in "abcdef":
        pump.ended(end(token))


def paused(pump: Pump) -> None:
    pump.paused = True


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
    pump.stumbled(0)


def cut_off(pump: Pump) -> None:
    one_ended(pump)
    exchange = pump.next(0)
    assert isinstance(exchange, Exchange)
    pump.failed(exchange)
    pump.interrupted()


def failed_then_hurried(pump: Pump) -> None:
    failed_once(pump)
    pump.hurry()


def failed_in_a_hurry(pump: Pump) -> None:
    pump.hurry()
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
        pump.stumbled(1_000)
    assert shown(pump.next(1_000)) == ("rest until", 1_000 + rest_ms)
    assert shown(pump.next(1_000 + rest_ms)) == ("reconcile", [])
    pump.reconciled()
    give(pump, 0, 10_000)
    pump.stumbled(20_000)
    assert shown(pump.next(20_000)) == ("rest until", 20_100)


def test_a_rest_is_shortened_by_its_jitter() -> None:
    pump = pump_of(jitter=lambda: 0.5)
    pump.stumbled(0)
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
    assert pump.wants_lane(0)
    assert shown(pump.beside(0)) == ([], 10)
    assert not pump.wants_lane(0)
    assert pump.beside(0) is None
    assert shown(pump.next(0)) == ("wait until", POLL_MS)


@pytest.mark.parametrize(("ends", "wants"), [(14, False), (15, True)])
def test_a_second_lane_needs_half_a_batch_of_its_own(ends: int, wants: bool) -> None:
    pump = lanes()
    for number in range(ends):
        pump.ended(end(str(number)))
    pump.paused = True
    first = pump.next(0)
    assert isinstance(first, Exchange)
    assert len(first.ends) == 10
    assert pump.wants_lane(0) is wants


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
    assert not pump.wants_lane(0)


def test_no_more_jobs_are_left_only_when_no_other_lane_asks() -> None:
    pump = lanes()
    first, second = pump.next(0), pump.beside(0)
    assert isinstance(first, Exchange)
    assert second is not None
    assert not pump.answered(first, claimed(1), 0)
    assert pump.answered(second, claimed(1), 0)


def test_a_pump_is_not_done_while_the_other_lane_is_under_way() -> None:
    pump = lanes()
    for number in range(20):
        pump.ended(end(str(number)))
    pump.close()
    first, second = pump.next(0), pump.beside(0)
    assert isinstance(first, Exchange)
    assert second is not None
    pump.answered(first, None, 0)
    assert isinstance(pump.next(0), Wait)
    pump.failed(second)
    assert [one.token for one in pump.ends] == [str(number) for number in range(10, 20)]
    assert isinstance(pump.next(0), Exchange)


# --- properties ----------------------------------------------------------------------------------------


class Model(RuleBasedStateMachine):
    """A worker and a store that answer in any order, fail at any time, and are paused, limited and closed."""

    @initialize(
        slots=st.integers(1, 40),
        overlaps=st.booleans(),
        until_empty=st.booleans(),
        specs=st.sampled_from(
            [
                {"a": QueueSpec(1)},
                {"a": QueueSpec(3), "b": QueueSpec(1)},
                {"a": QueueSpec(1, cap=1), "b": QueueSpec(1)},
                {"a": QueueSpec(1, reserve=1), "b": QueueSpec(2)},
            ]
        ),
    )
    def begin(self, slots: int, overlaps: bool, until_empty: bool, specs: dict[str, QueueSpec]) -> None:
        self.names = list(specs)
        self.pump = pump_of(slots, specs, until_empty=until_empty)
        self.pump.overlaps = overlaps
        self.now = 0.0
        self.under_way: list[Exchange] = []
        self.running: Counter[str] = Counter()
        #: Ends that no answer has taken yet, by token.
        self.owed: set[str] = set()
        self.tokens = 0
        self.done = False

    # what the driver does

    def note(self, step: object) -> None:
        """What must hold for every step."""
        pump = self.pump
        if isinstance(step, Exchange):
            self.under_way.append(step)
            asked = sum(one.limit for one in self.under_way)
            assert step.ends or step.queues, "a request that asks for nothing"
            assert all(0 <= item.share <= item.cap <= step.limit for item in step.queues)
            assert sum(item.share for item in step.queues) <= step.limit
            if step.limit:
                assert not pump.paused
                assert not pump.closing
                assert pump.limited_until_ms <= self.now
                assert self.running.total() + asked <= pump.slots, "a lease without a slot"
        elif isinstance(step, Wait):
            assert step.until_ms > self.now, "a wait that has passed is no wait"
            assert step.until_ms <= self.now + max(POLL_MS, 5_000)
        elif isinstance(step, AllDone):
            self.done = True
            assert not self.running.total() or pump._hurried or pump.until_empty

    @precondition(lambda self: not self.done and len(self.under_way) < 2)
    @rule()
    def next(self) -> None:
        step = self.pump.next(self.now)
        self.note(step)
        if isinstance(step, ReconcileStep):
            assert {*step.ends} == self.owed - self.sent(), "what is held here must not be given back"
            if not self.under_way:
                self.pump.reconciled()
        elif isinstance(step, Check):
            assert not self.running.total()
            assert not self.owed
            self.pump.checked(empty=False)

    @precondition(lambda self: not self.done and len(self.under_way) == 1)
    @rule()
    def beside(self) -> None:
        wanted = self.pump.wants_lane(self.now)
        step = self.pump.beside(self.now)
        assert (step is not None) is wanted
        if step is not None:
            self.note(step)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), share=st.floats(0, 1), due_in_ms=st.none() | st.integers(0, 10_000))
    def answer(self, data: st.DataObject, share: float, due_in_ms: int | None) -> None:
        exchange = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        jobs, left = list[JobRecord](), round(exchange.limit * share)
        for item in exchange.queues:
            for _ in range(min(left, item.share)):
                jobs.append(JobRecord(queue=item.name, id="x", task="t", payload=b""))
                left -= 1
        answer = Claimed(jobs, now_ms=0, next_due_in_ms=due_in_ms) if exchange.queues else None
        self.pump.answered(exchange, answer, self.now)
        self.owed -= {one.token for one in exchange.ends}
        for job in jobs:
            self.pump.began(job.queue)
            self.running[job.queue] += 1

    @precondition(lambda self: self.under_way)
    @rule(cut_off=st.booleans())
    def fail(self, cut_off: bool) -> None:
        """All that is under way fails: the driver leaves the second lane before it goes on."""
        lost = {one.token for exchange in self.under_way for one in exchange.ends}
        for exchange in self.under_way:
            self.pump.failed(exchange)
        self.under_way.clear()
        if cut_off:
            self.pump.interrupted()
        else:
            self.pump.stumbled(self.now)
        assert lost <= {one.token for one in self.pump.ends}, "they are offered again"
        step = self.pump.next(self.now)
        assert not isinstance(step, Exchange), "it reconciles first"
        self.note(step)

    # what happens

    @precondition(lambda self: self.running.total())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        queue = data.draw(st.sampled_from(sorted(name for name in self.running if self.running[name])))
        self.running[queue] -= 1
        self.tokens += 1
        self.owed.add(str(self.tokens))
        self.pump.freed(queue)
        self.pump.ended(end(str(self.tokens), queue))

    @rule(
        ms=st.sampled_from([1, 50, 100, 500, POLL_MS, 6_000]),
        topics=st.sampled_from([[], ["ready:a"], ["x"]]),
    )
    def time_passes(self, ms: float, topics: list[str]) -> None:
        self.now += ms
        self.pump.woke(self.now, frozenset(topics))

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.pump.paused = paused
        if not paused:
            self.pump.hint()

    @rule(ms=st.integers(0, 3_000))
    def limit(self, ms: int) -> None:
        self.pump.limited_until_ms = self.now + ms

    @rule(slots=st.integers(1, 40))
    def resize(self, slots: int) -> None:
        asked = sum(one.limit for one in self.under_way)
        if self.running.total() + asked <= slots:  # else it is above until some have ended
            self.pump.slots = slots

    @rule()
    def hint(self) -> None:
        self.pump.hint()

    @precondition(lambda self: self.tokens > 20)
    @rule(hurried=st.booleans())
    def close(self, hurried: bool) -> None:
        self.pump.close()
        if hurried:
            self.pump.hurry()

    def sent(self) -> set[str]:
        return {one.token for exchange in self.under_way for one in exchange.ends}

    @invariant()
    def every_end_is_in_one_place(self) -> None:
        if not hasattr(self, "pump"):
            return
        waiting = [one.token for one in self.pump.ends]
        sent = [one.token for exchange in self.under_way for one in exchange.ends]
        assert len(waiting) + len(sent) == len(self.owed), "an end was lost, or is in two requests"
        assert {*waiting, *sent} == self.owed

    @invariant()
    def all_that_ends_is_settled_in_the_end(self) -> None:
        """From any state: when the store answers and nothing more begins, the pump settles all and ends."""
        if not hasattr(self, "pump") or self.done or self.under_way or self.running.total():
            return
        if not self.pump.closing:
            return
        for _ in range(200):
            step = self.pump.next(self.now)
            self.note(step)
            if isinstance(step, Exchange):
                self.under_way.remove(step)
                self.pump.answered(step, None, self.now)
                self.owed -= {one.token for one in step.ends}
            elif isinstance(step, ReconcileStep):
                self.pump.reconciled()
            elif isinstance(step, Wait):
                self.now = step.until_ms
                self.pump.woke(self.now, frozenset())
            elif isinstance(step, Check):
                self.pump.checked(empty=True)
            else:
                assert not self.owed or self.pump._hurried
                return
        raise AssertionError("it never ends")


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
test_any_history_keeps_the_promises_of_the_pump = Model.TestCase


# --- claims apart from settlements -----------------------------------------------------------------------


def apart(slots: int = 1, **options: Any) -> Pump:
    pump = pump_of(slots, **options)
    pump.claims_apart = True
    return pump


def test_with_claims_apart_the_next_job_is_claimed_while_the_last_end_is_settled() -> None:
    pump = apart()
    give(pump, 1)
    assert shown(pump.next(0)) == ("wait until", POLL_MS)
    pump.freed("mail")
    pump.ended(end("a"))
    assert shown(pump.beside(0)) == (["a"], 0)
    assert shown(pump.next(0)) == ([], 1)
    assert pump.beside(0) is None


def test_with_claims_apart_each_end_wakes_the_driver() -> None:
    """Others may be on their way to the store: the slot is free, and the next job can come."""
    pump = apart(2)
    give(pump, 2)
    assert [pump.ended(end(token)) for token in "ab"] == [True, True]


def test_with_claims_apart_only_so_many_ends_may_be_unsettled() -> None:
    pump = apart()
    for number in range(50):
        give(pump, 1)
        pump.freed("mail")
        pump.ended(end(f"{number}"))
    assert shown(pump.next(0)) == ("wait until", POLL_MS)
    settling = pump.beside(0)
    assert settling is not None and len(settling.ends) == 50
    assert shown(pump.next(0)) == ("wait until", POLL_MS)
    pump.answered(settling, None, 0)
    assert shown(pump.next(0)) == ([], 1)


def test_with_claims_apart_a_closing_worker_waits_for_its_settlements() -> None:
    pump = apart()
    give(pump, 1)
    pump.freed("mail")
    pump.ended(end("a"))
    pump.close()
    assert isinstance(pump.next(0), Wait)
    settling = pump.beside(0)
    assert settling is not None
    assert isinstance(pump.next(0), Wait)
    pump.answered(settling, None, 0)
    assert pump.next(0) is DONE


def test_with_claims_apart_nothing_is_settled_before_a_lost_reply_is_reconciled() -> None:
    pump = apart()
    pump.ended(end("a"))
    pump.stumbled(0)
    assert pump.beside(0) is None
    assert shown(pump.next(POLL_MS)) == ("reconcile", ["a"])
    assert pump.beside(POLL_MS) is None
    pump.reconciled()
    assert shown(pump.beside(POLL_MS)) == (["a"], 0)


def test_with_a_bound_of_a_queue_a_settlement_claims_as_well() -> None:
    pump = apart(2, queues={"mail": QueueSpec(cap=1)})
    give(pump, 1)
    pump.freed("mail")
    pump.ended(end("a"))
    assert pump.beside(0) is None
    assert shown(pump.next(0)) == (["a"], 2)


def test_with_claims_apart_time_passes_also_while_an_end_waits_to_be_settled() -> None:
    """The store may be slow to settle: a job that is due meanwhile must not wait for it."""
    pump = apart(2)
    give(pump, 1)
    pump.freed("mail")
    pump.ended(end("a"))
    wait = pump.next(0)
    assert isinstance(wait, Wait)
    pump.woke(wait.until_ms, frozenset())
    assert shown(pump.next(wait.until_ms)) == ([], 2)
