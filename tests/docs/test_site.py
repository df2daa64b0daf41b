"""The site builds without a warning, without the network, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser.site import chromium
from tools.docs_site import rates

ROOT = Path(__file__).resolve().parents[2]
#: What a browser fetches by itself.
_LOADS = re.compile(
    r"""<(?:script|img|iframe|source)[^>]+src=["']?([^"'\s>]+)|<link[^>]+href=["']?([^"'\s>]+)"""
)
_STYLES = re.compile(r"""url\(["']?(https?:[^)"']+)|@import\s+["'](https?:[^"']+)""")


#: What is wider than the window, and which code has to be scrolled sideways.
_MEASURE = """() => {
  const page = document.documentElement, wide = [];
  if (page.scrollWidth > page.clientWidth) wide.push(`the page has ${page.scrollWidth} px`);
  const code = [...document.querySelectorAll('.md-typeset pre > code')];
  const cut = code.filter(one => one.scrollWidth > one.clientWidth);
  return { wide, cut: cut.map(one => one.textContent.trim().slice(0, 60)) };
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


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


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site, served on a port of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
@pytest.mark.service("chromium")
@pytest.mark.timeout(180)
def test_no_page_is_wider_than_its_window_and_code_fits_a_desktop(site: Path, address: str) -> None:
    found: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        for file in sorted(site.rglob("index.html")):
            name = file.relative_to(site).as_posix()
            page.goto(f"{address}/{name}")
            for width in (1440, 390):
                page.set_viewport_size({"width": width, "height": 900})
                measured = page.evaluate(_MEASURE)
                found += [f"{name} at {width}: {text}" for text in measured["wide"]]
                if width == 1440:
                    found += [f"{name}: code is cut: {text}" for text in measured["cut"]]
    assert found == []


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
