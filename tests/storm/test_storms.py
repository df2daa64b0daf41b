"""A short storm on every backend, with every fault that it can suffer; long ones are run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.storm import Settings, run_storm
from tools.storm.servers import STORES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.serial,  # what happens to a lease is a matter of time
    pytest.mark.timeout(180),
    pytest.mark.keeps_threads("windlass-job*", reason="a handler in a thread may outlive its killed worker"),
]

#: Not ``amqp``: it has its own tests of faults, and storms on it are run by hand for now.
_BACKENDS = ("memory", "file", "sqlite", "valkey", "redis", "cluster")
_SERVERS = ("valkey", "redis", "cluster")


@pytest.mark.feature("J7", "J24", "U3")
@pytest.mark.parametrize(
    "backend_name",
    [
        pytest.param(name, marks=pytest.mark.service("valkey") if name in _SERVERS else ())
        for name in _BACKENDS
    ],
)
async def test_a_short_storm_breaks_nothing(backend_name: str, tmp_path: Path) -> None:
    store = STORES[backend_name](tmp_path)
    settings = Settings(seed=2026, seconds=6, calm=0.7, pace=15, long_jobs=False)
    report = await run_storm(store, settings)
    assert report.violations == [], f"scripts/storm --backend {backend_name} --seed {settings.seed}"
    assert report.acknowledged > 30
    assert sum(report.faults.values()) >= 3, report.faults


@pytest.mark.feature("J24")
@pytest.mark.parametrize(
    ("backend_name", "fault"),
    [
        ("sqlite", "damaged-record"),
        ("file", "damaged-record"),
        pytest.param("valkey", "damaged-record", marks=pytest.mark.service("valkey")),
        pytest.param("amqp", "damaged-record", marks=pytest.mark.service("rabbitmq")),
        ("sqlite", "clock-ahead"),
        ("file", "clock-ahead"),
    ],
)
async def test_a_short_storm_of_one_fault_breaks_nothing(
    backend_name: str, fault: str, tmp_path: Path
) -> None:
    store = STORES[backend_name](tmp_path)
    settings = Settings(seed=2026, seconds=6, calm=0.7, pace=15, long_jobs=False)
    report = await run_storm(store, settings, faults=[fault])
    assert report.violations == [], f"scripts/storm --backend {backend_name} --seed 2026 --faults {fault}"
    assert report.acknowledged > 30
    assert report.faults[fault] >= 1
