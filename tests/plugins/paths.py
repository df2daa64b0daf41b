"""Count the special paths (``windlass.core.paths``) that the conformance suite takes, per store.

Paths that a test of the suite takes, from set-up to tear-down, count for the store of its harness. The counts
are stored in ``report.user_properties``, so that they reach the controlling process even if pytest-xdist runs
the tests in other processes. ``--path-report PATH`` makes that process add them to a file for
``tools.paths``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tools.paths import add_to_report
from windlass.core.paths import counts

if TYPE_CHECKING:
    from collections.abc import Generator

PROPERTY = "windlass_paths"
_SUITE = "windlass_conformance."
_before_key = pytest.StashKey[dict[str, int]]()
_store_key = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("windlass").addoption(
        "--path-report", metavar="PATH", help="add how often each special path was taken to this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--path-report")
    if target is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config.rootpath / target))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[_before_key] = dict(counts)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    harness: Any = getattr(item, "funcargs", {}).get("harness")
    module: str = getattr(getattr(item, "function", None), "__module__", "")
    if harness is not None and module.startswith(_SUITE):
        item.stash[_store_key] = str(harness.name)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    store = item.stash.get(_store_key, None)
    if call.when == "teardown" and store is not None:
        before: dict[str, int] = item.stash[_before_key]
        taken = {name: count - before[name] for name, count in counts.items() if count > before[name]}
        item.user_properties.append((PROPERTY, {"store": store, "paths": taken}))
    return (yield)


class _Recorder:
    """Adds up the counts in the controlling process, which receives the reports of all others."""

    def __init__(self, path: Any) -> None:
        self._path = path
        self._taken: dict[str, Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        note = dict(report.user_properties).get(PROPERTY)
        if report.when == "teardown" and isinstance(note, dict):
            self._taken.setdefault(note["store"], Counter()).update(note["paths"])

    def pytest_sessionfinish(self) -> None:
        add_to_report(self._path, self._taken)
