"""The table of moves, and that no transition ever leaves it."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.core import change_rules, flow_rules, settle_rules, transitions
from windlass.core.edges import Edge, EdgeStatus
from windlass.core.job import ERRORS_KEPT, EventType, JobRecord, JobRef, NewJob
from windlass.core.options import StoredOptions
from windlass.core.outcome import CancelResult, Changed, Extended, Outcome, Settled, Settlement
from windlass.core.states import DUE_LATER, FINISHED, MOVES, PENDING, TIMED, JobState
from windlass.core.transitions import ChangeRecorder

NOW = 1_000_000


@pytest.mark.feature("U7")
def test_every_state_has_its_line_in_the_table() -> None:
    assert set(MOVES) == {*JobState, None}
    assert all(targets <= {*JobState, None} for targets in MOVES.values())


@pytest.mark.feature("U7")
def test_every_state_can_be_left_and_removed() -> None:
    assert all(None in MOVES[state] for state in JobState)
    assert {target for targets in MOVES.values() for target in targets} == {*JobState, None}


def test_the_groups_of_states_do_not_overlap() -> None:
    assert FINISHED | PENDING | {JobState.ACTIVE} == set(JobState)
    assert not FINISHED & PENDING
    assert DUE_LATER < PENDING


def test_only_a_person_brings_a_finished_job_back() -> None:
    for state in FINISHED:
        assert JobState.ACTIVE not in MOVES[state]
        assert JobState.WAITING in MOVES[state]


# --- every transition, in any order ---------------------------------------------------------------

_settlement = st.builds(
    lambda outcome, delay_ms, uses, miss: Settlement(
        queue="q", id="a", token="", outcome=outcome, delay_ms=delay_ms, uses_attempt=uses, miss=miss
    ),
    st.sampled_from(list(Outcome)),
    st.sampled_from([0, 10]),
    st.booleans(),
    st.booleans(),
)
_step = st.one_of(
    st.tuples(st.just("claim"), st.none()),
    st.tuples(st.just("settle"), _settlement),
    st.tuples(st.just("promote"), st.none()),
    st.tuples(st.just("recover"), st.none()),
    st.tuples(st.just("give_back"), st.none()),
    st.tuples(st.just("cancel"), st.sampled_from(["", "why"])),
    st.tuples(st.just("retry"), st.none()),
    st.tuples(st.just("expire"), st.none()),
    st.tuples(st.just("signal"), st.sampled_from(["", "yes"])),
    st.tuples(st.just("block"), st.none()),
    st.tuples(st.just("unblock"), st.none()),
    st.tuples(st.just("fail_dependency"), st.none()),
    st.tuples(
        st.just("change"),
        st.sampled_from([{"priority": 3}, {"delay_ms": 0}, {"delay_ms": 9}, {"payload": b"x"}]),
    ),
)


class Life:
    """One job that goes through transitions as a store would apply them."""

    def __init__(self, delay_ms: int, max_stalls: int) -> None:
        self.now_ms = NOW
        self.places = itertools.count(1)
        self.tokens = itertools.count(1)
        new = NewJob(
            queue="q",
            id="a",
            task="t",
            payload=b"",
            delay_ms=delay_ms,
            options=StoredOptions(max_stalls=max_stalls),
        )
        self.job = transitions.create(new, self.recorder())

    def recorder(self) -> ChangeRecorder:
        self.now_ms += 1
        self.last = ChangeRecorder(self.now_ms, lambda: next(self.places))
        return self.last

    def take(self, verb: str, argument: Any) -> None:
        """Apply ``verb`` where a store would: when the job's state calls for it."""
        job, recorder = self.job, self.recorder()
        active = job.state is JobState.ACTIVE
        if verb == "claim" and job.state is JobState.WAITING:
            token = f"t{next(self.tokens)}"
            transitions.lease(job, recorder, token=token, worker="w", lease_ms=100)
        elif verb == "settle" and active:
            settle_rules.settle(job, argument, recorder)
        elif verb == "promote" and job.state in TIMED and job.due_ms is not None:
            transitions.promote(job, recorder)
        elif verb == "recover" and active:
            settle_rules.recover(job, recorder)
        elif verb == "give_back" and active:
            settle_rules.give_back(job, recorder)
        elif verb == "expire" and job.state is JobState.WAITING and job.deliveries == 0:
            transitions.expire(job, recorder)
        elif verb == "cancel":
            change_rules.cancel(job, argument, recorder)
        elif verb == "retry":
            change_rules.retry(job, recorder)
        elif verb == "change":
            fields = {"priority": None, "delay_ms": None, "payload": None, **argument}
            change_rules.change(job, recorder, token=None, **fields)
        else:
            self._take_flow(verb, argument, recorder)

    def _take_flow(self, verb: str, argument: Any, recorder: ChangeRecorder) -> None:
        job = self.job
        if verb == "signal":
            change_rules.signal(job, argument, b"1", "json", recorder)
        elif verb == "block":
            flow_rules.block(job, recorder)
        elif verb == "unblock" and job.state is JobState.BLOCKED:
            flow_rules.unblock(job, recorder)
        elif verb == "fail_dependency" and job.state is JobState.BLOCKED:
            edge = Edge(dependent=job.ref, child=JobRef("q", "b"), status=EdgeStatus.FAILED)
            flow_rules.review(job, broken=edge, has_open=True, recorder=recorder)


def check_record(job: JobRecord) -> None:
    """What must hold for a record in any state."""
    assert (job.token is not None) is (job.state is JobState.ACTIVE)
    assert (job.lease_until_ms is not None) is (job.state is JobState.ACTIVE)
    if job.state in DUE_LATER:
        assert job.due_ms is not None
    elif job.state not in (JobState.BLOCKED, JobState.SUSPENDED):
        assert job.due_ms is None
    assert (job.finished_ms is not None) is (job.state in FINISHED)
    assert job.state is JobState.COMPLETED or job.result is None
    assert len(job.errors) <= ERRORS_KEPT
    assert job.stalls <= job.options.max_stalls + 1
    assert job.attempts >= 0 and job.place > 0


@pytest.mark.feature("U7")
@settings(max_examples=300)
@given(
    delay_ms=st.sampled_from([0, 10]),
    max_stalls=st.integers(0, 2),
    steps=st.lists(_step, max_size=25),
)
def test_no_sequence_of_transitions_leaves_the_table(
    delay_ms: int, max_stalls: int, steps: list[tuple[str, Any]]
) -> None:
    life = Life(delay_ms, max_stalls)
    assert life.job.state in MOVES[None]
    check_record(life.job)
    for verb, argument in steps:
        before = life.job.state
        life.take(verb, argument)
        after = life.job.state
        assert before is after or after in MOVES[before], f"{verb}: {before} -> {after}"
        check_record(life.job)


#: Events that tell of a change of state; the others tell of something else about the job.
_MOVING = {
    EventType.ENQUEUED,
    EventType.SCHEDULED,
    EventType.PROMOTED,
    EventType.STARTED,
    EventType.RETRYING,
    EventType.COMPLETED,
    EventType.FAILED,
    EventType.CANCELLED,
    EventType.STALLED,
    EventType.RELEASED,
    EventType.BLOCKED,
    EventType.SUSPENDED,
}


@pytest.mark.feature("U7", "K1")
@settings(max_examples=300)
@given(delay_ms=st.sampled_from([0, 10]), steps=st.lists(_step, max_size=25))
def test_every_change_of_state_has_exactly_one_event_and_every_end_one_row(
    delay_ms: int, steps: list[tuple[str, Any]]
) -> None:
    life = Life(delay_ms, 1)
    run_ids: list[str] = []
    for verb, argument in steps:
        before, deliveries = life.job.state, life.job.deliveries
        life.take(verb, argument)
        moving = [note for note in life.last.pending_events if note.type in _MOVING for _ in note.job_ids]
        if before is not life.job.state:
            assert len(moving) == 1
        ended = before is JobState.ACTIVE and life.job.state is not JobState.ACTIVE
        finished = before not in FINISHED and life.job.state in FINISHED
        assert len(life.last.attempts) == int(ended or finished)
        run_ids += [alike.first.run_id for alike in life.last.attempts]
        assert life.job.deliveries - deliveries == int(verb == "claim" and before is JobState.WAITING)
    assert len(set(run_ids)) == len(run_ids)


# --- single transitions that stores rely on -------------------------------------------------------


def active(**fields: Any) -> JobRecord:
    record = JobRecord(
        queue="q",
        id="a",
        task="t",
        payload=b"",
        state=JobState.ACTIVE,
        place=5,
        token="tok",
        worker="w",
        lease_until_ms=NOW,
        deliveries=1,
    )
    return msgspec.structs.replace(record, **fields)


@pytest.mark.feature("J24")
def test_tokens_are_answered_ok_already_lost_or_gone() -> None:
    job = active(settled_token="old")
    assert transitions.check_token(job, "tok") is Settled.OK
    assert transitions.check_token(job, "old") is Settled.ALREADY
    assert transitions.check_token(job, "older") is Settled.LOST
    assert transitions.check_token(None, "tok") is Settled.GONE


@pytest.mark.feature("J3")
def test_extending_needs_the_newest_token() -> None:
    job = active()
    assert transitions.extend(job, "other", 5, NOW) is Extended.LOST
    assert transitions.extend(None, "tok", 5, NOW) is Extended.LOST
    assert transitions.extend(job, "tok", 5, NOW) is Extended.OK
    assert job.lease_until_ms == NOW + 5
    job.cancel_reason = ""
    assert transitions.extend(job, "tok", 5, NOW) is Extended.CANCELLING


@pytest.mark.feature("F1")
def test_cancelling_nothing_says_so() -> None:
    recorder = ChangeRecorder(NOW, lambda: 1)
    assert change_rules.cancel(None, "", recorder) is CancelResult.NOT_FOUND
    assert recorder.pending_events == []


@pytest.mark.feature("A23")
def test_an_empty_change_of_a_pending_job_is_fine_and_does_nothing() -> None:
    recorder = ChangeRecorder(NOW, lambda: 9)
    job = active(state=JobState.WAITING, token=None, lease_until_ms=None)
    status = change_rules.change(job, recorder, token=None, priority=None, delay_ms=None, payload=None)
    assert (status, recorder.pending_events, job.place) == (Changed.OK, [], 5)


@pytest.mark.feature("A22")
def test_progress_is_told_as_json_or_by_its_size() -> None:
    assert change_rules.progress_text(active(progress=b'{"a":1}')) == '{"a":1}'
    assert change_rules.progress_text(active(progress=b"x" * 2_000)) == "2000 bytes"
    assert change_rules.progress_text(active(progress=b"\xff", codec="msgpack")) == "1 bytes"
