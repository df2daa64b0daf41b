"""The check for private names finds each of the ways to reach for one, and leaves our own alone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tools import private_names


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from redis._parsers.hiredis import NOT_ENOUGH_DATA", "redis._parsers.hiredis.NOT_ENOUGH_DATA"),
        (
            "from pika.adapters.utils.io_services_utils import _Transport",
            "pika.adapters.utils.io_services_utils._Transport",
        ),
        ("import _thread", "_thread"),
        ("import ctypes", "ctypes"),
        ("def f(transport):\n    return transport._sock.send(b'')", "_sock"),
        ("def f(connection):\n    connection._reader = None", "_reader"),
        ("def f(connection):\n    return getattr(connection, '_writer', None)", "_writer"),
        (
            "import subprocess\nflags = subprocess._args_from_interpreter_flags()",
            "subprocess._args_from_interpreter_flags",
        ),
        ("import sys\ncount = sys.getrefcount(sys)", "sys.getrefcount"),
        ("def f(row, other):\n    row.__class__ = other", "row.__class__"),
    ],
)
def test_a_private_name_of_another_package_is_found(source: str, name: str) -> None:
    assert [found for _, found, _ in private_names.findings(source, "windlass.api.app")] == [name]


@pytest.mark.parametrize(
    "source",
    [
        "from windlass.core import _hidden",
        "class Own:\n    def __init__(self):\n        self._seen = 1\ndef f(own):\n    return own._seen",
        "import os\nos._exit(0)",
        "def f(pair):\n    return pair._replace(a=1)",
        "from windlass.backends.memory.store import MemoryStore\ndef f(store):\n    return store._load_jobs",
        "class Own(Exception):\n    def f(self):\n        return self.__class__",
    ],
)
def test_what_is_ours_or_documented_is_left_alone(source: str) -> None:
    assert list(private_names.findings(source, "windlass.api.app")) == []


_SUBCLASS = """
import asyncio

class Slots(asyncio.Semaphore):
    def __init__(self):
        super().__init__(3)
        self._mine = 1

    def take_now(self):
        self._value -= self._mine

    def _wake_up_next(self):
        return None
"""


def test_a_subclass_that_uses_the_inside_of_its_parent_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slots_of_a_test.py").write_text(_SUBCLASS)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("slots_of_a_test")
    found = [name for _, name, _ in private_names.findings(_SUBCLASS, "slots_of_a_test")]
    sys.modules.pop("slots_of_a_test")
    assert sorted(found) == ["_wake_up_next", "self._value"]


def test_a_library_that_is_reached_into_must_be_pinned_exactly() -> None:
    project = """
[project]
dependencies = []
optional-dependencies = {{amqp = ["pika{pin}"], spark = ["pyspark[sql]==4.3.0"]}}
"""
    assert private_names.pin_problems(project.format(pin="==1.4.4")) == []
    (problem,) = private_names.pin_problems(project.format(pin=">=1.4,<1.5"))
    assert "pika" in problem and "==" in problem


def test_no_listed_exception_is_out_of_date() -> None:
    used = {
        (module, name)
        for path in (private_names.ROOT / "src").rglob("*.py")
        for module in [private_names.module_name(path)]
        if module in {listed for listed, _ in private_names._NO_OTHER_WAY}
        for _, name, _ in private_names.findings(path.read_text(encoding="utf-8"), module)
    }
    assert used == private_names._NO_OTHER_WAY.keys()
