"""Every code block of the guides runs, and prints what the page says it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.runner import blocks_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUNNER = Path(__file__).with_name("runner.py")
#: Pages with code that needs a server of another system; ``test_migrating.py`` runs them.
WITH_SERVERS = {"migrate/bullmq", "migrate/rq"}
#: Every other page with code in it.
PAGES = [
    name
    for path in sorted(DOCS.rglob("*.md"))
    if blocks_of(path.read_text())
    and (name := path.relative_to(DOCS).as_posix().removesuffix(".md")) not in WITH_SERVERS
]


def run_python(arguments: list[str], directory: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A program of Python in a folder of its own, with a store and our plugin for pytest."""
    url = f"sqlite:///{directory / 'docs.db'}"
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "WINDLASS_URL": url, "PYTEST_PLUGINS": "pytest_windlass", **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=58,
    )


@pytest.mark.feature("Z11")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page: str, tmp_path: Path) -> None:
    run_page(page, tmp_path)


def run_page(page: str, folder: Path, **environment: str) -> None:
    """Run all code of a page, in an empty folder."""
    done = run_python([str(RUNNER), str(DOCS / f"{page}.md")], folder, **environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.split() == [str(len(blocks_of((DOCS / f"{page}.md").read_text()))), "blocks"]


def test_the_pages_are_found() -> None:
    assert len(PAGES) >= 20
    assert {"quickstart", "tutorial", "migrate/celery"} <= set(PAGES)
    assert all(blocks_of((DOCS / f"{page}.md").read_text()) for page in WITH_SERVERS)


def test_the_runner_notices_a_page_that_lies(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)  # -> 3\n```\n")
    done = run_python([str(RUNNER), str(page)], tmp_path)
    assert done.returncode != 0
    assert "printed ['2'], the page says ['3']" in done.stderr


def test_every_relative_link_leads_somewhere() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_test_that_a_claim_names_exists() -> None:
    """``reliability.md`` names the test behind each claim."""
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "reliability.md").read_text()))
    sources = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/windlass_conformance/**/*.py")]
    known = {name for path in sources for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(named) > 20
    assert sorted(named - known) == []


@pytest.mark.feature("Z7")
def test_the_promise_is_written_down() -> None:
    text = (DOCS / "reliability.md").read_text().lower()
    assert [word for word in ("at least once", "idempot", "kill -9", "power") if word not in text] == []


#: Backend -> the page that tells what survives, and words of it.
LOSS_WINDOWS = {
    "memory": ("reliability.md", ["loss window is everything"]),
    "sqlite": ("reliability.md", ["synchronous=full", "synchronous=normal"]),
    "file": ("reliability.md", ["loss window is zero", "synchronous=off"]),
    "valkey": ("valkey.md", ["appendfsync always", "appendfsync everysec"]),
    "redis": ("valkey.md", ["appendfsync always", "appendfsync everysec"]),
    "cluster": ("valkey.md", ["all but what was not replicated yet", "min-replicas-to-write"]),
    "amqp": ("amqp.md", ["persistent, mandatory and confirmed", "at most 64 MB or 7 days"]),
}


@pytest.mark.feature("Z12")
@pytest.mark.parametrize("backend_name", LOSS_WINDOWS)
def test_the_loss_window_of_a_backend_is_written_down(backend_name: str) -> None:
    page, words = LOSS_WINDOWS[backend_name]
    start = (DOCS / "reliability.md").read_text()
    assert f"**{backend_name}**" in start
    assert page == "reliability.md" or f"({page}#" in start
    text = (DOCS / page).read_text()
    assert [word for word in words if word not in text] == []


def test_the_index_names_every_guide() -> None:
    index = (DOCS / "contents.md").read_text()
    assert [
        page.name
        for page in DOCS.glob("*.md")
        if page.name not in ("index.md", "contents.md") and page.name not in index
    ] == []
