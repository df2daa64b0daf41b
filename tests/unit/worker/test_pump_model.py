"""The pump: what holds for any history of it. Nothing here waits."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.worker.pump_support import POLL_MS, end, pump_of
from windlass import QueueSpec
from windlass.backend.requests import Claimed
from windlass.core.job import JobRecord
from windlass.worker.pump import AllDone, Check, Exchange, ReconcileStep, Wait


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
            assert step.settlements or step.queues, "a request that asks for nothing"
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
            assert not self.running.total() or pump._fail_fast or pump.until_empty

    @precondition(lambda self: not self.done and len(self.under_way) < 2)
    @rule()
    def next(self) -> None:
        step = self.pump.next(self.now)
        self.note(step)
        if isinstance(step, ReconcileStep):
            assert {*step.tokens} == self.owed - self.sent(), "what is held here must not be given back"
            if not self.under_way:
                self.pump.reconciled()
        elif isinstance(step, Check):
            assert not self.running.total()
            assert not self.owed
            self.pump.checked(empty=False)

    @precondition(lambda self: not self.done and len(self.under_way) == 1)
    @rule()
    def beside(self) -> None:
        wanted = self.pump.wants_second_lane(self.now)
        step = self.pump.next_in_second_lane(self.now)
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
        self.owed -= {one.token for one in exchange.settlements}
        for job in jobs:
            self.pump.began(job.queue)
            self.running[job.queue] += 1

    @precondition(lambda self: self.under_way)
    @rule(cut_off=st.booleans())
    def fail(self, cut_off: bool) -> None:
        """All that is under way fails: the driver leaves the second lane before it goes on."""
        lost = {one.token for exchange in self.under_way for one in exchange.settlements}
        for exchange in self.under_way:
            self.pump.failed(exchange)
        self.under_way.clear()
        if cut_off:
            self.pump.interrupted()
        else:
            self.pump.step_failed(self.now)
        assert lost <= {one.token for one in self.pump.unsettled}, "they are offered again"
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
            self.pump.fail_fast()

    def sent(self) -> set[str]:
        return {one.token for exchange in self.under_way for one in exchange.settlements}

    @invariant()
    def every_end_is_in_one_place(self) -> None:
        if not hasattr(self, "pump"):
            return
        waiting = [one.token for one in self.pump.unsettled]
        sent = [one.token for exchange in self.under_way for one in exchange.settlements]
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
                self.owed -= {one.token for one in step.settlements}
            elif isinstance(step, ReconcileStep):
                self.pump.reconciled()
            elif isinstance(step, Wait):
                self.now = step.until_ms
                self.pump.woke(self.now, frozenset())
            elif isinstance(step, Check):
                self.pump.checked(empty=True)
            else:
                assert not self.owed or self.pump._fail_fast
                return
        raise AssertionError("it never ends")


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
test_any_history_keeps_the_promises_of_the_pump = Model.TestCase
