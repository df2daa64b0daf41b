"""``--failed-list PATH``: append the tests that did not pass to a file, for ``scripts/test``.

The file has one node id per line: failed tests, failed modules, and with ``--whole`` skipped tests. Lines are
only added, so that several runs may share one file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("windlass").addoption(
        "--failed-list", metavar="PATH", help="add the node ids of tests that did not pass to this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--failed-list")
    if target is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(
            FailureList(config.rootpath / target, whole=config.getoption("--whole"))
        )


class FailureList:
    """Collects node ids, in the order in which they failed, and appends them to ``path`` at the end."""

    def __init__(self, path: Path, *, whole: bool) -> None:
        self._path = path
        self._whole = whole
        self._ids: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as lines:
            lines.writelines(f"{node_id}\n" for node_id in self._ids)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed or (self._whole and report.skipped):
            self._ids[report.nodeid] = None
