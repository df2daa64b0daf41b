"""``windlass doctor file:///directory``: what it tells of a store, and what it can save of a damaged one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.backends.file.support import add, jobs_of, log_of, new
from tests.backends.file.test_log import frames_of
from tests.cli.support import Cli
from windlass import Windlass
from windlass.backend import open_backend
from windlass.backend.urls import parse_url
from windlass.backends.file import frames, repair
from windlass.backends.file.errors import DamagedLogError

if TYPE_CHECKING:
    from pathlib import Path

backend_name = "file"
pytestmark = [pytest.mark.feature("X3")]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WINDLASS_URL", raising=False)
    return Cli(f"file://{tmp_path / 'store'}")


def with_jobs(cli: Cli, count: int = 5) -> None:
    async def fill(app: Windlass) -> None:
        for n in range(count):
            await add(app.store.backend, new(id=f"job{n}", delay_ms=3_600_000))

    async def opened(app: Windlass) -> None:
        await app.store.open()
        await fill(app)

    cli.app(opened)


def told(cli: Cli, level: str, *args: str, code: int = 0) -> list[str]:
    report = cli.json("doctor", *args, code=code)
    return [found["text"] for found in report["findings"] if found["level"] == level]


def ids(cli: Cli) -> list[str]:
    async def read(app: Windlass) -> list[str]:
        await app.store.open()
        return list(await jobs_of(app.store.backend))

    return cli.app(read)


def test_a_healthy_store_is_described_and_checked(cli: Cli) -> None:
    with_jobs(cli)
    facts = told(cli, "fact", "--deep")
    assert any("format 2, generation 1" in text and "5 steps" in text for text in facts)
    assert "all checksums match, all steps read" in facts
    assert "All is well." in cli("doctor", cli.url).output, "the URL may be an argument"


def test_a_store_of_a_newer_format_is_to_be_upgraded_for_not_repaired(cli: Cli, tmp_path: Path) -> None:
    with_jobs(cli)
    current = tmp_path / "store" / "default" / "current"
    newer = json.dumps(json.loads(current.read_text()) | {"format": frames.FORMAT + 1})
    current.write_text(newer)
    for options in ([], ["--repair"]):
        output = cli("doctor", *options, code=1).output
        assert f"has format {frames.FORMAT + 1}" in output
        assert "→ upgrade" in output
        assert "with --repair" not in output
    assert current.read_text() == newer, "nothing was changed"


def test_a_path_without_a_store_is_told_and_nothing_is_made(cli: Cli, tmp_path: Path) -> None:
    (problem,) = told(cli, "problem", code=1)
    assert "there is no store" in problem
    (tmp_path / "empty").mkdir()
    (problem,) = told(cli, "problem", "--url", f"file://{tmp_path / 'empty'}", code=1)
    assert "there is no store" in problem
    assert list((tmp_path / "empty").iterdir()) == []
    with_jobs(cli)
    (problem,) = told(cli, "problem", "--url", f"{cli.url}?namespace=other", code=1)
    assert "no namespace 'other' (there are: default)" in problem


def test_a_torn_tail_is_no_problem(cli: Cli, tmp_path: Path) -> None:
    with_jobs(cli)
    with log_of(tmp_path / "store").open("ab") as log:
        log.write(b"\xa7Wxyz")
    (warning,) = told(cli, "warning")
    assert "ends with 5 bytes of an unfinished step" in warning


def test_damage_is_named_and_repair_keeps_what_is_whole(cli: Cli, tmp_path: Path) -> None:
    with_jobs(cli)
    log = log_of(tmp_path / "store")
    third = next(frame for frame in frames_of(log) if frame.number == 3 and frame.kind == 3)
    data = bytearray(log.read_bytes())
    data[third.start + 40] ^= 1
    log.write_bytes(data)

    (problem,) = told(cli, "problem", code=1)
    assert f"damaged at byte {third.start}" in problem
    with pytest.raises(DamagedLogError):
        cli.add("q", "t")
    assert log.read_bytes() == bytes(data)

    facts = told(cli, "fact", "--repair")
    assert any("kept 4 whole steps as generation 2" in text for text in facts)
    assert (log.parent / f"damaged-{log.name}").read_bytes() == bytes(data)
    assert ids(cli) == ["job0", "job1", "job3", "job4"]
    with_jobs(cli)
    assert len(ids(cli)) == 5
    assert told(cli, "problem", "--deep") == []


def test_a_lost_current_file_can_be_made_again(cli: Cli, tmp_path: Path) -> None:
    with_jobs(cli)
    (tmp_path / "store" / "default" / "current").write_text("garbage")
    assert "current is damaged" in told(cli, "problem", code=1)[0]
    assert any("kept 5 whole steps" in text for text in told(cli, "fact", "--repair"))
    assert ids(cli) == [f"job{n}" for n in range(5)]


def test_repair_leaves_a_healthy_store_alone(cli: Cli, tmp_path: Path) -> None:
    with_jobs(cli)
    before = log_of(tmp_path / "store").read_bytes()
    assert "nothing is damaged: nothing was changed" in told(cli, "fact", "--repair")
    assert log_of(tmp_path / "store").read_bytes() == before


async def test_a_process_that_has_the_store_open_follows_a_repair(cli: Cli, tmp_path: Path) -> None:

    store = open_backend(cli.url)
    await store.open()
    await add(store, new(id="a"))
    current = tmp_path / "store" / "default" / "current"
    current.write_text("garbage")
    assert [finding.level for finding in repair(parse_url(cli.url))] == ["fact"]
    await add(store, new(id="b"))
    await store.close()
    assert "00000002.log" == log_of(tmp_path / "store").name
