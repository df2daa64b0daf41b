"""Describes cron expressions in words."""

from __future__ import annotations

from collections.abc import Callable

from windlass.core.schedule_rules import ALIASES

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October"),
    *("November", "December"),
)


#: A longer expression is not described: it may hold numbers that are too long to be read.
_LONGEST = 1_000


def in_words(expression: str) -> str:
    """Describe a cron expression: ``at 09:30, on Monday to Friday``; unusual ones field by field."""
    fields = ALIASES.get(expression, expression).split()
    if len(fields) != 5 or len(expression) > _LONGEST:
        return f"cron {expression}"
    minute, hour, day, month, weekday = fields
    parts = [_time(minute, hour)]
    on_day = "" if day in ("*", "?") else _day(day)
    on_weekday = "" if weekday in ("*", "?") else f"on {_listed(weekday, _weekday)}"
    if on_day and on_weekday:  # either is enough
        parts.append(f"{on_day} or {on_weekday}")
    else:
        parts += [part for part in (on_day, on_weekday) if part]
    if month != "*":
        parts.append(f"in {_listed(month, _month)}")
    return ", ".join(parts)


def _time(minute: str, hour: str) -> str:
    if minute.isdecimal() and all(one.isdecimal() for one in hour.split(",")):
        return "at " + _joined([f"{int(one):02}:{int(minute):02}" for one in hour.split(",")])
    if hour == "*":
        return "every hour" if minute == "0" else _of(minute, "minute", "every minute", "of every hour")
    hours = _of(hour, "hour", "every hour", "")
    return hours if minute == "0" else f"{_of(minute, 'minute', 'every minute', '')}, {hours}"


def _of(field: str, unit: str, every: str, rest: str) -> str:
    """Describe a field of minutes or hours."""
    base, _, step = field.partition("/")
    if step:
        span = "" if base in ("*", "0") else f" of {unit} {_listed(base, str)}"
        return f"every {step} {unit}s{span}" if step != "1" else every + span
    if field == "*":
        return every
    many = "s" if "," in field or "-" in field else ""
    return " ".join(part for part in (f"at {unit}{many} {_listed(field, str)}", rest) if part)


def _day(field: str) -> str:
    if field.upper() == "L":
        return "on the last day of the month"
    base, _, step = field.partition("/")
    if step:
        return f"every {step} days of the month"
    many = "s" if "," in field or "-" in field else ""
    return f"on day{many} {_listed(base, str)} of the month"


def _listed(field: str, named: Callable[[str], str]) -> str:
    """Describe a list of numbers and ranges, by name."""
    found = []
    for one in field.split(","):
        first, _, last = one.partition("-")
        found.append(f"{named(first)} to {named(last)}" if last else named(first))
    return _joined(found)


def _joined(found: list[str]) -> str:
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"


def _weekday(text: str) -> str:
    return _named(text, _DAYS, 0)


def _month(text: str) -> str:
    return _named(text, _MONTHS, 1)


def _named(text: str, names: tuple[str, ...], first: int) -> str:
    """Return the full name for a number or a short name; any other text unchanged."""
    if text.isdecimal():
        number = int(text) - first
        if names is _DAYS:
            number %= 7
        return names[number] if 0 <= number < len(names) else text
    return next((name for name in names if name[:3].lower() == text.lower()[:3] and len(text) > 2), text)
