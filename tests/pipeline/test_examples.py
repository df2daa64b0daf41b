"""The Spark examples run as they stand and print what they say they print."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from windlass.pipeline.session import PROFILE_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Captured = pytest.CaptureFixture[str]


def promised(example: Path) -> list[str]:
    """The output that an example's docstring shows."""
    doc = ast.get_docstring(ast.parse(example.read_text())) or ""
    return textwrap.dedent(doc.partition("Prints::")[2]).strip().splitlines()


@pytest.mark.timeout(300)
@pytest.mark.feature("Q11")
@pytest.mark.parametrize("name", ["spark_dataframe_jobs", "spark_replay_payments"])
def test_an_example_prints_what_it_says(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """In this process, whose session it finds running."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == promised(EXAMPLES / f"{name}.py") != []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.feature("Q11")
def test_the_nightly_report_is_a_job(spark_cache: Path, tmp_path: Path) -> None:
    """As it stands, with a JVM of its own."""
    example = EXAMPLES / "spark_nightly_report.py"
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env={**os.environ, PROFILE_VARIABLE: "test"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.stdout.splitlines() == promised(example) != [], done.stderr[-3000:]
    assert done.returncode == 0
