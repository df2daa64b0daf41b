"""Real servers for tests and benchmarks: started on free ports, stopped by their process id."""

from __future__ import annotations

import contextlib
import time


def show_until_interrupted(url: str) -> None:
    """Print where a server is reached, and keep it running until Ctrl-C."""
    print(url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3_600)
