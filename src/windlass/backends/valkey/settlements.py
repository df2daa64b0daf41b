"""Ends of attempts and facts of workers, encoded for the server."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from windlass.backends.valkey.codes import COMPLETE_AND_HOLD, OUTCOME_NUMBERS
from windlass.backends.valkey.layouts import End, Failure
from windlass.backends.valkey.packed_options import or_none
from windlass.backends.valkey.sent_records import packed_result, text
from windlass.core.job import BRIEF_CHARS, ErrorInfo, WorkerFacts
from windlass.core.outcome import Filled, Outcome, Settlement


class Run(NamedTuple):
    """Completed jobs of one queue, as the server reads them. ``queue`` is the position of its root."""

    queue: int
    ids: list[str]
    tokens: list[str]
    #: A list with one value for each job, or a single value if all are equal.
    durations: list[int] | int
    results: list[Any] | Any
    #: See ``facts_text``.
    facts: str | int


def completions(queue: int, ends: list[Settlement]) -> Run:
    """A run of completions of one queue, none of which holds its group, all with the same facts."""
    durations = [-1 if end.duration_ms is None else end.duration_ms for end in ends]
    results = [end.result for end in ends]
    return Run(
        queue,
        [end.id for end in ends],
        [end.token for end in ends],
        durations[0] if _are_equal(durations) else durations,
        packed_result(results[0]) if _are_equal(results) else [packed_result(result) for result in results],
        facts_text(ends[0].facts),
    )


@lru_cache(maxsize=128)
def facts_text(facts: WorkerFacts | None) -> str | int:
    """The facts of a worker as JSON for the history; the server does not read it. 0 if there are none."""
    return 0 if facts is None else msgspec.json.encode(facts).decode()


@lru_cache(maxsize=1024)
def read_facts(text: str | int) -> WorkerFacts | None:
    """The facts of a worker from a row of history."""
    return msgspec.json.decode(text, type=WorkerFacts) if isinstance(text, str) else None


def _are_equal(values: list[Any]) -> bool:
    return values.count(values[0]) == len(values)


def settlement(index: int, end: Settlement) -> End:
    """One end of an attempt that is not part of a run."""
    outcome = COMPLETE_AND_HOLD if end.outcome is Outcome.COMPLETE else OUTCOME_NUMBERS[end.outcome]
    return End(
        index,
        end.id,
        end.token,
        outcome,
        -1 if end.duration_ms is None else end.duration_ms,
        packed_result(end.result),
        end.delay_ms,
        text(end.signal if end.outcome is Outcome.SUSPEND else end.reason),
        int(end.uses_attempt),
        int(end.miss),
        0 if end.error is None else _failure(end.error),
        end.hold_ms,
        0 if end.filled is None else _filled(end.filled),
        facts_text(end.facts),
    )


def _failure(error: ErrorInfo) -> Failure:
    return Failure(
        text(error.error_class),
        text(error.message),
        text(error.traceback),
        text(error.fingerprint),
        text(error.message[:BRIEF_CHARS]),
        0 if error.brief is None else text(error.brief),
    )


def _filled(filled: Filled) -> tuple[int, ...]:
    """The options that a settlement fills in; -2 for one that it leaves as it is."""
    kept: list[int] = []
    for keep in (filled.keep_completed, filled.keep_failed):
        kept += (-2, -2) if keep is None else (or_none(keep.age_ms), or_none(keep.count))
    return (-2 if filled.result_ttl_ms is None else filled.result_ttl_ms, *kept)
