"""``tests/unsteady.toml``: the few tests that ``scripts/test`` may try once more.

``python -m tools.unsteady FAILED AGAIN`` reads what failed, one node id in each line, writes what may be
tried again to AGAIN and prints the rest: those have failed. A wrong list (more than ten tests, one without a
cause) ends it with 2 before anything is tried.

Independent of the package: it must work while the package does not import.

Tests: ``tests/unit/test_unsteady.py``.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "unsteady.toml"
MOST = 10


class UnsteadyError(ValueError):
    """The list is not what it must be."""


def load(path: Path = LIST, *, root: Path = ROOT) -> dict[str, str]:
    """The tests that may be tried again, each with its cause; ``UnsteadyError`` when the list is wrong."""
    found: dict[str, str] = {}
    for number, entry in enumerate(tomllib.loads(path.read_text(encoding="utf-8")).get("test", []), 1):
        if entry.keys() != {"name", "cause"} or not all(isinstance(one, str) for one in entry.values()):
            raise UnsteadyError(f"test {number} must have a name and a cause, both texts, and nothing else")
        name, cause = entry["name"], entry["cause"].strip()
        file, _, test = name.partition("::")
        if not test or not (root / file).is_file():
            raise UnsteadyError(f"{name!r} must be the whole name of a test, as path/to/file.py::test_name")
        if len(cause.split()) < 3:
            raise UnsteadyError(f"{name} must say what makes it unsteady")
        if name in found:
            raise UnsteadyError(f"{name} stands twice")
        found[name] = cause
    if len(found) > MOST:
        raise UnsteadyError(f"at most {MOST} tests may be tried again, not {len(found)}: repair some")
    return found


def split(failed: list[str], unsteady: dict[str, str]) -> tuple[list[str], list[str]]:
    """What may be tried again, and what has failed."""
    again = [name for name in failed if name in unsteady]
    return again, [name for name in failed if name not in unsteady]


def main(arguments: list[str]) -> int:
    try:
        unsteady = load()
    except (UnsteadyError, tomllib.TOMLDecodeError) as error:
        print(f"{LIST.relative_to(ROOT)}: {error}", file=sys.stderr)
        return 2
    if arguments:
        source, target = map(Path, arguments)
        again, lost = split(source.read_text(encoding="utf-8").splitlines(), unsteady)
        target.write_text("".join(f"{name}\n" for name in again), encoding="utf-8")
        for name in lost:
            print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
