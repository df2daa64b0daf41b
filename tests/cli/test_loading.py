"""``MODULE:APP``: what is found, and what is said when it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.support import SHOP, Cli
from windlass.cli.app_loading import LoadError, load_app

pytestmark = pytest.mark.feature("X2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to import from; what was imported is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("WINDLASS_URL", "memory://")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("sample"):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("from windlass import Windlass\n" + text)


def test_the_named_app_is_found(folder: Path) -> None:
    write(folder, "sample_one.py", "app = Windlass()\nclass box:\n    inner = Windlass('memory://x')\n")
    assert load_app("sample_one:app").url == "memory://"
    assert load_app("sample_one:box.inner").url == "memory://x"


def test_the_only_app_needs_no_name(folder: Path) -> None:
    write(folder, "sample_pkg/__init__.py", "")
    write(folder, "sample_pkg/jobs.py", "application = Windlass()\nalias = application\n")
    assert load_app("sample_pkg.jobs").url == "memory://"


def test_a_url_replaces_what_the_code_chose(folder: Path) -> None:
    write(folder, "sample_url.py", "app = Windlass('memory://code')\n")
    app = load_app("sample_url:app", "memory://shell")
    assert app.url == "memory://shell"
    assert app.queue("mail").store is app.store


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sample_tow", "There is no module 'sample_tow'.* Did you mean 'sample_two'"),
        ("elsewhere:app", "There is no module 'elsewhere' here"),
        ("sample_two:ap", "'sample_two' has no 'ap'.*Apps in it: first, second"),
        ("sample_two:frst", "Did you mean 'sample_two:first'"),
        ("sample_two:number", "'number' of 'sample_two' is a int, not a Windlass app"),
        ("sample_two", "several apps in 'sample_two'; choose one: sample_two:first, sample_two:second"),
        ("sample_none", "There is no Windlass app in 'sample_none'"),
        ("sample_none:app", "There is no app in it"),
        ("sample_two.py:first", "'sample_two.py' is a path; name the module instead: 'sample_two:first'"),
        ("./shop/sample_two.py", "name the module instead: 'shop.sample_two'"),
        ("no-module:app", "does not name an app"),
    ],
)
def test_wrong_names_get_help(folder: Path, spec: str, message: str) -> None:
    write(folder, "sample_two.py", "first = Windlass()\nsecond = Windlass('memory://b')\nnumber = 3\n")
    write(folder, "sample_none.py", "x = 1\n")
    with pytest.raises(click.UsageError, match=message):
        load_app(spec)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def broken(:\n", r"SyntaxError: .*sample_bad.py, line 2"),
        ("x = 1 / 0\n", r"ZeroDivisionError: division by zero \(sample_bad.py, line 2\)"),
        ("import not_installed_anywhere\n", "No module named 'not_installed_anywhere'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_code_that_fails_is_named_with_its_line(folder: Path, code: str, message: str) -> None:
    write(folder, "sample_bad.py", code)
    with pytest.raises(LoadError, match=message):
        load_app("sample_bad:app")


def test_a_job_that_is_added_for_an_app_has_the_options_of_its_task(folder: Path, cli: Cli) -> None:
    (folder / "sample_of_a_shell.py").write_text(SHOP)
    made = cli.json("enqueue", "images", "boom", "--app", "sample_of_a_shell:app")
    assert cli.job("images", made["id"]).max_attempts == 1
    said = cli("enqueue", "images", "bom", "--app", "sample_of_a_shell:app").stderr
    assert "sample_of_a_shell:app has no task 'bom' (did you mean 'boom'?)" in " ".join(said.split())
    assert "has no task" not in cli("enqueue", "images", "boom", "--app", "sample_of_a_shell:app").stderr


def test_arguments_that_the_task_of_an_app_cannot_take_are_refused(folder: Path, cli: Cli) -> None:
    code = "from windlass import Windlass\napp = Windlass()\n@app.task(queue='nums', name='double')\n"
    write(folder, "sample_of_sums.py", code + "def double(x: int) -> int: return 2 * x\n")
    add = ("enqueue", "nums", "double", "--app", "sample_of_sums:app")
    for given, why in (
        (("--arg", "x=foo"), "argument 'x' of task 'double'"),
        (("--arg", "y=1"), "signature: double(x: int)"),
        ((), "signature: double(x: int)"),
    ):
        assert why in " ".join(cli(*add, *given, code=1).stderr.split())
    assert cli.json("queues") == []
    cli(*add, "--arg", "x=1")
