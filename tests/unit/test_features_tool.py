"""The feature ledger: its data, its arithmetic, its command and the plugin that feeds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from tests.nested import LEAN
from tools.features.__main__ import LEDGER, ROOT, main
from tools.features.evidence import ANY_BACKEND, Evidence, RunReport, load_report, save_report
from tools.features.ledger import Ledger, LedgerError, load_ledger
from tools.features.matrix import Status, build_matrix, lost_proofs, new_proofs
from tools.features.render import capabilities_page

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {
    "groups": {"A": "Adding", "N": "Wire"},
    "backends": ["memory", "sqlite"],
    "rows": [
        {"id": "A1", "group": "A", "title": "Add one", "demanded": True},
        {"id": "A2", "group": "A", "title": "Add two | more", "demanded": False},
        {"id": "A3", "group": "A", "title": "Add by prose", "demanded": True, "superseded": "prose"},
        {"id": "N1", "group": "N", "title": "Exchanges", "demanded": True, "backends": ["amqp"]},
        {"id": "N2", "group": "N", "title": "A guide", "demanded": True, "store_free": True},
    ],
}


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    path = tmp_path / "features.json"
    path.write_text(json.dumps(SMALL))
    return path


@pytest.fixture
def ledger(ledger_file: Path) -> Ledger:
    return load_ledger(ledger_file)


pytestmark = pytest.mark.timeout(180)  # some run pytest several times


def run_of(*entries: Evidence) -> RunReport:
    report = RunReport(tests=len(entries))
    for entry in entries:
        report.add(entry)
    return report


def proof(row: str, backend: str = ANY_BACKEND, *, test: str = "t", passed: bool = True) -> Evidence:
    return Evidence(test=test, backend=backend, rows=(row,), passed=passed)


# ------------------------------------------------------------------------------------------ the data


def test_the_ledger_holds_all_rows() -> None:
    ledger = load_ledger(LEDGER)
    assert len(ledger.rows) == 316
    assert list(ledger.groups) == [chr(code) for code in range(ord("A"), ord("Z") + 1)]
    assert sum(row.demanded for row in ledger.rows.values()) == 223


def test_rows_of_a_group_are_numbered_without_gaps() -> None:
    ledger = load_ledger(LEDGER)
    for group in ledger.groups:
        numbers = [int(row.id[1:]) for row in ledger.in_group(group)]
        assert numbers == list(range(1, len(numbers) + 1))


def test_titles_are_unique() -> None:
    titles = [row.title for row in load_ledger(LEDGER).rows.values()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"id": "A1"}, "stand twice"),
        ({"id": "B1"}, "does not fit its group"),
        ({"id": "A01"}, "does not fit its group"),
        ({"title": "x" * 91}, "91 characters"),
        ({"title": ""}, "0 characters"),
        ({"tittle": "x"}, "unknown fields: tittle"),
        ({"id": "C1", "group": "C"}, "unknown group"),
        ({"store_free": True, "backends": ["amqp"]}, "neither stores nor a capability"),
        ({"store_free": True, "needs": "flows"}, "neither stores nor a capability"),
    ],
)
def test_a_wrong_ledger_is_refused(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    wrong = {**SMALL, "rows": [SMALL["rows"][0], {**SMALL["rows"][1], **change}]}
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(wrong))
    with pytest.raises(LedgerError, match=complaint):
        load_ledger(path)


# -------------------------------------------------------------------------------------- the statuses


def test_a_proof_counts_for_its_backend_only(ledger: Ledger) -> None:
    cells = build_matrix(ledger, run_of(proof("A1", "memory"))).cells["A1"]
    assert cells == {"memory": Status.PROVED, "sqlite": Status.ABSENT}


def test_a_proof_without_a_backend_gives_no_cell(ledger: Ledger) -> None:
    cells = build_matrix(ledger, run_of(proof("A1"))).cells["A1"]
    assert set(cells.values()) == {Status.ABSENT}


@pytest.mark.parametrize("backend", [ANY_BACKEND, "memory"])
def test_a_row_that_depends_on_no_store_is_proved_once(ledger: Ledger, backend: str) -> None:
    matrix = build_matrix(ledger, run_of(proof("N2", backend)))
    assert (matrix.free, matrix.proved()) == ({"N2": Status.PROVED}, {"N2": ["any"]})
    assert "N2" not in matrix.cells
    assert "- N2 A guide: yes" in capabilities_page(matrix)


def test_a_row_that_depends_on_no_store_is_absent_without_a_proof(ledger: Ledger) -> None:
    matrix = build_matrix(ledger, run_of(proof("N2", test="a"), proof("N2", test="b", passed=False)))
    assert matrix.free == {"N2": Status.ABSENT}
    assert "- N2 A guide: not there yet" in capabilities_page(matrix)


def test_what_is_proved_and_refused_on_one_backend_is_a_contradiction(ledger: Ledger) -> None:
    refusal = Evidence(test="r", backend="memory", missing=("A1",), passed=True)
    matrix = build_matrix(ledger, run_of(proof("A1", "memory"), proof("A1", "sqlite", test="s"), refusal))
    assert matrix.contradictions == [("A1", "memory", "t", "r")]
    assert matrix.cells["A1"] == {"memory": Status.DECLARED_MISSING, "sqlite": Status.PROVED}


def test_a_refusal_and_a_proof_without_a_backend_are_no_contradiction(ledger: Ledger) -> None:
    refusal = Evidence(test="r", backend="memory", missing=("A1",), passed=True)
    matrix = build_matrix(ledger, run_of(proof("A1"), refusal))
    assert matrix.contradictions == []
    assert matrix.cells["A1"]["memory"] is Status.DECLARED_MISSING


def test_a_failed_test_takes_the_proof_away(ledger: Ledger) -> None:
    report = run_of(proof("A1", "memory", test="a"), proof("A1", "memory", test="b", passed=False))
    assert build_matrix(ledger, report).cells["A1"]["memory"] is Status.ABSENT


def test_a_declared_lack_is_shown_as_such(ledger: Ledger) -> None:
    entry = Evidence(test="t", backend="sqlite", missing=("A1",), passed=True)
    cells = build_matrix(ledger, run_of(entry)).cells["A1"]
    assert cells == {"memory": Status.ABSENT, "sqlite": Status.DECLARED_MISSING}


def test_a_superseded_row_stays_superseded(ledger: Ledger) -> None:
    cells = build_matrix(ledger, run_of(proof("A3"))).cells["A3"]
    assert set(cells.values()) == {Status.SUPERSEDED}


def test_a_row_about_another_backend_is_not_counted(ledger: Ledger) -> None:
    cells = build_matrix(ledger, run_of(proof("N1"))).cells["N1"]
    assert set(cells.values()) == {Status.ELSEWHERE}


def test_lost_and_new_proofs_are_pairs_of_row_and_backend(ledger: Ledger) -> None:
    matrix = build_matrix(ledger, run_of(proof("A1", "memory")))
    before = {"A1": ["sqlite"], "Z9": ["memory"]}
    assert lost_proofs(before, matrix) == [("A1", "sqlite"), ("Z9", "memory")]
    assert new_proofs(before, matrix) == [("A1", "memory")]


def test_reports_survive_a_round_trip_and_merge(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    first = run_of(proof("A1", "memory", test="a"))
    save_report(path, first)
    whole = load_report(path)
    assert whole == first
    whole.merge(run_of(proof("A2", test="b")))
    assert (whole.tests, sorted(whole.entries)) == (2, ["a", "b"])


def test_the_page_escapes_titles_and_gives_reasons(ledger: Ledger) -> None:
    page = capabilities_page(build_matrix(ledger, run_of(proof("A2", "memory"))))
    assert "| A2 | Add two \\| more * | yes |  |" in page
    assert "- A3: prose" in page
    assert "Generated by" in page


# --------------------------------------------------------------------------------------- the command


class Command:
    """The command with all its files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = folder / "report.json"
        self.proved = folder / "proved.json"
        self.page = folder / "page.md"

    def __call__(self, *options: str) -> Result:
        files = ["--ledger", self.folder / "features.json", "--report", self.report]
        files += ["--proved", self.proved, "--page", self.page]
        return CliRunner().invoke(main, [*map(str, files), *options])


@pytest.fixture
def command(ledger_file: Path) -> Command:
    return Command(ledger_file.parent)


def test_without_a_report_every_row_is_listed_as_absent(command: Command) -> None:
    done = command()
    assert done.exit_code == 0
    assert all(row["id"] in done.output for row in SMALL["rows"])
    assert "run scripts/test first" in done.output


@pytest.mark.parametrize("option", ["--check", "--update", "--table"])
def test_without_a_report_nothing_can_be_checked_or_written(command: Command, option: str) -> None:
    done = command(option)
    assert done.exit_code == 1
    assert not command.proved.exists()
    assert not command.page.exists()


def test_check_fails_when_a_proof_is_gone(command: Command) -> None:
    save_report(command.report, run_of(proof("A1", "memory"), proof("A2", test="u")))
    assert command("--update").exit_code == 0
    assert command("--check").exit_code == 0

    save_report(command.report, run_of(proof("A2", test="u")))
    done = command("--check")
    assert done.exit_code == 1
    assert "no longer proved on memory: A1 Add one" in done.output


@pytest.mark.parametrize("option", ["--check", "--update", "--table"])
def test_a_contradiction_fails_and_writes_nothing(command: Command, option: str) -> None:
    refusal = Evidence(test="tests/r.py::r", backend="memory", missing=("A1",), passed=True)
    save_report(command.report, run_of(proof("A1", "memory"), refusal))
    done = command(option)
    assert done.exit_code == 1
    assert "A1 is both proved and refused on memory:\n  t\n  tests/r.py::r" in done.output
    assert not command.proved.exists()
    assert not command.page.exists()


def test_check_mentions_new_proofs_but_passes(command: Command) -> None:
    save_report(command.report, run_of(proof("A1", "memory")))
    done = command("--check")
    assert done.exit_code == 0
    assert "1 new proofs" in done.output


def test_json_holds_every_row_and_status(command: Command) -> None:
    save_report(command.report, run_of(proof("A1", "memory")))
    rows = {row["id"]: row for row in json.loads(command("--json").output)["rows"]}
    assert rows["A1"]["status"] == {"memory": "proved", "sqlite": "absent"}
    assert rows["A3"]["superseded"] == "prose"


def test_what_is_absent_is_listed_demanded_rows_first(command: Command) -> None:
    save_report(command.report, run_of(proof("A1", "memory")))
    lines = command("--absent").output.splitlines()
    assert lines[:2] == ["demanded: 2 rows are absent somewhere", "  A1   Add one (sqlite)"]
    assert lines[2] == "  N2   A guide (any)"
    assert lines[3:] == ["beyond: 1 rows are absent somewhere", "  A2   Add two | more (everywhere)"]


def test_table_writes_the_page(command: Command) -> None:
    save_report(command.report, run_of(proof("A1", "memory")))
    assert command("--table").exit_code == 0
    assert "## A. Adding" in command.page.read_text()


def test_an_unknown_group_is_refused(command: Command) -> None:
    assert command("--group", "Q").exit_code == 2


# ---------------------------------------------------------------------------------------- the plugin

SUITE = """
import pytest

class Harness:
    name = "sqlite"

@pytest.fixture(params=["memory", "file"])
def harness(request):
    return request.param

@pytest.fixture
def backend_name():
    return "memory"

@pytest.mark.feature("A1", "A5")
def test_on_each_harness(harness):
    pass

@pytest.mark.feature("A8")
@pytest.mark.parametrize("harness", [Harness()], ids=["x"])
def test_on_a_harness_object(harness):
    pass

@pytest.mark.feature("A9")
def test_on_a_named_backend(backend_name):
    pass

@pytest.mark.feature("A10")
def test_on_none():
    pass

@pytest.mark.feature("A11", "A12")
def test_refusal(harness, declare_missing):
    if harness == "file":
        declare_missing("A12", reason="not there")

@pytest.mark.feature("A13")
def test_that_fails():
    assert False

@pytest.fixture
def broken():
    yield
    raise RuntimeError

@pytest.mark.feature("A14")
def test_that_fails_afterwards(broken):
    pass

class TestOfOneBackend:
    backend_name = "sqlite"

    @pytest.mark.feature("A18")
    def test_method(self):
        pass
"""


def run_suite(folder: Path, suite: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``suite`` with our plugins in a process of its own."""
    plugins = [
        "tests.plugins.failures",
        "tests.plugins.features",
        "tests.plugins.guards",
        "tests.plugins.whole",
    ]
    backend = "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    (folder / "conftest.py").write_text(f"pytest_plugins = {plugins}\n{backend}")
    (folder / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\n")
    (folder / "test_it.py").write_text(suite)
    arguments = [
        *("-c", "pytest.ini"),
        *("-p", "no:cacheprovider"),
        *LEAN,
        *("-W", "ignore::pytest.PytestUnknownMarkWarning"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )


@pytest.mark.parametrize("spread", ["0", "2"], ids=["one-process", "xdist"])
def test_the_plugin_records_rows_and_backends(tmp_path: Path, spread: str) -> None:
    done = run_suite(tmp_path, SUITE, "-n", spread, "--feature-report", "out.json")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    report = load_report(tmp_path / "out.json")
    found = {(row, e.backend, e.passed) for e in report.entries.values() for row in e.rows}
    assert report.tests == 10
    assert found == {
        ("A1", "memory", True),
        ("A1", "file", True),
        ("A5", "memory", True),
        ("A5", "file", True),
        ("A8", "sqlite", True),
        ("A9", "memory", True),
        ("A10", ANY_BACKEND, True),
        ("A11", "memory", True),
        ("A11", "file", True),
        ("A12", "memory", True),
        ("A13", ANY_BACKEND, False),
        ("A14", ANY_BACKEND, False),
        ("A18", "sqlite", True),
    }
    assert {(row, e.backend) for e in report.entries.values() for row in e.missing} == {("A12", "file")}


@pytest.mark.parametrize(
    ("marks", "complaint"),
    [
        ('@pytest.mark.feature("A1", "A999")', "not in the feature ledger: 'A999'"),
        ('@pytest.mark.feature_missing("D10")', "feature_missing needs a reason"),
        (
            '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.feature("Q99"))])',
            "not in the feature ledger: 'Q99'",
        ),
    ],
)
def test_an_unknown_row_is_an_error_at_collection(tmp_path: Path, marks: str, complaint: str) -> None:
    argument = "x" if "parametrize" in marks else ""
    done = run_suite(tmp_path, f"import pytest\n{marks}\ndef test_it({argument}):\n    pass\n")
    assert done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    assert complaint in done.stdout + done.stderr


def test_a_whole_run_may_leave_nothing_out(tmp_path: Path) -> None:
    skip = "import pytest\n@pytest.mark.skip(reason='later')\n"
    suite = f"{skip}def test_it():\n    pass\ndef test_other():\n    pass\n"
    assert run_suite(tmp_path, suite).returncode == pytest.ExitCode.OK
    done = run_suite(tmp_path, suite, "--whole")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "test_it.py::test_it: skipped" in done.stdout


@pytest.mark.parametrize("spread", ["0", "2"], ids=["one-process", "xdist"])
def test_what_did_not_pass_is_listed_and_can_be_run_again(tmp_path: Path, spread: str) -> None:
    listed = tmp_path / "failed.txt"
    done = run_suite(tmp_path, SUITE, "-n", spread, "--failed-list", str(listed))
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    names = [f"test_it.py::{name}" for name in ("test_that_fails", "test_that_fails_afterwards")]
    assert sorted(listed.read_text().splitlines()) == names
    again = run_suite(tmp_path, SUITE, "-n", "0", f"@{listed}", "-rA")
    assert again.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed, 1 error" in again.stdout


def test_with_whole_the_list_has_what_was_left_out(tmp_path: Path) -> None:
    suite = "import pytest\n@pytest.mark.skip(reason='later')\ndef test_it():\n    pass\n"
    run_suite(tmp_path, suite, "--whole", "--failed-list", "failed.txt")
    assert (tmp_path / "failed.txt").read_text() == "test_it.py::test_it\n"


LEAKS = """
import asyncio, threading
import pytest

stop = threading.Event()

@pytest.fixture
async def owner():
    task = asyncio.create_task(asyncio.Event().wait())
    yield task
    task.cancel()

async def test_task_of_a_fixture(owner):
    assert not owner.done()

async def test_task():
    globals()["kept"] = asyncio.create_task(asyncio.Event().wait(), name="stray-task")

@pytest.mark.keeps_threads("known-*", reason="ends with the process")
def test_known_thread():
    threading.Thread(target=stop.wait, name="known-thread", daemon=True).start()

def test_thread():
    import tests.plugins.guards as guards
    guards.THREAD_TIMEOUT = 0.01
    threading.Thread(target=stop.wait, name="stray-thread", daemon=True).start()
"""


def test_what_a_test_leaves_behind_fails_it(tmp_path: Path) -> None:
    done = run_suite(tmp_path, LEAKS, "-rA")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "tasks left behind: stray-task" in done.stdout
    assert "threads left behind: stray-thread" in done.stdout
    assert "4 passed, 2 errors" in done.stdout
