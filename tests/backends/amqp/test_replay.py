"""Reading the log again: at the times at which entries were decided, and with gaps told, not hidden."""

from __future__ import annotations

from typing import Any

import pytest
from pika import BasicProperties

from windlass.backend import requests as rq
from windlass.backends.amqp import replay, verbs, wire
from windlass.backends.amqp.ledger import Ledger
from windlass.core.ids import new_id
from windlass.core.job import NewJob
from windlass.core.outcome import Outcome, Settlement
from windlass.errors import HistoryTrimmedError

backend_name = "amqp"
NOW_MS = 1_700_000_000_000


def heard(offset: int, request: rq.Request[Any] | None = None) -> replay.Heard:
    body = b"" if request is None else wire.log_entry("log", request, NOW_MS).body
    return replay.Heard(offset, BasicProperties(), body)


def test_entries_wait_for_the_note_that_tells_their_time() -> None:
    diary = replay.Diary()
    assert diary.take({}) is None
    for offset, now_ms in ((3, 1_000), (4, 1_000), (7, 1_250)):
        diary.note(offset, now_ms)
    assert not diary.is_full
    note = diary.take({"mail": 5, "pdf": 0})
    assert note is not None and diary.take({"mail": 5}) is None
    recall = replay.Recall()
    for offset in (2, 3, 4, 7, 8):
        recall.add(heard(offset, rq.Recover()))
    read = replay.read_note(heard(9, note).body)
    assert read is not None
    told = [(one.offset, at) for one, at in recall.told_by(read)]
    assert told == [(2, None), (3, 1_000), (4, 1_000), (7, 1_250)]
    assert [one.offset for one in recall.rest()] == [8]
    diary.note(10, 2_000)
    later = diary.take({"mail": 6, "pdf": 0})
    assert later is not None and later.history == {"mail": 6}


def test_a_message_that_is_no_note_is_left_alone() -> None:
    assert replay.read_note(b"") is None
    assert replay.read_note(b"\xc1 not ours") is None
    assert replay.read_note(heard(1, rq.Recover()).body) is None


def test_a_history_that_lacks_records_tells_of_a_gap() -> None:
    ledger = Ledger()
    finish(ledger, 3)
    ledger.align_history({"q": 3})
    page, _ = ledger.apply(rq.ReadHistory(queue="q"), NOW_MS)
    assert (len(page.records), page.oldest, page.newest) == (3, 1, 3)
    ledger.align_history({"q": 5})  # two more were written by then, which the log no longer tells of
    finish(ledger, 1)
    with pytest.raises(HistoryTrimmedError) as trimmed:
        ledger.apply(rq.ReadHistory(queue="q", after=3), NOW_MS)
    assert trimmed.value.oldest == 6
    page, _ = ledger.apply(rq.ReadHistory(queue="q", after=5), NOW_MS)
    assert (len(page.records), page.newest) == (1, 6)


def finish(ledger: Ledger, count: int) -> None:
    """Jobs that were added, started and completed."""
    for _ in range(count):
        job_id, token = new_id(), new_id()
        new = NewJob(queue="q", id=job_id, task="t", payload=b"{}")
        start = verbs.Start("q", job_id, token, "w", 30_000, NOW_MS)
        end = Settlement(queue="q", id=job_id, token=token, outcome=Outcome.COMPLETE)
        ledger.apply(verbs.Born(add=rq.Add(jobs=[new])), NOW_MS)
        ledger.apply(verbs.Started(starts=[start]), NOW_MS)
        ledger.apply(verbs.Ended(items=[end], starts=[start]), NOW_MS)
