"""The reference names every option, state and attribute, with its meaning, and nothing that is internal."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest

from tools import docs_reference
from windlass import Job, JobOptions, JobState
from windlass.backend.capabilities import Capabilities
from windlass.backend.urls import open_backend
from windlass.core.options import OPTION_NAMES
from windlass.worker.options import WorkerOptions

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference"
_ROW = re.compile(r"^\| `([^`]+)` \|(.+)\|$", re.MULTILINE)


def rows(page: str, heading: str) -> dict[str, str]:
    """The rows of the table behind a marker of a page, by their first cell."""
    text = docs_reference.fill((PAGES / page).read_text())
    return dict(_ROW.findall(text.partition(f"::: {heading}")[2].partition("\n:::")[0]))


def test_every_job_option_has_type_default_and_meaning() -> None:
    found = rows("options.md", "windlass.core.options.JobOptions")
    assert found.keys() == OPTION_NAMES
    for name, cells in found.items():
        kind, default, meaning = (cell.strip() for cell in re.split(r"(?<!\\)\|", cells))
        assert kind.strip("`"), name
        assert default.strip("`"), name
        assert len(meaning) > 5, name
    assert "| `3` |" in found["max_attempts"]
    assert "said" not in found


def test_every_state_of_a_job_has_its_meaning() -> None:
    found = rows("options.md", "windlass.core.states.JobState")
    assert list(found) == [state.value for state in JobState]


def test_every_attribute_of_a_job_is_there_and_no_internal_one() -> None:
    found = rows("queue.md", "windlass.jobs.job.Job")
    public = {
        name for name in dir(Job) if not name.startswith("_") and not callable(getattr(Job, name, None))
    }
    internal = docs_reference.INTERNAL["windlass.jobs.job.Job"]
    assert found.keys() == public - internal
    assert not internal & found.keys()


def test_every_option_of_a_worker_is_there() -> None:
    found = rows("worker.md", "windlass.worker.options.WorkerOptions")
    assert list(found) == [field.name for field in msgspec.structs.fields(WorkerOptions)]


def test_a_field_without_a_meaning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_reference, "_note", lambda lines, line: "")
    with pytest.raises(ValueError, match=r"JobOptions.delay has no meaning: write a #: comment"):
        docs_reference.fields("windlass.core.options.JobOptions")
    assert JobOptions.__struct_fields__[0] == "delay"


#: The rows of the short table of stores, by the capability that each is about.
_ROWS = {
    "durable": "Jobs survive a restart",
    "shared": "Several processes share it",
    "transactions": "Jobs in your own database transaction",
    "priority": "Priorities",
    "exact_priority": "Any priority, in exact order",
    "lifo": "Last in, first out",
    "recovered_place": "A job of a lost worker keeps its place",
    "unique": "Unique keys",
    "flows": "Flows: jobs that wait for jobs",
    "signals": "Suspended until a signal",
    "streams": "Live output",
    "limits": "Concurrency and rate of whole queues",
    "revoked_tasks": "Tasks that are revoked for a while",
    "groups": "Groups: fair turns, limits per customer",
    "schedules": "Schedules",
    "metrics": "Metrics and history",
    "commands": "Commands to workers",
    "restore": "Jobs of an export put back as they were",
    "fenced": "A worker that lost its lease cannot complete the job",
}
_STORES = {
    "memory": "memory://",
    "SQLite": "sqlite:///never.db",
    "file": "file:///never",
    "Valkey, Redis": "valkey://127.0.0.1:1",
    "cluster": "valkey+cluster://127.0.0.1:1",
    "AMQP": "amqp://127.0.0.1:1",
}


def test_the_short_table_of_stores_says_what_their_code_declares() -> None:
    text = (PAGES.parent / "stores-compared.md").read_text()
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    table = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}
    assert list(table[""]) == list(_STORES)
    assert set(_ROWS) == {field.name for field in dataclasses.fields(Capabilities)}
    for place, url in enumerate(_STORES.values()):
        can = open_backend(url).capabilities
        for name, row in _ROWS.items():
            assert table[row][place] == ("yes" if getattr(can, name) else "no"), (url, name)
    assert len(text.splitlines()) < 50
