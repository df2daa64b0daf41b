"""Every invariant of a storm has been seen to fail: each way to break the code is reported by its name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tools.storm import INVARIANTS, MUTANTS, MemoryStorm, Report, Settings, SqliteStorm, run_storm
from tools.storm.mutants import install
from windlass.errors import ConfigError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.keeps_threads("windlass-job*", reason="a handler in a thread may outlive its killed worker"),
]

#: Work that must not end, and work that is done again and again, are not waited for.
_HOPELESS = ("no-recovery", "no-renewal")
#: Coroutines of tasks that run attempts.
_ATTEMPTS = ("run", "run_line")


def _settings(mutant: str, **changes: float) -> Settings:
    hopeless = mutant in _HOPELESS
    return Settings(
        seed=round(changes.get("seed", 3)),
        seconds=changes.get("seconds", 2),
        pace=changes.get("pace", 90),
        calm=0.4,
        patience=4 if hopeless else 20,
        long_jobs=mutant == "no-renewal",
        mutant=mutant,
    )


def _broken(report: Report) -> set[str]:
    return {violation.invariant for violation in report.violations}


async def _end_what_is_left() -> None:
    """Code that is broken on purpose may leave attempts behind that nobody waits for."""
    left = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") in _ATTEMPTS]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def test_every_invariant_has_a_mutant() -> None:
    assert {mutant.breaks for mutant in MUTANTS.values()} == set(INVARIANTS)


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(ConfigError, match="no-fencing"):
        install("no-such-thing")


@pytest.mark.parametrize("name", sorted(MUTANTS))
async def test_a_mutant_is_reported_by_the_invariant_that_it_breaks(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    for seed, seconds in ((3, 2), (4, 4), (5, 12), (6, 30)):  # a busy machine does little in a short one
        store = MemoryStorm(tmp_path / str(seed))
        settings = _settings(name, seed=seed, seconds=seconds)
        report = await run_storm(store, settings, faults=mutant.faults)
        await _end_what_is_left()
        if mutant.breaks in _broken(report):
            return
    raise AssertionError(f"{mutant.breaks} did not report {name}, but {report.violations}")


async def test_without_a_mutant_the_same_storm_breaks_nothing(tmp_path: Path) -> None:
    report = await run_storm(MemoryStorm(tmp_path), _settings(""), faults=("kill", "freeze", "lost-reply"))
    assert report.violations == []
    assert report.acknowledged > 20  # enough for the invariants; a busy machine does less in two seconds


@pytest.mark.parametrize("name", ["settle-dropped"])
async def test_a_mutant_lives_in_the_processes_of_a_storm(name: str, tmp_path: Path) -> None:
    settings = _settings(name, seconds=4, pace=30)
    report = await run_storm(SqliteStorm(tmp_path), settings, faults=())
    assert MUTANTS[name].breaks in _broken(report), report.violations
