"""Make the wall clock jump in every process of a storm at once.

The offset is in a file that all processes map into memory. ``install`` adds it to the package's wall clock.
The monotonic clock is not changed, as when a user sets the time of a machine.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

from windlass.core.clock import SYSTEM_CLOCK, SystemClock

_honest_now_ms = SystemClock.now_ms


def own_skew(directory: Path, name: str) -> Skew:
    """The offset of one process alone."""
    return Skew(directory / f"skew-{name}")


class Skew:
    """An offset of the clock in a shared file, in milliseconds."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    @property
    def offset_ms(self) -> int:
        return int.from_bytes(self._memory[:8], "little", signed=True)

    @offset_ms.setter
    def offset_ms(self, value: int) -> None:
        self._memory[:8] = value.to_bytes(8, "little", signed=True)

    def install(self, own: Skew | None = None) -> Callable[[], None]:
        """Add the offset, and an ``own`` one, to the clock of this process; returns an undo function."""

        def now_ms(clock: SystemClock) -> int:
            return _honest_now_ms(clock) + self.offset_ms + (0 if own is None else own.offset_ms)

        SystemClock.now_ms = now_ms  # type: ignore[method-assign, assignment]

        def undo() -> None:
            SystemClock.now_ms = _honest_now_ms  # type: ignore[method-assign]

        return undo


def store_ms(clock: str) -> int:
    """The approximate time of the store. ``clock`` is ``node`` (with the offset) or ``server`` (without)."""
    return SYSTEM_CLOCK.now_ms() if clock == "node" else _honest_now_ms(SYSTEM_CLOCK)
