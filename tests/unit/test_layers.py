"""The import contracts of the engine, its stores and the worker stay without exceptions."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = {f"windlass.{name}" for name in ("worker", "backends", "engine", "backend", "core")}


def _settings() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "tools" / "layers.toml").read_text())["tool"][
        "importlinter"
    ]
    return settings


def test_imports_that_only_type_checkers_see_count_in_the_strict_contracts() -> None:
    assert _settings()["exclude_type_checking_imports"] is False


def test_the_strict_contracts_except_nothing_and_place_every_part_of_the_engine() -> None:
    contracts = {contract["id"]: contract for contract in _settings()["contracts"]}
    assert not any("ignore" in key for one in contracts.values() for key in one)
    assert set(contracts["engine-layers"]["layers"]) >= PARTS


def test_the_check_runs_the_strict_contracts() -> None:
    assert "lint-imports --no-logo --config tools/layers.toml" in (ROOT / "scripts" / "check").read_text()
