"""The example project of Django passes its own tests: settings, commands, what ``django.tasks`` promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.support import ROOT


def manage(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "manage.py", *words],
        cwd=folder,
        env={**os.environ, "SHOP_DATA": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    shutil.copytree(
        ROOT / "examples" / "django_site", folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*")
    )
    return folder


@pytest.mark.feature("Y4", "Y5")
def test_the_project_passes_its_own_tests(site: Path) -> None:
    done = manage(site, "test")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Ran 16 tests in .*\n\nOK$", done.stderr, re.MULTILINE), done.stderr


def test_the_commands_are_there_and_show_the_help_of_windlass(site: Path) -> None:
    help_text = manage(site, "windlass", "--help").stdout
    assert "windlass COMMAND" in help_text
    assert "doctor" in help_text
    assert "--concurrency" in manage(site, "windlass_worker", "--help").stdout


def test_several_processes_load_the_project_by_themselves(site: Path) -> None:
    done = manage(site, "windlass_worker", "--burst", "--processes", "2")
    assert done.returncode == 0, done.stderr
