"""A pytest plugin that saves the coverage of a process at the end of its tests: ``-p tools.save_coverage``.

``tools/branches.py`` uses it. Coverage saves by itself only when a process exits, and pytest-xdist kills
processes that need more than ten seconds for that, which happens on a busy machine. Half of the tests would
then count as never run, without a message.
"""

from __future__ import annotations

import coverage
import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Save what was measured so far, if this process is measured."""
    if (measuring := coverage.Coverage.current()) is not None:
        measuring.save()
