"""The tree of errors: one base, stable codes, facts as attributes."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest

from windlass import errors
from windlass.errors import (
    ConfigError,
    HistoryTrimmedError,
    JobFailedError,
    JobSignal,
    MaxRetriesError,
    RateLimitError,
    Retry,
    Snooze,
    StorageError,
    WindlassError,
)

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if cls.__module__ == errors.__name__ and not cls.__name__.startswith("_")
]


@pytest.mark.feature("Z15")
def test_everything_is_a_windlass_error_or_a_signal() -> None:
    assert all(issubclass(cls, WindlassError | JobSignal) for cls in CLASSES)


@pytest.mark.feature("Z15")
def test_every_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in CLASSES if issubclass(cls, WindlassError)]
    assert len(set(codes)) == len(codes)


@pytest.mark.feature("Z15")
@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.StorageError, ConnectionError),
        (errors.JobNotFoundError, LookupError),
        (errors.WaitTimeoutError, TimeoutError),
        (errors.JobTimeoutError, TimeoutError),
        (errors.MaxRetriesError, JobFailedError),
        (errors.HistoryTrimmedError, StorageError),
    ],
)
def test_errors_can_be_caught_by_their_natural_builtin(
    cls: type[BaseException], builtin: type[BaseException]
) -> None:
    assert issubclass(cls, builtin)


@pytest.mark.feature("Z15", "C16")
def test_an_error_carries_its_facts() -> None:
    error = MaxRetriesError("a", 3, "ValueError", "bad", "trace", {"to": "ada"})
    assert (error.job_id, error.attempts, error.error_class, error.payload) == (
        "a",
        3,
        "ValueError",
        {"to": "ada"},
    )
    assert "all 3 attempts failed" in str(error) and "ValueError: bad" in str(error)
    trimmed = HistoryTrimmedError("history", "q", 5, 9)
    assert (trimmed.after, trimmed.oldest) == (5, 9)


@pytest.mark.feature("B15", "C9")
@pytest.mark.parametrize("signal", [Snooze, Retry, RateLimitError])
def test_a_signal_takes_seconds_or_a_timedelta(signal: Any) -> None:
    assert signal(1.5).delay_ms == 1_500
    assert signal(timedelta(minutes=1)).delay_ms == 60_000
    assert signal().delay_ms == 0
    for wrong in (-1, "soon", None, True, float("nan"), float("inf")):
        with pytest.raises(ConfigError):
            signal(wrong)


def test_signals_are_not_errors() -> None:
    assert not issubclass(JobSignal, WindlassError)
