"""The example programs run as they stand and print what they say they print."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: The demo is run by scripts/demo, the pipeline's examples by the pipeline's own tests.
EXAMPLES = sorted(
    path
    for path in (ROOT / "examples").glob("*.py")
    if path.name != "demo_app.py" and not path.name.startswith("spark_")
)


def _environment(url: str) -> dict[str, str]:
    return {**os.environ, "WINDLASS_URL": url}


def _promised(path: Path) -> list[str]:
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    return textwrap.dedent(doc.partition("Prints::")[2]).strip().splitlines()


@pytest.mark.parametrize("backend_name", ["memory", "sqlite"])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example: Path, backend_name: str, tmp_path: Path) -> None:
    url = "memory://" if backend_name == "memory" else f"sqlite:///{tmp_path / 'example.db'}"
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env=_environment(url),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    promised = _promised(example)
    assert promised, "say under 'Prints::' what it prints"
    assert done.stdout.splitlines() == promised, done.stderr
    assert done.returncode == 0


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


def test_the_example_of_the_readme_runs_as_written(tmp_path: Path) -> None:
    """``mail.py`` in one process, ``windlass worker mail:app`` in another, on the default SQLite file."""
    (code,) = re.findall(r"```python\n# mail\.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "mail.py").write_text(code)
    environment = {name: value for name, value in os.environ.items() if name != "WINDLASS_URL"}
    worker = subprocess.Popen(
        [sys.executable, "-m", "windlass", "worker", "mail:app"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        done = subprocess.run(
            [sys.executable, "mail.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
    finally:
        worker.terminate()
        worker.communicate(timeout=30)
    assert done.stdout == "sent to ada@example.com\n", done.stderr
    assert worker.returncode == 0
