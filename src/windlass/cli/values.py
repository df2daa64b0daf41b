"""Parses and formats values: durations, ages, sizes, ``key=value`` pairs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from windlass.core.text import show_age as show_age

if TYPE_CHECKING:
    _ParamType = click.ParamType[float]
else:
    _ParamType = click.ParamType  # not generic before click 8.5

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_BARE = re.compile(r"\d+(?:\.\d+)?\Z")
_BARS = "▁▂▃▄▅▆▇█"


def parse_duration(text: str) -> float:
    """Seconds from ``10s``, ``5m``, ``1h30m``, ``250ms`` or a number of seconds. Raises ``ValueError``."""
    text = text.strip().lower()
    if _BARE.match(text):
        return float(text)
    seconds, at = 0.0, 0
    for part in _PART.finditer(text):
        if part.start() != at:
            break
        seconds += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    if not text or at != len(text):
        raise ValueError(f"{text!r} is not a duration: write 10s, 5m, 2h, 1d, 250ms or 1h30m")
    return seconds


class Duration(_ParamType):
    """A duration option, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        try:
            return parse_duration(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


DURATION = Duration()


def json_or_text(text: str) -> Any:
    """``text`` parsed as JSON, or ``text`` itself if it is not valid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, Any]:
    """Parse ``key=value`` pairs. A value that is valid JSON is parsed; any other is a text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"write KEY=VALUE, got {pair!r}", param_hint=f"'{option}'")
        found[key] = json_or_text(value)
    return found


def parse_json(text: str, option: str) -> Any:
    """Parse a JSON value. Raises a usage error with the position of the mistake."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        hint = f"not JSON at character {exc.pos + 1} ({exc.msg}): {text!r}"
        raise click.BadParameter(hint, param_hint=f"'{option}'") from exc
    except (ValueError, RecursionError) as exc:
        raise click.BadParameter(f"not JSON that can be read ({exc})", param_hint=f"'{option}'") from exc


def show_span(ms: float | None) -> str:
    """A short duration: ``12ms``, ``3.4s``, ``2m10s``, ``4h05m``, ``3d``."""
    if ms is None:
        return ""
    seconds = max(ms, 0) / 1000
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = int(seconds)
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3_600:02d}h"


def show_time(ms: int | None, *, with_date: bool = True) -> str:
    """A time in the local time zone, to the millisecond."""
    if ms is None:
        return ""
    at = datetime.fromtimestamp(ms / 1000, UTC).astimezone()
    text = at.strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S")
    return f"{text}.{ms % 1000:03d}"


def show_count(number: int) -> str:
    """A count with thousands separators. Zero is shown as ``·``, which is easier to read in tables."""
    return f"{number:,}" if number else "·"


def show_bytes(size: float) -> str:
    """A size: ``812 B``, ``4.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1_000 or unit == "GB":
            return f"{size:.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1_000
    raise AssertionError


def show_rate(per_second: float) -> str:
    """A rate: ``0``, ``0.4``, ``12.5``, ``1,240``."""
    if per_second <= 0:
        return "0"
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def sparkline(values: Iterable[float]) -> str:
    """The values as small bars, relative to the highest."""
    points = list(values)
    top = max(points, default=0)
    if top <= 0:
        return _BARS[0] * len(points)
    return "".join(_BARS[min(int(point / top * 7.999), 7)] for point in points)
