"""``kill -9`` anywhere, with several writers: nothing acknowledged is lost, nothing is settled twice."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.feature("L9", "Z12")]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_writers_killed_at_random_points_lose_nothing(tmp_path: Path, seed: int) -> None:
    """Four times fifty kills; after each round the directory is compared with what was acknowledged."""
    command = [sys.executable, "-m", "tests.backends.file.killing", str(tmp_path / "jobs"), str(seed), "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    told = re.search(r"killed (\d+) added (\d+) of (\d+) completed (\d+)", done.stdout)
    assert told is not None, done.stdout
    killed, added, total, completed = map(int, told.groups())
    assert killed >= 50
    assert 100 < completed <= added <= total
    assert "cut off" in done.stdout, "torn tails were met and reported"
