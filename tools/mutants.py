"""``python -m tools.mutants [ROW ...]``: do the tests of a feature notice a defect in it?

A row of the capability table is only as good as its tests. ``tools/mutants.toml`` lists small defects, each
with the row that it breaks and the tests that must fail. A copy of the package gets one defect at a time. The
tests run once without it (they must pass) and once with it (one must fail). Prints a table; fails if a defect
was not noticed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import click
import msgspec

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutants.toml"
_PASSED, _FAILED = 0, 1


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One defect: ``old`` in ``file`` (below ``src``) becomes ``new``, and ``tests -k select`` must fail."""

    row: str
    what: str
    file: str
    old: str
    new: str
    tests: str
    select: str


def load(path: Path = LIST) -> list[Mutant]:
    """All defects of the list."""
    return msgspec.convert(tomllib.loads(path.read_text())["mutant"], list[Mutant])


def stale(mutants: list[Mutant], source: Path = ROOT / "src") -> list[str]:
    """Defects that no longer fit the code, because their text occurs not exactly once."""
    found = []
    for mutant in mutants:
        count = (source / mutant.file).read_text().count(mutant.old)
        if count != 1 or mutant.old == mutant.new:
            found.append(f"{mutant.row}, {mutant.what}: {count} places in {mutant.file}")
    return found


def run(mutant: Mutant, source: Path) -> int:
    """The exit code of pytest over the tests of a defect, with the package below ``source``."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-x", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        [*command, mutant.tests, "-k", mutant.select],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
    )
    return run.returncode


def verdict(mutant: Mutant, source: Path, *, check: bool) -> str:
    """Whether the tests notice one defect. With ``check`` they must first pass without it."""
    if check and run(mutant, source) != _PASSED:
        return "the tests fail without the defect, or there are none"
    file = source / mutant.file
    whole = file.read_text()
    file.write_text(whole.replace(mutant.old, mutant.new))
    try:
        code = run(mutant, source)
    finally:
        file.write_text(whole)
    return {_FAILED: "caught", _PASSED: "SURVIVED"}.get(code, f"pytest ended with {code}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("rows", nargs=-1)
@click.option("--check/--no-check", default=True, help="Run the tests without each defect first.")
def main(rows: tuple[str, ...], check: bool) -> None:
    """Insert defects into the features of the capability table (or these ROWS), and check that tests fail."""
    mutants = load()
    if stale(mutants):
        raise click.ClickException("does not fit the code any more: " + "; ".join(stale(mutants)))
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        for mutant in mutants:
            if not rows or mutant.row in rows:
                found = verdict(mutant, source, check=check)
                survived += found != "caught"
                click.echo(f"{mutant.row:<5} {mutant.what:<70} {found}")
    if survived:
        raise click.ClickException(f"{survived} defects were not noticed, or could not be tried")


if __name__ == "__main__":
    main()
