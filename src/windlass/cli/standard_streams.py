"""The standard streams of a process that was started without some of them, as some supervisors do."""

from __future__ import annotations

import os
import sys

_STANDARD = 3


def open_standard_streams() -> None:
    """Open each standard stream that is closed, on the null device.

    Otherwise the next file or socket gets its number. Then texts for the stream are written into a file of
    the store, and libuv aborts the process when it closes the socket.
    """
    if all(_is_open(number) for number in range(_STANDARD)):
        return
    while (number := os.open(os.devnull, os.O_RDWR)) < _STANDARD:  # the lowest free number
        os.set_inheritable(number, True)  # for child processes, as other standard streams
    os.close(number)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
