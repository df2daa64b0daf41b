"""Errors that users see tell what happened, where, and what to do."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from typing import Any

import pytest

from windlass import errors
from windlass.errors import JobSignal, WindlassError
from windlass.jobs.context import current_job
from windlass.serde import encode_value, get_codec

#: Error -> arguments, and words of its advice.
SAMPLES: dict[type[WindlassError], tuple[tuple[Any, ...], str]] = {
    errors.ConfigError: (("delay", "a number of seconds", "soon"), "must be a number of seconds, got 'soon'"),
    errors.PayloadTooLargeError: ((2_000, 1_000), "store large data elsewhere and pass a reference"),
    errors.GroupFullError: (("mail", "ada", ["j1"], []), "raise its max_size"),
    errors.OrderedGroupError: (("mail", "ada", "priority", "left out in mail"), "must be left out"),
    errors.CycleError: ((["a", "b", "a"],), "dependencies form a cycle: a -> b -> a"),
    errors.UnsupportedByBackendError: (("amqp", "flows", "use valkey"), "use valkey"),
    errors.StoreReplacedError: (("sqlite:///jobs.db", "jobs.db"), "Put the file back"),
    errors.StoreFullError: (("valkey: no memory is left; raise maxmemory",), "raise maxmemory"),
    errors.ForkedError: (("sqlite", 10, 11), "Make a new Windlass"),
    errors.HistoryTrimmedError: (("history", "mail", 5, 9), "Continue from 8 to accept the gap"),
    errors.AbortedError: (("shutdown",), "left its work undone"),
    errors.ClosedError: (("queue 'mail'", "take another"), "take another"),
    errors.WrongLoopError: (("is closed", "close it before"), "close it before"),
    errors.ResultExpiredError: (("mail", "j1"), "raise its result_ttl"),
    errors.JobNotFoundError: (("mail", "j1"), "never added, pruned, or removed"),
    errors.ScheduleNotFoundError: (("mail", "nightly"), "windlass schedules"),
    errors.IllegalTransitionError: (("j1", "active", "remove", "cancel it first"), "cancel it first"),
    errors.LeaseLostError: (("mail", "j1"), "isolation='process'"),
    errors.WaitTimeoutError: (("j1", 5), "windlass doctor"),
    errors.LimiterTimeoutError: (("api", 5), "raise its limits"),
    errors.MaxRetriesError: (("j1", 3, "ValueError", "no"), "all 3 attempts failed"),
    errors.JobFailedError: (("j1", "unrecoverable", "ValueError", "no"), "ValueError: no"),
    errors.JobCancelledError: (("j1", "sold out"), "sold out"),
    errors.BatchError: (({0: ValueError("x")},), "each keeps its own error"),
}
#: Raised with a whole sentence of the place that raises them, or by users.
SENTENCES = {
    errors.WindlassError,
    errors.DependencyError,
    errors.StorageError,
    errors.ResultError,
    errors.JobTimeoutError,
    errors.WorkerCrashError,
    errors.RemoteError,
    errors.UnrecoverableError,
    errors.SignatureError,
}


@pytest.mark.feature("Z15")
@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.__name__)
def test_an_error_says_where_and_what_to_do(kind: type[WindlassError]) -> None:
    arguments, advice = SAMPLES[kind]
    text = str(kind(*arguments))
    assert advice in text
    named = [
        value for value in arguments if isinstance(value, str) and re.fullmatch(r"j\d|mail|delay", value)
    ]
    assert [value for value in named if value not in text] == []
    assert kind.code != "error"


SIGNALS: list[JobSignal] = [
    errors.Snooze(5),
    errors.Retry(5, "busy"),
    errors.RateLimitError(5),
    errors.Cancel("sold out"),
    errors.WaitForChildren(),
    errors.Suspend("paid", 60),
]


def carried(error: BaseException) -> tuple[type[BaseException], str, str]:
    """What a copy of an error must have in common with it."""
    return type(error), str(error), repr(vars(error))


@pytest.mark.feature("Z15")
@pytest.mark.parametrize(
    "error",
    [*(kind(*arguments) for kind, (arguments, _) in SAMPLES.items()), *SIGNALS],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_through_a_pool_of_processes(error: Exception) -> None:
    """An error that cannot be pickled stops a ``multiprocessing.Pool`` instead of reaching the caller."""
    assert carried(pickle.loads(pickle.dumps(error))) == carried(error)
    assert carried(copy.copy(error)) == carried(error)


def test_what_cannot_be_pickled_travels_as_text() -> None:
    refused = errors.ConfigError("handler", "callable", lambda job: job)
    other = pickle.loads(pickle.dumps(refused))
    assert str(other) == str(refused)
    assert "<lambda>" in other.got

    class Job:
        id = "j1"

    full = pickle.loads(pickle.dumps(errors.GroupFullError("mail", "ada", ["j2"], [Job()])))
    assert (full.refused, full.added) == (["j2"], ["j1"])


def test_a_config_error_has_its_own_sentence_where_one_is_given() -> None:
    plain = errors.ConfigError("delay", "a number", "soon")
    assert (str(plain), plain.message) == ("delay must be a number, got 'soon'",) * 2
    whole = errors.ConfigError("end", message="end is before start", got=5)
    assert (str(whole), whole.message, whole.want) == ("end is before start",) * 3
    assert (whole.option, whole.got) == ("end", 5)
    both = errors.ConfigError("end", "after start", message="end is before start")
    assert (str(both), both.want) == ("end is before start", "after start")


def test_a_feature_that_is_not_installed_says_how_to_install_it() -> None:
    error = errors.not_installed("dashboard", "the dashboard", "windlass[dashboard]")
    assert str(error) == "the dashboard is not installed; run: pip install 'windlass[dashboard]'"
    assert error.option == "dashboard"


def test_every_error_is_looked_at() -> None:
    kinds = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, WindlassError) and kind.__module__ == errors.__name__
    }
    assert kinds - SAMPLES.keys() - SENTENCES == set()


def test_errors_of_python_itself_say_what_to_do_as_well() -> None:
    with pytest.raises(RuntimeError, match=r"windlass\.testing\.inline"):
        current_job()
    with pytest.raises(TypeError, match="or the id of what is stored elsewhere"):
        encode_value(get_codec("json"), object())
