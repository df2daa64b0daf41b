"""A handler that child processes can import quickly."""

from __future__ import annotations

import os
import time


def busy() -> int:
    """Work for a while; returns the process that did it."""
    time.sleep(0.4)
    return os.getpid()
