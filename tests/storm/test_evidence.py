"""Which faults of a storm explain what, and when a process freezes itself; without a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.storm import process
from tools.storm.evidence import Evidence, Incident, faults_of_coordinators
from tools.storm.invariants import stalls_have_causes
from tools.storm.journal import Journal, read_journals
from tools.storm.plan import Can, Settings
from windlass.core import probe
from windlass.core.clock import SystemClock
from windlass.core.job import AttemptOutcome, AttemptRecord


def _fault(worker: str, at_ms: int) -> Incident:
    return Incident(kind="freeze", worker=worker, from_ms=at_ms, to_ms=at_ms + 2_000)


def _evidence(*incidents: Incident) -> Evidence:
    """Worker a coordinates from 10 s on, b from 60 s on. A lease of worker c stalls at 30 s."""
    row = AttemptRecord(
        run_id="t",
        job_id="j",
        attempt=1,
        delivery=1,
        queue="plain",
        task="work",
        group=None,
        tags=(),
        worker="c",
        enqueued_ms=0,
        ready_ms=0,
        started_ms=28_000,
        finished_ms=30_000,
        wait_ms=None,
        duration_ms=None,
        outcome=AttemptOutcome.STALLED,
        error_class=None,
        error_fingerprint=None,
    )
    return Evidence(
        settings=Settings(seed=1, seconds=1),
        can=Can(),
        lines=[{"op": "coordinates", "by": by, "at": at} for at, by in ((60_000, "b"), (10_000, "a"))],
        history=[row],
        incidents=list(incidents),
    )


@pytest.mark.parametrize(
    ("fault", "explains"),
    [
        (_fault("a", 27_000), True),  # it coordinates
        (_fault("b", 27_000), False),  # it coordinates only later
        (_fault("a", 20_000), False),  # that was over
        (_fault("c", 27_000), True),
        (_fault("d", 27_000), False),
    ],
)
def test_a_fault_of_the_coordinator_explains_stalls_of_all_workers(fault: Incident, explains: bool) -> None:
    evidence = _evidence(fault)
    evidence.incidents += faults_of_coordinators(evidence)
    assert (not list(stalls_have_causes(evidence))) is explains


def test_a_process_that_no_longer_coordinates_explains_nothing() -> None:
    assert faults_of_coordinators(_evidence(_fault("a", 61_000))) == []


def test_a_process_notes_when_it_becomes_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = probe.Probe()
    process.note_coordinator(mine, Journal(tmp_path, "worker-0.0"), "node")
    monkeypatch.setattr(probe, "_installed", mine)
    probe.reach("amqp.not_elected")
    probe.reach("amqp.coordinates", log="log")
    assert [(line["op"], line["by"]) for line in read_journals(tmp_path)] == [("coordinates", "worker-0.0")]


@pytest.mark.parametrize(("after_s", "freezes"), [(1, True), (16, False)])
def test_a_process_freezes_in_time_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, after_s: int, freezes: bool
) -> None:
    """The storm would neither record nor end a freeze that it does not expect any more."""
    stopped: list[str] = []
    now_ms = [0.0]
    monkeypatch.setattr(process, "stop", lambda point, facts: stopped.append(point))
    monkeypatch.setattr(SystemClock, "monotonic_ms", lambda clock: now_ms[0])
    mine = probe.Probe()
    monkeypatch.setattr(probe, "_installed", mine)
    process.freeze_soon(mine, "worker.claimed")
    now_ms[0] = after_s * 1_000.0
    probe.reach("worker.claimed", count=1)
    probe.reach("worker.claimed", count=1)
    assert stopped == (["worker.claimed"] if freezes else [])
