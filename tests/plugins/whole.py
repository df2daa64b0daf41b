"""``--whole``: fail a run that leaves out tests.

``scripts/test`` promises that no test is skipped. With this option, skipped tests, tests that are expected to
fail and skipped modules are listed at the end, and the run fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_left_out_key = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("windlass").addoption(
        "--whole", action="store_true", help="fail if any test is skipped or expected to fail"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_left_out_key] = []
    if config.getoption("--whole"):
        config.pluginmanager.register(_Watch(config.stash[_left_out_key]))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash[_left_out_key] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash[_left_out_key]
    if left_out:
        terminalreporter.section("left out, which --whole forbids", sep="=", red=True)
        for line in left_out:
            terminalreporter.line(line)


class _Watch:
    """Collects the tests that were left out."""

    def __init__(self, left_out: list[str]) -> None:
        self._left_out = left_out

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            word = "expected to fail" if hasattr(report, "wasxfail") else "skipped"
            self._left_out.append(f"{report.nodeid}: {word}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._left_out.append(f"{report.nodeid}: skipped when collected")
