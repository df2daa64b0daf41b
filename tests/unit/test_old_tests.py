"""``tools.old_tests``: which failures of older tests are known, and which are not."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tools import old_tests
from tools.old_tests import LIST, complaints, expected, failed, main

OUTPUT = """
FAILED tests/a.py::test_one[memory] - AssertionError: ...
FAILED tests/a.py::test_one[sqlite] - AssertionError: ...
ERROR tests/a.py::test_two - windlass.errors.ConfigError
2 failed, 1 error in 0.1s
"""


def test_failures_are_read_without_their_parameters() -> None:
    assert failed(OUTPUT) == {"tests/a.py::test_one", "tests/a.py::test_two"}


def test_a_file_that_cannot_be_imported_has_failed() -> None:
    output = (
        "ERROR tests/http/x.py - ImportError: cannot import name\nERROR tests/y.py\nERROR: not found: z.py\n"
    )
    assert failed(output) == {"tests/http/x.py", "tests/y.py"}


@pytest.mark.parametrize(
    ("output", "code", "complaint"),
    [
        ("", 2, "pytest could not run the tests: it ended with code 2"),
        ("", -11, "pytest could not run the tests: it ended with code -11"),
        ("1 failed", 1, "pytest says that tests failed, and names none"),
    ],
    ids=["interrupted", "crash", "no names"],
)
def test_a_run_that_names_no_failed_test_is_no_success(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str,
    code: int,
    complaint: str,
) -> None:
    monkeypatch.setattr(old_tests, "run", lambda *given: (output, code))
    assert main(["-k", "some"]) == 1
    assert complaint in capsys.readouterr().out
    monkeypatch.setattr(old_tests, "run", lambda *given: ("1 passed", 0))
    assert main(["-k", "some"]) == 0


def test_a_wrong_argument_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(old_tests, "unpack", lambda *given: None)
    assert main(["-p", "no:cacheprovider", "--no-such-option"]) == 1
    assert "it ended with code 4" in capsys.readouterr().out


def test_what_is_not_listed_and_what_passes_again_is_named() -> None:
    causes = expected(
        {"cause": [{"why": "a change", "tests": ["tests/a.py::test_one", "tests/a.py::test_3"]}]}
    )
    assert complaints(failed(OUTPUT), causes, whole=True) == [
        "fails, and no cause is listed: tests/a.py::test_two",
        "listed, but passes: tests/a.py::test_3",
    ]
    assert complaints({"tests/a.py::test_one"}, causes, whole=False) == []


def test_no_test_has_two_causes() -> None:
    listed = tomllib.loads(LIST.read_text())
    names = [name for cause in listed["cause"] for name in cause["tests"]]
    assert len(names) == len(set(names))


def test_the_output_of_an_earlier_run_can_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = next(iter(expected(tomllib.loads(LIST.read_text()))))
    output = tmp_path / "pytest.log"
    output.write_text(f"FAILED {known}[memory] - AssertionError\nFAILED tests/new.py::test_new\n")
    assert main(["--output", str(output)]) == 1
    shown = capsys.readouterr().out
    assert "fails, and no cause is listed: tests/new.py::test_new" in shown
    assert "1 tests: " in shown
