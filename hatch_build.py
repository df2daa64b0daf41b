"""Hatchling's hook: a wheel always carries the dashboard's pages, built from ``ui/``.

An editable install leaves them out: ``scripts/build-ui`` makes them for those who work on Windlass.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PagesHook(BuildHookInterface[Any]):
    """Builds the pages before a wheel is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling; ``version`` is ``editable`` for editable installs."""
        if version == "editable":
            return
        spec = importlib.util.spec_from_file_location("windlass_ui_build", Path(self.root, "ui", "build.py"))
        assert spec is not None and spec.loader is not None
        pages = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(pages)
        if not pages.is_built():
            self.app.display_info("building the dashboard's pages ...")
            pages.build()
