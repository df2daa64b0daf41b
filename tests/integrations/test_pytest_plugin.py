"""The fixtures of the pytest plugin, in a project of its own; and that it leaves others alone."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.integrations.support import ROOT, passed, run_pytest

JOBS = """
from windlass import Windlass

app = Windlass("sqlite:///must-not-be-touched.db")
sent = []


@app.task(queue="mail", max_attempts=2, backoff={"type": "fixed", "delay": 60, "jitter": 0})
async def send_mail(to: str, fail: bool = False) -> None:
    if fail and not sent:
        sent.append("tried")
        raise ConnectionError("not yet")
    sent.append(to)
"""

TESTS = """
import pytest
from jobs import app, send_mail, sent
from windlass import Windlass
from windlass.testing import ManualClock


@pytest.fixture(autouse=True)
def fresh():
    sent.clear()


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_what_was_enqueued(windlass):
    await send_mail.options(delay=60).enqueue("ada")
    await windlass.assert_enqueued(send_mail, args=["ada"], delay=60)
    await windlass.refute_enqueued(send_mail, args=["bob"])
    assert len(await windlass.all_enqueued(windlass.app.queue("mail"))) == 1
    assert await windlass.drain() == 0
    assert await windlass.drain(ahead=60) == 1
    assert sent == ["ada"]


@pytest.mark.anyio
async def test_each_test_has_a_store_of_its_own(windlass):
    assert await windlass.all_enqueued(send_mail) == []


@pytest.mark.anyio
async def test_time_is_the_tests(windlass, windlass_clock):
    assert isinstance(windlass_clock, ManualClock) and windlass.clock is windlass_clock is app.clock
    await send_mail.enqueue("ada", fail=True)
    assert await windlass.drain(ahead=60) == 2
    assert sent == ["tried", "ada"]


def test_plain_functions(windlass):
    send_mail.sync.enqueue("ada")
    windlass.sync.assert_enqueued(send_mail)
    assert windlass.sync.drain() == 1
    windlass.sync.refute_enqueued(send_mail)
    assert windlass.sync.all_enqueued(send_mail) == []
    assert sent == ["ada"]


def test_inline(windlass):
    with windlass.inline():
        send_mail.sync.enqueue("ada")
    assert sent == ["ada"]


def test_the_app_is_as_before():
    assert app.url == "sqlite:///must-not-be-touched.db"
    assert not isinstance(app.clock, ManualClock)
"""


def project(folder: Path, configuration: str = "windlass_app = jobs:app\n") -> Path:
    (folder / "jobs.py").write_text(JOBS)
    (folder / "test_mail.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{configuration}")
    return folder


@pytest.mark.feature("Y4")
def test_the_fixtures_of_a_project(tmp_path: Path) -> None:
    assert passed(run_pytest(project(tmp_path))) == 6
    assert not list(tmp_path.glob("*.db*"))


def test_a_project_that_names_no_app_is_told_what_to_do(tmp_path: Path) -> None:
    done = run_pytest(project(tmp_path, ""), "-k", "inline")
    assert "windlass_app is not set: set it to MODULE:APP in pytest's configuration" in done.stdout


def test_a_run_that_uses_no_fixture_does_not_import_windlass(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\n\ndef test_it():\n    assert 'windlass' not in sys.modules\n"
    )
    assert passed(run_pytest(tmp_path)) == 1


def test_the_plugin_is_registered_under_its_own_name() -> None:
    """So that ``-p pytest_windlass`` and the entry point are one plugin, not two."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"pytest_windlass": "pytest_windlass"}
    command = [sys.executable, "-c", "import pytest_windlass, sys; sys.exit('windlass' in sys.modules)"]
    assert subprocess.run(command, check=False).returncode == 0
