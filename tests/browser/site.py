"""Starts the process behind the pages, and the browser in front of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_END_SECONDS = 20


@dataclass(frozen=True)
class Site:
    """A dashboard that runs."""

    #: Its address, without a slash at the end.
    address: str
    #: The store behind it.
    url: str
    pid: int


def find_chromium() -> str | None:
    """The browser, or None when there is none on this machine."""
    return next((found for name in CHROMIUM if (found := shutil.which(name))), None)


@contextmanager
def serving(url: str, *options: str) -> Iterator[Site]:
    """Run ``tests.browser.serve`` on a store."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.browser.serve", url, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            address = cast("IO[str]", process.stdout).readline().strip()
            if not address:
                raise RuntimeError(f"the dashboard did not start; it ended with {process.wait(_END_SECONDS)}")
            yield Site(address, url, process.pid)
        finally:
            cast("IO[str]", process.stdin).close()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@contextmanager
def chromium() -> Iterator[Browser]:
    """Real Chromium, without a window."""
    found = find_chromium()
    if found is None:
        raise RuntimeError("Chromium is missing (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
