"""A project that uses Celery in 25 ways: its tests pass on Celery and, but for the import, on the shim."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest

from tests.backends.valkey.servers import redis_server, valkey_server
from tests.integrations.support import ROOT, passed, run_pytest

PROJECT = ROOT / "examples" / "celery_shop"
GUIDE = ROOT / "docs" / "migrate" / "celery.md"
WAYS = 25
_IMPORT = re.compile(r"^from celery\b", re.MULTILINE)


def copy(folder: Path, *, shim: bool) -> Path:
    """The project in a folder of its own; for the shim with its imports changed, and nothing else."""
    target = folder / "shop"
    shutil.copytree(PROJECT, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in target.glob("*.py") if shim else ():
        path.write_text(_IMPORT.sub("from windlass.compat.celery", path.read_text()))
    return target


def test_the_guide_lists_the_ways_as_the_tests_name_them() -> None:
    tests = [
        ast.get_docstring(node)
        for node in ast.parse((PROJECT / "test_shop.py").read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    listed = re.findall(r"^\d+\. (.*)$", GUIDE.read_text(), re.MULTILINE)
    assert len(tests) == WAYS
    assert listed == tests


@pytest.mark.service("redis")
def test_the_project_passes_its_tests_on_celery_itself(services: str, tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{redis_server().port}/9"
    done = run_pytest(copy(tmp_path, shim=False), "-p", "no:pytest_windlass", SHOP_BROKER=url)
    assert passed(done) == WAYS


def test_the_project_passes_its_tests_on_the_shim_with_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    assert passed(run_pytest(copy(tmp_path, shim=True), SHOP_BROKER=url)) == WAYS


@pytest.mark.service("valkey")
def test_the_project_passes_its_tests_on_the_shim_with_valkey(services: str, tmp_path: Path) -> None:
    url = f"{valkey_server().url}?namespace=celery-shop"
    assert passed(run_pytest(copy(tmp_path, shim=True), SHOP_BROKER=url)) == WAYS
