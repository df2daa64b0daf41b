"""The Spark examples run as they stand and print what they say they print."""

from __future__ import annotations

import ast
import json
import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


@pytest.mark.timeout(300)
@pytest.mark.feature("Q11")
def test_the_notebook_goes_from_jobs_to_a_chart(spark: SparkSession, capsys: Captured) -> None:
    """Its cells one after the other, but for the one that installs."""
    notebook = json.loads((EXAMPLES / "lake_to_chart.ipynb").read_text())
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and "install" not in cell["metadata"].get("tags", []):
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert capsys.readouterr().out == "300 attempts are in the lake\n"
    found = dict(names["outcomes"].itertuples(index=False))
    assert found == {"completed": 270, "failed": 30}
    assert names["errors"]["occurrences"].sum() == 30 and len(names["attempts"]) == 300
    assert sum(names["counts"]["failed"]) == 30
    assert "<svg" in names["charts"].stacked(names["windows"], 60_000, names["counts"])
