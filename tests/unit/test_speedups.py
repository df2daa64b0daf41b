"""Speed-ups can be turned off, and each plain twin does the same."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pika import BasicProperties
from pika.exceptions import ChannelWrongStateError

from tools import private_names
from windlass import speedups
from windlass.backends.file.effects import JobRow
from windlass.core.job import JobRecord
from windlass.errors import ConfigError
from windlass.speedups import amqp, amqp_frames, recast

# --- the switch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "off"),
    [
        ("", set()),
        ("off", set(speedups.NAMES)),
        (" OFF ", set(speedups.NAMES)),
        ("amqp", {"amqp"}),
        ("amqp, recast,", {"amqp", "recast"}),
    ],
)
def test_the_variable_turns_off_all_or_some(text: str, off: set[str]) -> None:
    assert speedups.read_off(text) == off


def test_a_name_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=rf"WINDLASS_SPEEDUPS.*{', '.join(speedups.NAMES)}.*speed"):
        speedups.read_off("speed,amqp")


def test_every_module_is_a_speed_up_with_a_name_and_says_what_it_must() -> None:
    folder = Path(speedups.__file__).parent
    modules = {path.stem: path.read_text() for path in folder.glob("*.py") if path.stem != "__init__"}
    assert modules.keys() - {"amqp_frames"} == set(speedups.NAMES)
    for name in speedups.NAMES:
        for part in ("**What.**", "**Why it is safe.**", "**Its plain twin**", "**What it wins**"):
            assert part in modules[name]


_PAGE = Path(__file__).parents[2] / "docs" / "internals" / "speedups.md"


def _rows() -> dict[str, list[str]]:
    """The table of the page: twin, work and gain of each speed-up."""
    lines = [line for line in _PAGE.read_text().splitlines() if line.startswith("| [`")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cell[0].split("`")[1]: cell[1:] for cell in cells}


def _section(name: str) -> str:
    text = _PAGE.read_text()
    return text.split(f"\n## `{name}`\n")[1].split("\n## ")[0]


def test_the_page_and_the_package_name_the_same_speed_ups() -> None:
    assert tuple(_rows()) == speedups.NAMES
    assert re.findall(r"^## `(\w+)`$", _PAGE.read_text(), re.MULTILINE) == list(speedups.NAMES)
    for name in speedups.NAMES:
        for part in ("**What it does.**", "**Why.**", "**Private names.**"):
            assert part in _section(name)


@pytest.mark.parametrize("name", speedups.NAMES)
def test_the_page_tells_the_twin_and_the_gain_that_the_module_tells(name: str) -> None:
    told = importlib.import_module(f"windlass.speedups.{name}").__doc__ or ""
    twin, _, gain = _rows()[name]
    assert twin in told.replace("``", "`").split("**Its plain twin**")[1].split("**What it wins**")[0]
    wins = re.search(r"[\d.]+ times", told.split("**What it wins**")[1])
    assert wins is not None
    assert wins[0] == f"{gain} times"
    assert float(gain) >= 1.05


@pytest.mark.parametrize("name", speedups.NAMES)
def test_the_page_lists_the_private_names_that_a_speed_up_uses(name: str) -> None:
    modules = [f"windlass.speedups.{name}", *(["windlass.speedups.amqp_frames"] if name == "amqp" else [])]
    used: set[str] = set()
    source = ""
    for module in modules:
        text = Path(importlib.import_module(module).__file__ or "").read_text()
        used |= {found.rsplit(".", 1)[-1] for _, found, _ in private_names.findings(text, module)}
        source += text
    paragraph = _section(name).split("**Private names.**")[1].split("\n\n")[0]
    listed = set(re.findall(r"`(\w+)`", paragraph))
    assert used <= listed
    assert all(one in source for one in listed)


def test_off_takes_every_plain_twin() -> None:
    """The variable is read when a process starts, so another one looks."""
    code = """
import os
from windlass.backends.file.effects import JobRow, to_record
from windlass.speedups import amqp, amqp_loop, valkey
row = JobRow(queue="q", id="a", task="t", seq=1, enqueued_ms=1, payload=b"")
print(amqp.Connection.__name__, amqp_loop.Loop.__name__, valkey._kind.__name__, to_record(row) is row)
"""
    for value, wanted in (
        ("off", "PlainConnection PlainLoop PlainConnection False"),
        ("amqp", "PlainConnection SharedLoop QuickConnection True"),
        ("", "QuickConnection SharedLoop QuickConnection True"),
    ):
        env = {**os.environ, speedups.VARIABLE: value}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
        )
        assert done.stdout.startswith(wanted)
        assert done.stdout.strip().endswith("False" if value == "off" else "True")


# --- recast ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", ["", "recast"])
def test_a_row_becomes_a_record_with_the_same_values(off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedups, "_OFF", speedups.read_off(off))
    to_record = recast.recast_to(JobRecord, JobRow)
    row = JobRow(queue="q", id="a", task="t", seq=3, enqueued_ms=5, payload=b"x")
    before = msgspec.structs.asdict(row)
    record = to_record(row)
    assert type(record) is JobRecord
    assert msgspec.structs.asdict(record) == before


def test_structs_of_other_fields_are_not_recast() -> None:
    class Other(msgspec.Struct):
        a: int

    with pytest.raises(TypeError, match="differ in their fields"):
        recast.recast_to(JobRecord, Other)


# --- amqp ------------------------------------------------------------------------------------------------


class _Channel:
    """Takes down what pika's channel is asked for."""

    channel_number = 7

    def __init__(self) -> None:
        self.is_open = True
        self.calls: list[tuple[Any, ...]] = []

    def basic_publish(self, *args: Any) -> None:
        self.calls.append(args)

    def basic_ack(self, *args: Any) -> None:
        self.calls.append(args)


class _Wire:
    """What is written to the connection."""

    _body_max_length = 1_000

    def __init__(self) -> None:
        self.out: list[bytes] = []

    def _output_marshaled_frames(self, frames: list[bytes]) -> None:
        self.out += frames


def _untyped(connection: Any) -> Any:
    """A class whose methods are called with something else than an open connection."""
    return connection


_MESSAGE = amqp.Outgoing("jobs", "q", b"body", amqp_frames.properties(priority=3, message_id="m"), False)


def test_the_plain_twin_publishes_and_acknowledges_by_pikas_own_calls() -> None:
    channel, plain = _Channel(), _untyped(amqp.PlainConnection)
    plain.publish(None, channel, [_MESSAGE])
    plain.acknowledge(None, channel, [(3, True), (9, False)])
    properties = BasicProperties(priority=3, message_id="m")
    assert channel.calls == [("jobs", "q", b"body", properties, False), (3, True), (9, False)]


def test_the_quick_connection_writes_the_same_as_bytes_and_no_closed_channel_takes_them() -> None:
    channel, wire, quick = _Channel(), _Wire(), _untyped(amqp.QuickConnection)
    quick.publish(wire, channel, [_MESSAGE, _MESSAGE])
    quick.acknowledge(wire, channel, [(3, True), (9, False)])
    one = b"".join(amqp_frames.published(7, "jobs", "q", False, _MESSAGE.properties, b"body", 1_000))
    acks = amqp_frames.acknowledged(7, 3, True) + amqp_frames.acknowledged(7, 9, False)
    assert b"".join(wire.out) == one + one + acks
    channel.is_open = False
    with pytest.raises(ChannelWrongStateError):
        quick.publish(wire, channel, [_MESSAGE])
