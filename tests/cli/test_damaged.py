"""Commands on a store with a record that cannot be read: all of them answer, the doctor names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.support import Cli
from windlass import Windlass
from windlass_conformance.damage import damage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.feature("X3")]
KINDS = {"sqlite": "options of bytes", "file": "a record that is cut short"}


@pytest.fixture(params=KINDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend_name: str) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WINDLASS_URL", raising=False)
    cli = Cli(
        f"sqlite:///{tmp_path / 'jobs.db'}" if backend_name == "sqlite" else f"file://{tmp_path / 'jobs'}"
    )

    async def fill(app: Windlass) -> None:
        for n in range(3):
            await app.queue("mail").add("n", {"n": n}, job_id=f"job{n}")

    cli.app(fill)
    damage(cli.url, "mail", "job1", KINDS[backend_name])
    return cli


def test_jobs_with_a_damaged_record_are_listed_shown_and_removed(cli: Cli) -> None:
    listed = cli("jobs", "mail").output
    assert all(f"job{n}" in listed for n in range(3))
    assert "BadRecord" in cli("job", "mail", "job1").output
    cli.json("stats")
    cli("remove", "mail", "job1", "--yes")
    assert "job1" not in cli("jobs", "mail").output


def test_the_doctor_names_a_damaged_record_and_repair_sets_it_aside(cli: Cli) -> None:
    def texts(*args: str) -> str:
        return " ".join(found["text"] for found in cli.json("doctor", *args, code=1)["findings"])

    assert "job1" in texts()
    repaired = texts("--repair")
    assert "set aside" in repaired and "job1" in repaired

    async def look(app: Windlass) -> list[tuple[str, str]]:
        jobs = await app.queue("mail").get_jobs(newest_first=False)
        return [(job.state.value, job.record.reason) for job in jobs]

    assert cli.app(look) == [("waiting", ""), ("failed", "bad_record"), ("waiting", "")]
