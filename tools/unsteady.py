"""``tests/unsteady.toml``: the few tests that ``scripts/test`` may run a second time.

``python -m tools.unsteady FAILED AGAIN`` reads the node ids of failed tests from FAILED, one per line. It
writes those that may run again to AGAIN, and prints the others, which have failed. It exits with 2 if the
list is wrong (more than ten tests, or a test without a cause). Without arguments it only checks the list.

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
    """The list is wrong."""


def load(path: Path = LIST, *, root: Path = ROOT) -> dict[str, str]:
    """Read the tests that may run again, each with its cause. Raises ``UnsteadyError``."""
    found: dict[str, str] = {}
    for number, entry in enumerate(tomllib.loads(path.read_text(encoding="utf-8")).get("test", []), 1):
        if entry.keys() != {"name", "cause"} or not all(isinstance(one, str) for one in entry.values()):
            raise UnsteadyError(f"test {number} must have a name and a cause, both texts, and nothing else")
        name, cause = entry["name"], entry["cause"].strip()
        file, _, test = name.partition("::")
        if not test or not (root / file).is_file():
            raise UnsteadyError(f"{name!r} must be the whole name of a test, as path/to/file.py::test_name")
        if len(cause.split()) < 3:
            raise UnsteadyError(f"{name} needs a cause that says what makes it unsteady")
        if name in found:
            raise UnsteadyError(f"{name} is listed twice")
        found[name] = cause
    if len(found) > MOST:
        raise UnsteadyError(f"at most {MOST} tests may run again, not {len(found)}: fix some of them")
    return found


def split(failed: list[str], unsteady: dict[str, str]) -> tuple[list[str], list[str]]:
    """The tests that may run again, and those that have failed."""
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
