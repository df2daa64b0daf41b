"""The example of a backend of one's own keeps the contract, and refuses what it declares missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from windlass.backend.urls import register_scheme
from windlass_conformance import Harness, UrlHarness, contract_tests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_backend.py"


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    spec = importlib.util.spec_from_file_location("own_backend", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_backend", module)
    monkeypatch.setattr("windlass.backend.urls._SCHEMES", {})
    spec.loader.exec_module(module)
    monkeypatch.setattr("os.fsync", lambda fd: None)  # what survives power is not the question here
    register_scheme("diary", "own_backend")
    async with UrlHarness("diary", f"diary://{tmp_path}") as started:
        yield started


globals().update(contract_tests())
