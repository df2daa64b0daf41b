"""Detects changes of an app's source files, by their times and sizes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
#: A limit on the number of files, in case the root is wrong.
_MOST_FILES = 20_000


class SourceWatch:
    """The ``.py`` files of a module's package, or of its folder if it is a single file."""

    def __init__(self, module: str) -> None:
        self._roots = _roots(module)
        self._seen = self._snapshot()

    def changed(self) -> list[str]:
        """Names of files that were changed, added or removed since the last call."""
        before, self._seen = self._seen, self._snapshot()
        paths = before.keys() | self._seen.keys()
        different = (path for path in paths if before.get(path) != self._seen.get(path))
        return sorted(os.path.relpath(path) for path in different)

    def _snapshot(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for root, deep in self._roots:
            for path in _sources(root, deep):
                try:
                    facts = path.stat()
                except OSError:
                    continue  # removed meanwhile
                found[str(path)] = (facts.st_mtime_ns, facts.st_size)
                if len(found) >= _MOST_FILES:
                    return found
        return found


def _roots(module: str) -> list[tuple[Path, bool]]:
    """Folders to watch, and whether to include their subfolders."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return [(Path.cwd(), False)]
    if spec.submodule_search_locations:
        return [(Path(folder), True) for folder in spec.submodule_search_locations]
    return [(Path(spec.origin).parent, False)] if spec.origin else [(Path.cwd(), False)]


def _sources(root: Path, deep: bool) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if deep and name not in _SKIPPED and not name.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                yield Path(folder, name)
