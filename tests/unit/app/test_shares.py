"""How free slots are split among queues: exact arithmetic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from windlass import ConfigError, QueueSpec, Windlass, Worker
from windlass.backend.requests import ClaimQueue
from windlass.core.job import JobRecord
from windlass.worker.options import Order, to_specs
from windlass.worker.shares import SharePlanner


def _planner(specs: dict[str, Any], order: Order = "weighted", slots: int = 100) -> SharePlanner:
    return SharePlanner(to_specs(specs, slots), order)


def _jobs(given: Counter[str]) -> list[JobRecord]:
    return [
        JobRecord(queue=name, id="x", task="t", payload=b"")
        for name, count in given.items()
        for _ in range(count)
    ]


def _serve(plan: list[ClaimQueue], limit: int, backlog: Counter[str]) -> Counter[str]:
    """What a store gives for a plan: shares first, then up to the caps."""
    given: Counter[str] = Counter()
    for bound in ("share", "cap"):
        for item in plan:
            room = min(getattr(item, bound) - given[item.name], limit - sum(given.values()))
            given[item.name] += max(min(room, backlog[item.name] - given[item.name]), 0)
    return +given


def _run(planner: SharePlanner, claims: list[int], backlog: dict[str, int]) -> Counter[str]:
    left, total = Counter(backlog), Counter[str]()
    for free in claims:
        plan = planner.plan(free, Counter())
        given = _serve(plan, free, left)
        planner.charge(plan, _jobs(given))
        left -= given
        total += given
    return total


@pytest.mark.parametrize("free", [1, 3, 7, 16, 100])
def test_weights_are_met_exactly_while_all_queues_have_work(free: int) -> None:
    planner = _planner({"high": 6, "mid": 3, "low": 1})
    total = _run(planner, [free] * (1_000 // free), dict.fromkeys(("high", "mid", "low"), 10_000))
    jobs = sum(total.values())
    for name, share in (("high", 0.6), ("mid", 0.3), ("low", 0.1)):
        assert abs(total[name] - share * jobs) <= 2, total


def test_equal_queues_take_turns() -> None:
    planner = _planner({"a": 1, "b": 1, "c": 1})
    order = []
    for _ in range(6):
        plan = planner.plan(1, Counter())
        name = max(plan, key=lambda item: item.share).name
        planner.charge(plan, _jobs(Counter({name: 1})))
        order.append(name)
    assert order == ["a", "b", "c", "a", "b", "c"]


def test_a_queue_with_much_work_may_use_what_others_leave() -> None:
    planner = _planner({"busy": 1, "idle": 1})
    assert _run(planner, [10], {"busy": 50}) == {"busy": 10}


def test_an_idle_queue_does_not_save_up_turns() -> None:
    planner = _planner({"busy": 1, "idle": 1})
    _run(planner, [10] * 100, {"busy": 10_000})
    both = _run(planner, [10] * 10, {"busy": 10_000, "idle": 10_000})
    assert abs(both["busy"] - both["idle"]) <= 10, "at most one claim ahead, however long it was idle"


class _Name(str):
    """A queue name that counts how often any name is looked up."""

    looked_up = 0

    def __hash__(self) -> int:
        _Name.looked_up += 1
        return super().__hash__()


def test_a_plan_for_many_queues_does_not_look_at_all_of_them_for_each_slot() -> None:
    queues, free = 1_000, 200
    planner = SharePlanner({_Name(f"q{n}"): QueueSpec() for n in range(queues)}, "weighted")
    _Name.looked_up = 0
    plan = planner.plan(free, Counter())
    assert sum(item.share for item in plan) == free
    assert _Name.looked_up < 20 * (queues + free)


def test_a_queue_that_is_added_late_has_no_arrears() -> None:
    planner = _planner({"old": 1})
    planner = _planner({"old": 1, "other": 1})
    _run(planner, [10] * 50, {"old": 10_000, "other": 10_000})
    planner.add("new", QueueSpec(1))
    assert planner.names == ["old", "other", "new"]
    total = _run(planner, [9] * 10, dict.fromkeys(("old", "other", "new"), 10_000))
    assert total == {"old": 30, "other": 30, "new": 30}


def test_strict_order_serves_earlier_queues_first_always() -> None:
    planner = _planner({"first": 1, "second": 100}, "strict")
    assert _run(planner, [10] * 3, {"first": 25, "second": 100}) == {"first": 25, "second": 5}


def test_a_cap_is_never_planned_over() -> None:
    planner = _planner({"capped": QueueSpec(weight=10, cap=3), "free": 1})
    assert {item.name: item.cap for item in planner.plan(10, Counter())} == {"capped": 3, "free": 10}
    assert {item.name: item.cap for item in planner.plan(10, Counter(capped=2))} == {"capped": 1, "free": 10}
    assert [item.name for item in planner.plan(10, Counter(capped=3))] == ["free"]
    assert [item.name for item in planner.plan(10, Counter(capped=5))] == ["free"]


@pytest.mark.parametrize("order", ["weighted", "strict"])
def test_reserved_slots_are_left_for_their_queue(order: Order) -> None:
    planner = _planner({"bulk": 100, "urgent": QueueSpec(reserve=2)}, order, 10)
    plan = planner.plan(10, Counter())
    assert _serve(plan, 10, Counter(bulk=100)) == {"bulk": 8}
    planner.charge(plan, _jobs(Counter(bulk=8)))
    planner.refill()
    assert _serve(planner.plan(2, Counter(bulk=8)), 2, Counter(bulk=100)) == {}
    assert _serve(planner.plan(2, Counter(bulk=8)), 2, Counter(bulk=100, urgent=5)) == {"urgent": 2}
    assert _serve(planner.plan(1, Counter(bulk=8, urgent=1)), 1, Counter(bulk=9)) == {}


def _fill(planner: SharePlanner, free: int, active: Counter[str], backlog: dict[str, int]) -> Counter[str]:
    """What a worker gets that plans again as long as the planner says that it helps."""
    left, total = Counter(backlog), Counter[str]()
    while free > 0:
        plan = planner.plan(free, active + total)
        given = _serve(plan, free, left)
        total += given
        left -= given
        free -= sum(given.values())
        if not planner.charge(plan, _jobs(given)):
            break
    return total


@pytest.mark.parametrize("order", ["weighted", "strict"])
def test_a_reserve_that_is_in_use_holds_back_nothing_more(order: Order) -> None:
    planner = _planner({"bulk": 1, "urgent": QueueSpec(reserve=2)}, order, 10)
    assert _fill(planner, 8, Counter(urgent=2), {"bulk": 100}) == {"bulk": 8}


@pytest.mark.parametrize("order", ["weighted", "strict"])
def test_with_reserves_shared_slots_that_one_queue_leaves_go_to_the_others(order: Order) -> None:
    planner = _planner({"a": 1, "b": 1, "urgent": QueueSpec(reserve=1)}, order, 9)
    assert _fill(planner, 9, Counter(), {"a": 100}) == {"a": 8}
    planner.refill()
    assert _fill(planner, 1, Counter(a=8), {"a": 100, "urgent": 3}) == {"urgent": 1}


def test_the_sum_of_shares_never_exceeds_the_free_slots() -> None:
    planner = _planner({"a": 5, "b": QueueSpec(2, cap=3), "c": QueueSpec(reserve=2)}, slots=20)
    for free in range(1, 21):
        assert sum(item.share for item in planner.plan(free, Counter())) <= free


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": -1}, "weight"),
        ({"weight": True}, "weight"),
        ({"weight": "2"}, "weight"),
        ({"cap": 0}, "cap"),
        ({"reserve": -1}, "reserve"),
        ({"cap": 2, "reserve": 3}, "reserve"),
    ],
)
def test_bad_specs_are_refused(spec: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        QueueSpec(**spec)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"queues": []}, "at least one queue"),
        ({"queues": ["a b"]}, "queue must be"),
        ({"queues": {"a": QueueSpec(reserve=20)}}, "the queues reserve 20 slots, but the worker has only 16"),
        ({"queues": "a", "concurrency": 0}, "concurrency"),
        ({"queues": "a", "concurrency": True}, "concurrency"),
        ({"queues": "a", "order": "random"}, "order must be weighted or strict"),
        ({"queues": "a", "lease": 0.5}, "lease"),
        ({"queues": "a", "poll": 0}, "poll"),
        ({"queues": "a", "grace": -1}, "grace"),
        ({"queues": "a", "concurency": 3}, "did you mean 'concurrency'"),
        ({"queues": "a", "handler": 5}, "handler must be callable"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_worker_settings_are_refused_at_once(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Worker(url_or_app=Windlass("memory://specs"), **arguments)


def test_queues_may_be_a_name_a_list_weights_or_specs() -> None:
    assert list(to_specs("a", 1)) == ["a"]
    assert to_specs(["a", "b"], 1) == {"a": QueueSpec(), "b": QueueSpec()}
    assert to_specs({"a": 2, "b": QueueSpec(3)}, 1) == {"a": QueueSpec(2), "b": QueueSpec(3)}


def test_a_queue_that_is_added_late_must_not_reserve_slots_that_others_reserve() -> None:
    worker = Worker({"a": 1, "b": QueueSpec(reserve=3)}, url_or_app=Windlass("memory://specs"), concurrency=4)
    with pytest.raises(ConfigError, match="the queues reserve 6 slots, but the worker has only 4"):
        worker.add_queue("c", QueueSpec(reserve=3))
    assert worker.get_queues() == ["a", "b"]
    worker.add_queue("b", QueueSpec(reserve=4))  # replaces its spec
