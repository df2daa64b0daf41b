"""A wheel carries the pages, is built without any Node, and brings a new user to the dashboard."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.browser.site import ROOT, chromium
from tests.docs.runner import blocks_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.service("packages"),
    pytest.mark.service("chromium"),
    pytest.mark.timeout(900),
]


def sources(folder: Path) -> Path:
    """A copy of what the repository holds: no built pages, no installed packages of Node."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listing.split("\0")):
        if name.startswith(("src/", "ui/")) or name in (
            "pyproject.toml",
            "hatch_build.py",
            "README.md",
            "LICENSE",
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def without_node() -> dict[str, str]:
    """The environment, with a PATH that leads to no Node."""
    folders = [
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not any(Path(folder, name).exists() for name in ("node", "npm"))
    ]
    return {**os.environ, "PATH": os.pathsep.join(folders)}


def build(what: Path, into: Path, environment: dict[str, str]) -> Path:
    """A wheel of ``what``, made in an environment of its own."""
    into.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(into),
        str(what),
    ]
    subprocess.run(command, env=environment, check=True)
    (wheel,) = into.glob("windlass-*.whl")
    return wheel


def pages_in(wheel: Path) -> dict[str, bytes]:
    """The files of the pages, by name."""
    with zipfile.ZipFile(wheel) as archive:
        assert not any("node_modules" in name for name in archive.namelist())
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if name.startswith("windlass/dashboard/static/")
        }


def test_from_a_checkout_to_a_job_in_the_dashboard(tmp_path: Path) -> None:
    """One test, since each step needs what the one before has built."""
    tree = sources(tmp_path / "tree")
    assert shutil.which("node", path=without_node()["PATH"]) is None
    wheel = build(tree, tmp_path / "wheel", without_node())
    pages = pages_in(wheel)
    assert any(name.endswith(".js") for name in pages)
    assert any(name.endswith(".css") for name in pages)
    assert b"<title>" in pages["windlass/dashboard/static/index.html"]
    assert pages_in(by_way_of_a_source_distribution(tree, tmp_path)) == pages
    (tmp_path / "empty").mkdir()
    follow_the_quickstart(wheel, tmp_path / "empty")


def by_way_of_a_source_distribution(tree: Path, folder: Path) -> Path:
    """A wheel made from the source distribution, where no package of Node can be had."""
    pack = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder)]
    subprocess.run(pack, cwd=tree, check=True, capture_output=True)
    (archive,) = folder.glob("windlass-*.tar.gz")
    nowhere = without_node() | {"npm_config_registry": "http://127.0.0.1:9/", "npm_config_offline": "true"}
    return build(archive, folder / "from-source", nowhere)


def follow_the_quickstart(wheel: Path, folder: Path) -> None:
    """Every command up to the dashboard, as the page has them, in an empty folder and a new environment."""
    subprocess.run([sys.executable, "-m", "venv", ".venv"], cwd=folder, check=True)
    bin_folder = folder / ".venv" / "bin"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WINDLASS"))
    }
    environment |= {
        "PATH": f"{bin_folder}{os.pathsep}{without_node()['PATH']}",
        "VIRTUAL_ENV": str(bin_folder.parent),
    }
    page = (ROOT / "docs" / "quickstart.md").read_text()
    upto = page[: page.index("Or use the command line")].replace("<!-- not run -->", "")
    (program,) = [block.code for block in blocks_of(upto) if block.kind == "python"]
    (folder / "mail.py").write_text(program)
    commands = [line for block in blocks_of(upto) if block.kind == "sh" for line in block.code.splitlines()]
    assert commands == [
        "pip install 'windlass[dashboard]'",
        "windlass worker mail:app",
        "python mail.py",
        "windlass dashboard",
    ]
    install = [str(bin_folder / "pip"), "install", "--quiet", f"{wheel}[dashboard]"]
    subprocess.run(install, cwd=folder, env=environment, check=True)
    with ExitStack() as stack:
        worker = stack.enter_context(running(["windlass", "worker", "mail:app"], folder, environment))
        while "serves mail" not in line_of(worker):  # its log; the program below waits for 10 s only
            pass
        ran = subprocess.run(
            [str(bin_folder / "python"), "mail.py"],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "sent 'Hello' to ada@example.com" in ran.stdout
        job_id = ran.stdout.split()[1]
        # Any free port: the one of the page may be taken here.
        dashboard = stack.enter_context(
            running(["windlass", "dashboard", "--port", "0", "--json"], folder, environment)
        )
        address = ""
        while not address.startswith("{"):
            address = line_of(dashboard)
        address = json.loads(address)["url"]
        view = stack.enter_context(chromium()).new_page()
        view.goto(f"{address}job-queues")
        view.get_by_role("link", name="mail", exact=True).first.wait_for()
        view.goto(f"{address}jobs/mail/{job_id}")
        view.get_by_role("heading", name="mail.send_mail").wait_for()
        view.get_by_text("sent 'Hello' to ada@example.com").first.wait_for()


@contextmanager
def running(words: list[str], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A command of the new environment, until the block ends."""
    name, *rest = words
    process = subprocess.Popen(
        [str(folder / ".venv" / "bin" / name), *rest],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that it writes."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"it ended with {process.wait(20)}"
    return line
