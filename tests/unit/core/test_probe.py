"""Probes: free when nobody looks, exact when somebody does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from windlass.core.probe import Probe, install, reach

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def probe() -> Iterator[Probe]:
    probe = Probe()
    before = install(probe)
    yield probe
    install(before)


def test_without_a_probe_a_point_does_nothing() -> None:
    reach("anywhere", fact=1)


def test_points_are_counted_by_name(probe: Probe) -> None:
    for point in ("a", "b", "a"):
        reach(point)
    assert (probe.count("a"), probe.count("b"), probe.count("c")) == (2, 1, 0)


def test_an_armed_action_runs_so_many_times_with_the_facts(probe: Probe) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    probe.arm("a", lambda point, facts: seen.append((point, facts)), times=2)
    for n in range(3):
        reach("a", n=n)
    assert seen == [("a", {"n": 0}), ("a", {"n": 1})]


def test_actions_run_in_the_order_they_were_armed(probe: Probe) -> None:
    seen: list[str] = []
    probe.arm("a", lambda point, facts: seen.append("first"))
    probe.arm("a", lambda point, facts: seen.append("second"))
    reach("a")
    reach("a")
    assert seen == ["first", "second"]


def test_an_action_may_raise_through_the_point(probe: Probe) -> None:
    def fail(point: str, facts: dict[str, Any]) -> None:
        raise RuntimeError(point)

    probe.arm("a", fail)
    with pytest.raises(RuntimeError, match="a"):
        reach("a")
    assert probe.count("a") == 1


def test_a_thread_can_wait_for_a_point(probe: Probe) -> None:
    def pass_by() -> None:
        for _ in range(3):
            reach("a")

    thread = threading.Thread(target=pass_by)
    thread.start()
    probe.wait("a", count=3, timeout=5)
    thread.join()
    with pytest.raises(TimeoutError, match="3 times, not 4"):
        probe.wait("a", count=4, timeout=0.01)


def test_installing_gives_back_the_probe_before() -> None:
    one, two = Probe(), Probe()
    before = install(one)
    assert install(two) is one
    assert install(before) is two
