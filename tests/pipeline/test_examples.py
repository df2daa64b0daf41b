"""The Spark examples run as they stand and print what they say they print."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("spark_*.py"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.feature("Q11")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example: Path, spark_cache: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280
    )
    doc = ast.get_docstring(ast.parse(example.read_text())) or ""
    promised = textwrap.dedent(doc.partition("Prints::")[2]).strip().splitlines()
    assert promised
    assert done.stdout.splitlines() == promised, done.stderr[-3000:]
    assert done.returncode == 0


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 3
