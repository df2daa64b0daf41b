"""Which tests may run again, and what ``scripts/test`` does with failed tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nested import LEAN
from tools.features.evidence import load_report
from tools.unsteady import MOST, ROOT, UnsteadyError, load, split

pytestmark = pytest.mark.timeout(180)  # some run pytest three times
CAUSE = "the disk of the machine stalls"
SHAKY = "tests/test_it.py::test_shaky"


def entry(name: str, cause: str = CAUSE) -> str:
    return f'[[test]]\nname = "{name}"\ncause = "{cause}"\n'


def test_the_list_of_this_repository_is_valid() -> None:
    assert len(load()) <= MOST


def test_only_listed_tests_run_again() -> None:
    assert split(["a", "b", "c"], {"b": CAUSE}) == (["b"], ["a", "c"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[test]]\nname = "tests/test_it.py::test_a"\n', "must have a name and a cause"),
        (entry("tests/test_it.py::test_a", "busy"), "needs a cause"),
        (entry("test_a"), "must be the whole name of a test"),
        (entry("tests/gone.py::test_a"), "must be the whole name of a test"),
        (entry(SHAKY) * 2, "is listed twice"),
        ("".join(entry(f"tests/test_it.py::test_{n}") for n in range(MOST + 1)), "at most 10 tests"),
    ],
    ids=["no cause", "short cause", "no file", "file gone", "twice", "too many"],
)
def test_a_wrong_list_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").touch()
    path = tmp_path / "unsteady.toml"
    path.write_text(text)
    with pytest.raises(UnsteadyError, match=complaint):
        load(path, root=tmp_path)


SUITE = """
from pathlib import Path
import pytest

TRIED = Path(__file__).with_name("tried")

@pytest.mark.serial
@pytest.mark.feature("A1")
def test_steady():
    pass

@pytest.mark.feature("A5")
def test_shaky():
    with TRIED.open("a") as tried:
        tried.write("x")
    assert TRIED.stat().st_size > 1
"""


class Project:
    """A small repository with our ``scripts/test``, our plugins and a test that fails the first time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tests = folder / "tests"
        tests.mkdir(parents=True)
        (folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts" / "test", folder / "scripts")
        home = Path(sys.executable).parent
        stub = f'export PATH="{home}:$PATH"\ncd "{folder}"\ndie() {{ echo "$*" >&2; exit 1; }}\n'
        (folder / "scripts" / "_env").write_text(stub)
        for name in ("tools", "tests/plugins"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "tests/conftest.py"):
            shutil.copy(ROOT / name, folder / name)
        for name in ("docs", "src"):
            (folder / name).symlink_to(ROOT / name)
        (tests / "test_it.py").write_text(SUITE)
        (tests / "unsteady.toml").touch()

    def allow(self, name: str) -> None:
        (self.folder / "tests" / "unsteady.toml").write_text(entry(name))

    def add_to_conftest(self, text: str) -> None:
        with (self.folder / "tests" / "conftest.py").open("a") as conftest:
            conftest.write(text)

    def test(self) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        return subprocess.run(
            ["bash", "scripts/test", "--fast"],
            cwd=self.folder,
            env={**environment, "WINDLASS_TEST_WORKERS": "0", "PYTEST_ADDOPTS": " ".join(LEAN)},
            capture_output=True,
            text=True,
            check=False,
            timeout=170,
        )

    def proved(self) -> dict[str, tuple[str, ...]]:
        report = load_report(self.folder / ".reports" / "features-fast.json")
        return {entry.test: entry.rows for entry in report.entries.values() if entry.passed}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_failed_test_that_is_not_listed_does_not_run_again(project: Project) -> None:
    done = project.test()
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"failed: {SHAKY}" in done.stdout
    assert "tests: 1 passed, 1 failed" in done.stdout
    assert (project.folder / "tests" / "tried").read_text() == "x"


def test_a_listed_test_may_pass_the_second_time_and_proves_nothing_then(project: Project) -> None:
    project.allow(SHAKY)
    done = project.test()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests: 2 passed, 0 failed" in done.stdout
    assert "temporary files are in /" in done.stdout
    assert (project.folder / ".reports" / "unsteady.txt").read_text() == f"{SHAKY}\n"
    assert project.proved() == {"tests/test_it.py::test_steady": ("A1",), SHAKY: ()}


def test_a_listed_test_that_fails_twice_has_failed(project: Project) -> None:
    project.allow(SHAKY)
    path = project.folder / "tests" / "test_it.py"
    path.write_text(path.read_text().replace("> 1", "> 2"))
    done = project.test()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "tests: 1 passed, 1 failed" in done.stdout
    assert SHAKY not in project.proved()
    assert (project.folder / ".reports" / "unsteady.txt").read_text() == ""


NO_SECOND_TRY = """
def pytest_collection_modifyitems(config, items):
    if config.getoption("--second-try"):
        items.clear()
"""


def test_a_second_try_that_runs_no_test_has_failed(project: Project) -> None:
    project.allow(SHAKY)
    project.add_to_conftest(NO_SECOND_TRY)
    done = project.test()
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"failed: {SHAKY}" in done.stdout
    assert (project.folder / ".reports" / "unsteady.txt").read_text() == ""


FAILS_WITHOUT_A_TEST = """
def pytest_sessionfinish(session):
    if session.config.option.markexpr.startswith("not serial"):
        session.exitstatus = 1
"""


def test_a_part_that_fails_and_names_no_test_has_failed_whatever_another_part_named(project: Project) -> None:
    project.allow(SHAKY)
    project.add_to_conftest(FAILS_WITHOUT_A_TEST)
    path = project.folder / "tests" / "test_it.py"
    path.write_text(path.read_text().replace('@pytest.mark.feature("A5")', "@pytest.mark.serial"))
    done = project.test()
    assert "tests: 2 passed, 0 failed" in done.stdout
    assert done.returncode == 1, done.stdout + done.stderr


def test_a_wrong_list_ends_the_run_before_any_test(project: Project) -> None:
    project.allow("test_shaky")
    done = project.test()
    assert done.returncode == 1
    assert "must be the whole name of a test" in done.stderr
    assert not (project.folder / "tests" / "tried").exists()
