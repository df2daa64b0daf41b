"""Real servers for tests and benchmarks. They are started on free ports and stopped by process id."""

from __future__ import annotations

import contextlib
import time


def show_until_interrupted(url: str) -> None:
    """Print the URL of a server, and keep it running until Ctrl-C."""
    print(url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3_600)
