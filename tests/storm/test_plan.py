"""What a storm decides comes from its seed alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.storm import BY_NAME, EMBEDDED, FAULTS, Settings, SqliteStorm
from tools.storm.journal import FILE_BYTES, Journal, read_journals
from tools.storm.plan import Can, digest, faults_of, steps_of
from tools.storm.runner import choose_faults
from windlass.errors import ConfigError

ALL = Can(groups=True, limits=True, flows=True, schedules=True)


def test_the_same_seed_makes_the_same_decisions_and_another_seed_others() -> None:
    kinds = list(FAULTS)
    first, again = (Settings(seed=7, seconds=60) for _ in range(2))
    other = Settings(seed=8, seconds=60)
    assert faults_of(first, kinds) == faults_of(again, kinds) != faults_of(other, kinds)
    assert digest(first, kinds, ALL) == digest(again, kinds, ALL) != digest(other, kinds, ALL)


def test_a_long_storm_has_every_fault() -> None:
    kinds = list(FAULTS)
    assert {fault.kind for fault in faults_of(Settings(seed=1, seconds=600), kinds)} == set(kinds)


def test_what_a_store_cannot_do_is_not_asked_for() -> None:
    steps = steps_of(Settings(seed=1, seconds=60), 0, 0, Can())
    jobs = [job for _ in range(500) for job in next(steps).jobs]
    assert {job.group for job in jobs} == {None}
    assert not any(job.children for job in jobs)
    assert "limited" not in {job.queue for job in jobs}


def test_a_fault_that_a_store_cannot_suffer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="on sqlite"):
        choose_faults(SqliteStorm(tmp_path), ["half-open"])
    assert set(choose_faults(SqliteStorm(tmp_path), None)) == set(SqliteStorm.faults) - set(BY_NAME)
    assert choose_faults(SqliteStorm(tmp_path), BY_NAME) == list(BY_NAME)


@pytest.mark.parametrize("name", sorted(EMBEDDED))
def test_a_storm_asks_a_store_what_it_can_do(name: str, tmp_path: Path) -> None:
    store = EMBEDDED[name](tmp_path)
    assert store.can == ALL
    assert store.faults <= set(FAULTS) | set(BY_NAME)


def test_a_journal_keeps_every_whole_line_in_short_files(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "worker-0.0")
    for n in range(3_000):
        journal.write("note", n=n, text="x" * 100)
    journal.close()
    last = max(tmp_path.glob("*.jsonl"))
    with last.open("ab") as file:
        file.write(b'{"op":"note","n":3000,"te')  # killed in the middle of a line
    assert [line["n"] for line in read_journals(tmp_path)] == list(range(3_000))
    assert max(path.stat().st_size for path in tmp_path.glob("*.jsonl")) < FILE_BYTES + 1_000
