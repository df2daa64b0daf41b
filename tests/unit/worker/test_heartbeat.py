"""What a heartbeat says of its process."""

from __future__ import annotations

from windlass.testing.clock import ManualClock
from windlass.worker.heartbeat import CpuMeter, StackDump


def test_the_use_of_the_processor_is_counted_since_the_last_reading() -> None:
    now_s, used_s = [100.0], [7.0]
    meter = CpuMeter(lambda: now_s[0], lambda: used_s[0])
    assert meter.read() == 0
    now_s[0], used_s[0] = 110.0, 12.0
    assert meter.read() == 50
    now_s[0], used_s[0] = 110.5, 12.5  # too short a time to say anything: the same again
    assert meter.read() == 50
    now_s[0], used_s[0] = 112.0, 15.0
    assert meter.read() == 150  # one processor and a half


async def test_a_dump_of_stacks_is_bounded_and_shown_for_a_minute() -> None:
    clock = ManualClock()
    dump = StackDump(clock)
    assert dump.shown == ""
    assert "test_a_dump_of_stacks_is_bounded" in dump.take()
    await clock.advance(59)
    assert 0 < len(dump.shown) <= 32_000
    await clock.advance(1)
    assert dump.shown == ""
