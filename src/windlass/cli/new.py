"""``windlass new``: writes a small project with tests and deployment files."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from string import Template

import click

from windlass._version import __version__
from windlass.cli.output import Out
from windlass.cli.store_commands import carry_out, examples_epilog

#: Template -> target path; ``{module}`` and ``{name}`` are replaced.
_FILES = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "gitignore.txt": ".gitignore",
    "Containerfile.txt": "Containerfile",
    "deploy/worker.service.txt": "deploy/{name}-worker.service",
    "jobs.py.txt": "{module}/jobs.py",
    "demo.py.txt": "{module}/demo.py",
    "tests/test_jobs.py.txt": "tests/test_jobs.py",
}
_EXAMPLES = """
windlass new shop
windlass new mail-service --into ~/projects
windlass new shop --json
"""


def write_project(name: str, parent: Path) -> list[Path]:
    """Write the project ``name`` into a new folder of ``parent``; returns the files."""
    module = module_name(name)
    folder = parent / name
    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"'{folder}' is there already and not empty. Choose another name.")
    words = {"name": name, "module": module, "version": __version__}
    templates = resources.files("windlass.cli") / "templates"
    written: list[Path] = []
    for source, target in _FILES.items():
        path = folder / target.format(**words)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template((templates / source).read_text()).substitute(words))
        written.append(path)
    package = folder / module / "__init__.py"
    package.write_text("")
    return sorted([*written, package])


def module_name(name: str) -> str:
    """The Python package of a project: ``mail-service`` becomes ``mail_service``."""
    module = name.replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        raise click.UsageError(f"'{name}' cannot name a Python package: use letters, digits and dashes.")
    if module in ("windlass", "tests", "deploy") or module in sys.stdlib_module_names:
        raise click.UsageError(
            f"'{name}' would hide another module of that name. Choose another one, such as '{name}-jobs'."
        )
    return module


@click.command("new", epilog=examples_epilog(_EXAMPLES))
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    help="The parent folder.  [default: this one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def command(name: str, into: Path, as_json: bool, debug: bool) -> None:
    """Write a small project: tasks, tests, README, systemd unit, Containerfile.

    It creates the folder NAME. The tests of the new project pass without changes.
    """
    out = Out(as_json=as_json, debug=debug)

    def work() -> int:
        files = write_project(name, into)
        if as_json:
            out.document({"folder": str(into / name), "files": [str(path) for path in files]})
            return 0
        for path in files:
            out.text(str(path), "dim")
        out.text()
        out.text(f"cd {into / name} && pip install -e '.[dev]' && pytest", "bold")
        out.text(f"windlass worker {module_name(name)}.jobs:app", "bold")
        return 0

    click.get_current_context().exit(carry_out(work, out))
