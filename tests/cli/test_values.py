"""Durations, ages and the like."""

from __future__ import annotations

import click
import pytest

from windlass.cli import values
from windlass.cli.job import progress_text
from windlass.cli.worker import parse_weights

pytestmark = pytest.mark.feature("X3")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86_400),
        ("250ms", 0.25),
        ("1h30m", 5400),
        ("90", 90),
        ("1.5", 1.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "10", "-5s", "5 parsecs", "s", "1h 30m", "10sm"])
def test_what_is_no_duration(text: str) -> None:
    if text == "10":
        assert values.parse_duration(text) == 10
        return
    with pytest.raises(ValueError, match="not a duration"):
        values.parse_duration(text)


@pytest.mark.parametrize(
    ("ms", "span", "age"),
    [
        (0, "0ms", "now"),
        (12, "12ms", "now"),
        (3_400, "3.4s", "3s"),
        (2_000, "2s", "2s"),
        (130_000, "2m10s", "2m"),
        (14_700_000, "4h05m", "4h"),
        (270_000_000, "3d03h", "3d"),
        (-5, "0ms", "now"),
        (None, "", ""),
    ],
)
def test_spans_and_ages(ms: float | None, span: str, age: str) -> None:
    assert values.show_span(ms) == span
    assert values.show_age(ms) == age


def test_sizes_rates_and_bars() -> None:
    assert [values.show_bytes(size) for size in (12, 4_200_000, 7e12)] == ["12 B", "4.2 MB", "7,000.0 GB"]
    assert [values.show_rate(rate) for rate in (0, 0.44, 12.5, 1234)] == ["0", "0.4", "12.5", "1,234"]
    assert values.sparkline([0, 0]) == "▁▁"
    assert values.sparkline([0, 5, 10]) == "▁▄█"
    assert values.show_time(1_750_000_000_123).endswith(".123")


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (50, "50%"),
        ({"current": 1, "total": 4}, '25%  {"current":1,"total":4}'),
        ({"current": 1, "total": 0}, '{"current":1,"total":0}'),
        (True, "true"),
        ("halfway", '"halfway"'),
        (250, "250%"),
    ],
)
def test_progress(progress: object, text: str) -> None:
    assert progress_text(progress).endswith(text)


@pytest.mark.feature("X2")
def test_queues_with_weights() -> None:
    assert parse_weights("a,b:3, c:0.5,") == {"a": 1, "b": 3, "c": 0.5}
    assert parse_weights(None) == {}
    for wrong in ("a:", ":3", "a:x", "a:0", "a:-1", "a:nan"):
        with pytest.raises(click.BadParameter, match="NAME or NAME:WEIGHT"):
            parse_weights(wrong)
