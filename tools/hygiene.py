"""Search the files of the repository for things that must not be committed.

* the address of a package host, index or mirror: the machine that installs packages configures that;
* a path into a home folder;
* a shell script that does not parse.

Run by ``scripts/check``. Prints one line for each finding; exits with 1 if there are any.

Tests: ``tests/unit/test_hygiene.py``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]

# Written in pieces, so that this file does not contain what it forbids.
_HOSTS = (
    ("py", "pi.", "org"),
    ("python", "hosted.", "org"),
    ("registry.", "npm", "js."),
    ("registry.", "yarn", "pkg."),
    ("static.", "crates", ".io"),
    ("index.", "crates", ".io"),
    ("repo.", "maven", ".apache"),
    ("repo1.", "maven", ".org"),
    ("proxy.", "golang", ".org"),
    ("deb.", "debian", ".org"),
    ("conda.", "anaconda", ".org"),
)
_HOST = re.compile("|".join(re.escape("".join(parts)) for parts in _HOSTS), re.IGNORECASE)
_INDEX_OPTION = re.compile(
    r"(?:index|find|trusted)[-_](?:url|links|host)\s*[=:\s]\s*['\"]?(?:https?:|file:|/)"
)
_HOME = re.compile(r"(?<![\w.])/(?:home|Users)/\w+|(?<![\w./])/root/\w+")
_RULES = (
    (_HOST, "names a package host"),
    (_INDEX_OPTION, "sets a package index"),
    (_HOME, "names a path into a home folder"),
)


def main() -> int:
    """Check every file that is tracked, or not ignored, in the repository."""
    found = [problem for path in project_files(ROOT) for problem in problems(path, ROOT)]
    for line in found:
        print(line)
    return 1 if found else 0


def project_files(root: Path) -> list[Path]:
    """Tracked files, and new ones that are not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    names = sorted(set(filter(None, listing.split("\0"))))
    return [root / name for name in names if (root / name).is_file()]


def problems(path: Path, root: Path) -> Iterator[str]:
    """Yield the problems of one file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return  # not text
    name = path.relative_to(root)
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern, complaint in _RULES:
            if pattern.search(line):
                yield f"{name}:{number}: {complaint}"
    if is_shell(text):
        yield from shell_problems(path, name)


def is_shell(text: str) -> bool:
    """Whether a file is a shell script, by its first line."""
    first = text.partition("\n")[0]
    return first.startswith("#!") and re.search(r"\b(?:ba|da)?sh\b", first) is not None


def shell_problems(path: Path, name: Path) -> Iterator[str]:
    """Yield the syntax errors of a script, without running it."""
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"{name}: does not parse: {done.stderr.strip()}"


if __name__ == "__main__":
    sys.exit(main())
