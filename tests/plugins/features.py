"""Record which rows of the feature ledger a test proves, and on which backend.

A test names its rows with ``@pytest.mark.feature("A1", "H6")``. When it passes, from set-up to
tear-down, the rows count as proved on the backend it ran on. That backend is, in this order: the
parameter or fixture ``harness`` (a name, or an object with ``.name``), the parameter or fixture
``backend_name``, the attribute ``backend_name`` of the test's class or module, the name of its folder below
``tests/backends``. Without any of these the test is independent of backends: it proves rows that the ledger
marks as store-free, and no others.

``@pytest.mark.feature_missing("D10", reason="...")`` marks a test that asserts the refusal of a feature. A
test that runs on many backends declares this while it runs, with the fixture ``declare_missing``. If it names
the missing capability, only rows that need that capability (according to the ledger) count as refused. For
example, a test about flows that also uses cancellation refuses only flows.

The evidence is stored in ``report.user_properties``, so that it reaches the controlling process even if
pytest-xdist runs the tests in other processes. ``--feature-report PATH`` makes that process write it.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tools.features.evidence import ANY_BACKEND, Evidence, RunReport, load_report, save_report
from tools.features.ledger import Ledger, LedgerError, load_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

LEDGER_PATH = Path(__file__).resolve().parents[2] / "docs" / "features.json"
PROPERTY = "windlass_features"
_ledger_key = pytest.StashKey[Ledger]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("windlass")
    group.addoption("--feature-report", metavar="PATH", help="write the evidence for the feature ledger here")
    group.addoption(
        "--feature-report-append", action="store_true", help="add to the report instead of replacing it"
    )
    group.addoption(
        "--second-try", action="store_true", help="these tests failed before: a pass now proves nothing"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ledger_key] = load_ledger(LEDGER_PATH)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuse unknown rows while the module is collected, so the error names the module."""
    try:
        check_marks(metafunc.config.stash[_ledger_key], metafunc.definition)
    except LedgerError as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse unknown rows in the marks of single parameters, which are not known any earlier."""
    for item in items:
        try:
            check_marks(config.stash[_ledger_key], item)
        except LedgerError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from error


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.when in ("setup", "call"):
        note_marks(item)
    return (yield)


@pytest.fixture
def declare_missing(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Say, while the test runs, that its backend lacks the named rows and refuses them."""

    def declare(*rows: str, reason: str, capability: str | None = None) -> None:
        ledger = request.config.stash[_ledger_key]
        ledger.check_ids(rows)
        refused = [row for row in rows if capability is None or ledger.rows[row].needs == capability]
        request.node.add_marker(pytest.mark.feature_missing(*refused, reason=reason))
        request.node.add_marker(pytest.mark.feature_unproved(*rows))

    return declare


def check_marks(ledger: Ledger, node: pytest.Item) -> None:
    """Raise ``LedgerError`` if a mark of ``node`` names an unknown row or has no reason."""
    ledger.check_ids(_rows_of(node.iter_markers("feature")))
    for mark in node.iter_markers("feature_missing"):
        ledger.check_ids(mark.args)
        if not mark.kwargs.get("reason"):
            raise LedgerError("feature_missing needs a reason")


def note_marks(item: pytest.Item) -> None:
    """Store the rows of ``item`` and its backend in ``user_properties``, which its reports contain."""
    missing = _rows_of(item.iter_markers("feature_missing"))
    unproved = {*missing, *_rows_of(item.iter_markers("feature_unproved"))}
    rows = [row for row in _rows_of(item.iter_markers("feature")) if row not in unproved]
    item.user_properties[:] = [entry for entry in item.user_properties if entry[0] != PROPERTY]
    if rows or missing:
        note = {"backend": backend_of(item), "rows": rows, "missing": missing}
        item.user_properties.append((PROPERTY, note))


def backend_of(item: pytest.Item) -> str:
    """The backend that ``item`` runs on, or ``ANY_BACKEND``."""
    callspec = getattr(item, "callspec", None)
    params: dict[str, Any] = callspec.params if callspec is not None else {}
    funcargs: dict[str, Any] = getattr(item, "funcargs", {})
    for source in (params, funcargs):
        for key in ("harness", "backend_name"):
            name = _name_of(source.get(key))
            if name is not None:
                return name
    owners = (getattr(item, "cls", None), getattr(item, "module", None))
    names = (getattr(owner, "backend_name", None) for owner in owners)
    found = next((name for name in names if isinstance(name, str)), None)
    return found or _folder_of(item) or ANY_BACKEND


def _folder_of(item: pytest.Item) -> str | None:
    """``sqlite`` for a test in ``tests/backends/sqlite``."""
    parts = item.path.parts
    for above, below in itertools.pairwise(parts):
        if above == "backends":
            return below if not below.endswith(".py") else None
    return None


def take_report(run: RunReport, report: pytest.TestReport, *, second_try: bool = False) -> None:
    """Add the result of one phase of one test to the evidence of the run.

    In a second try, a test that passes proves no row and refuses none.
    """
    if report.when == "call" and not report.skipped:
        run.tests += 1
    note = dict(report.user_properties).get(PROPERTY)
    if not isinstance(note, dict) or report.skipped:
        return
    if report.when == "call" or report.failed:
        silent = second_try and report.passed
        run.add(
            Evidence(
                test=report.nodeid,
                backend=note["backend"],
                rows=() if silent else tuple(note["rows"]),
                missing=() if silent else tuple(note["missing"]),
                passed=report.passed,
            )
        )


class _Recorder:
    """Collects the evidence in the controlling process, which receives the reports of all others."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._run = RunReport()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        take_report(self._run, report, second_try=self._config.getoption("--second-try"))

    def pytest_sessionfinish(self) -> None:
        target = self._config.getoption("--feature-report")
        if target is None:
            return
        path = self._config.rootpath / target
        whole = load_report(path) if self._config.getoption("--feature-report-append") else RunReport()
        whole.merge(self._run)
        save_report(path, whole)


def _rows_of(marks: Iterable[pytest.Mark]) -> list[str]:
    return [str(row) for mark in marks for row in mark.args]


def _name_of(value: object) -> str | None:
    if isinstance(value, str):
        return value
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else None
