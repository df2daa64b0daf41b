"""The site builds without a warning, without the network, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.docs_site import rates

ROOT = Path(__file__).resolve().parents[2]
#: What a browser fetches by itself.
_LOADS = re.compile(
    r"""<(?:script|img|iframe|source)[^>]+src=["']?([^"'\s>]+)|<link[^>]+href=["']?([^"'\s>]+)"""
)
_STYLES = re.compile(r"""url\(["']?(https?:[^)"']+)|@import\s+["'](https?:[^"']+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "NO_MKDOCS_2_WARNING": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:1"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    return folder


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.feature("Z11")
def test_the_site_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    loaded = {
        found
        for page in pages
        for pair in _LOADS.findall(page.read_text())
        for found in pair
        if found.startswith(("http:", "https:", "//"))
    }
    assert loaded == set()
    styles = [found for sheet in site.rglob("*.css") for found in _STYLES.findall(sheet.read_text())]
    assert styles == []


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_reference_knows_the_public_names(site: Path) -> None:
    import windlass

    text = "".join(page.read_text() for page in (site / "reference").rglob("*.html"))
    missing = [name for name in windlass.__all__ if f"{name}</" not in text and f'.{name}"' not in text]
    assert missing == []


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_charts_and_commands_are_filled_in(site: Path) -> None:
    assert (site / "performance" / "index.html").read_text().count("<svg viewBox") == 2
    commands = (site / "reference" / "commands" / "index.html").read_text()
    assert "windlass import" in commands
    assert "--concurrency" in commands


def test_a_chart_shows_the_figures_of_its_table() -> None:
    table = "| a | wanted | 1,200 to 300 jobs/s | 4 |\n| b | | none | |"
    text = f"# X\n\n## Speed\n\n{table}\n\n## More\n| c | 1 to 2 jobs/s |\n"
    assert rates(text, "Speed") == [("a", 1200, 300)]
    assert rates(text, "Missing") == []
