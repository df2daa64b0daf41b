"""One command writes a picture of every view."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.screenshots import views
from tests.browser.site import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.service("chromium"), pytest.mark.timeout(240)]


def test_every_view_has_its_picture(pages: None, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    command = [sys.executable, "-m", "tests.browser.screenshots", str(tmp_path), "--only", "light"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=True)
    for name in views({"running": "", "dead": "", "flow": ""}):
        assert (tmp_path / f"{name}-light.png").stat().st_size > 20_000, name
