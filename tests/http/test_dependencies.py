"""What ``pip install windlass[dashboard]`` brings along, and what of it the dashboard can do without."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

backend_name = "memory"

#: Packages that make test data. Litestar 2 requires polyfactory, which requires Faker; see docs/http.md.
TEST_DATA = {"polyfactory", "faker"}
EXPECTED = TEST_DATA | {
    "anyio",
    "certifi",
    "click",
    "cronsim",
    "h11",
    "httpcore",
    "httpx",
    "idna",
    "litestar",
    "litestar-htmx",
    "markdown-it-py",
    "mdurl",
    "msgspec",
    "multidict",
    "multipart",
    "pygments",
    "pyyaml",
    "rich",
    "rich-click",
    "sniffio",
    "typing-extensions",
    "uvicorn",
}
_WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())

import asyncio
import httpx
from windlass.dashboard import create_app
import windlass.dashboard.serve

async def main():
    transport = httpx.ASGITransport(create_app("memory://absent"))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in ("/live", "/api/jobs", "/api/openapi.json"):
            answer = await client.get(path)
            assert answer.status_code == 200, answer.text

asyncio.run(main())
"""


def required(name: str) -> set[str]:
    """All distributions that a requirement brings along, from the metadata of what is installed."""
    found: set[str] = set()
    asked: set[tuple[str, str]] = set()
    todo = [Requirement(name)]
    while todo:
        requirement = todo.pop()
        for extra in requirement.extras or {""}:
            if (requirement.name, extra) in asked:
                continue
            asked.add((requirement.name, extra))
            for text in metadata.requires(requirement.name) or []:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    found.add(canonicalize_name(needed.name))
                    todo.append(needed)
    return found


def test_the_dashboard_brings_along_what_its_documentation_says() -> None:
    new = required("windlass[dashboard]") - EXPECTED
    assert not new, f"is {new} needed at run time, and safe to have? Then list it here"
    gone = TEST_DATA - required("windlass[dashboard]")
    assert not gone, f"{gone} no longer comes along: say so in docs/http.md, and take it out here"


def test_the_dashboard_works_without_the_packages_for_test_data() -> None:
    code = _WITHOUT.replace("{absent!r}", repr(TEST_DATA))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
