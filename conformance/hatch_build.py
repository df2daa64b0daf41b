"""Hatchling's hook: the suite needs the library of its own version, since both follow one contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

OTHERS = ["anyio>=4.12,<5", "hypothesis>=6.120,<7", "opentelemetry-sdk>=1.27,<2", "pytest>=9,<10"]


class LibraryHook(MetadataHookInterface):
    """Pins the library to the version that the build reads from the same file."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling before it writes the metadata."""
        source = Path(self.root, "..", "src", "windlass", "_version.py").read_text(encoding="utf-8")
        found = re.search(r'__version__ = "([^"]+)"', source)
        assert found is not None
        metadata["dependencies"] = [*OTHERS, f"windlass[crypto,otel,prometheus]=={found[1]}"]
