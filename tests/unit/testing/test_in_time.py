"""``in_time`` counts a call that blocks the event loop, but not the time of a process that does not run."""

from __future__ import annotations

import asyncio
import time

import pytest

from windlass_conformance.stage import Standstill, in_time


async def test_a_call_that_blocks_the_event_loop_counts_in_full() -> None:
    async def block() -> None:
        time.sleep(0.5)  # noqa: ASYNC251 - what is measured

    assert await in_time(block()) > 0.3


async def test_the_time_in_which_the_process_stands_still_does_not_count() -> None:
    began = time.monotonic()
    child = await asyncio.create_subprocess_exec(
        "sh", "-c", "kill -STOP $PPID; sleep 1; kill -CONT $PPID", start_new_session=True
    )
    counted = await in_time(child.wait())
    assert counted < time.monotonic() - began - 0.8


def stood_still(*stalls: tuple[float, float]) -> Standstill:
    """A machine that stood still at these times only, among the first ten seconds."""
    machine = Standstill()
    wake = 0.0
    for began, ended in (*stalls, (10.0, 10.0)):
        while wake + machine.TICK < began:
            machine.wakes.append(wake)
            wake += machine.TICK / 2
        machine.wakes.append(began - machine.TICK)
        wake = ended
    machine.wakes.append(wake)
    return machine


def test_only_the_time_that_a_stall_of_the_machine_shares_is_left_out() -> None:
    machine = stood_still((1.0, 3.0), (5.0, 6.0))
    for began, ended, want in ((0, 10, 3), (0, 1, 0), (3, 5, 0), (2, 2.5, 0.5), (2, 5.5, 1.5), (7, 9, 0)):
        assert machine.within(began, ended) == pytest.approx(want), (began, ended)


def test_a_stall_of_the_machine_hides_no_stall_of_the_loop_at_another_time() -> None:
    machine = stood_still((1.0, 3.0))
    assert machine.longest_other([(1.0, 3.0), (4.0, 4.5), (8.0, 8.1)]) == pytest.approx(0.5)
    assert machine.longest_other([(0.9, 3.0)]) == pytest.approx(0.1)
    assert machine.longest_other([]) == 0


def test_a_thread_that_is_overdue_stands_still_until_now() -> None:
    machine = Standstill()
    machine.wakes += [0.0, machine.TICK]
    assert machine.within(0.0, 2.0) == pytest.approx(2.0 - 2 * machine.TICK)
