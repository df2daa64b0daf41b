"""``crontab`` and ``schedule`` of ``beat_schedule``, and their conversion to schedules of Windlass."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from windlass.core.schedule_rules import Schedule
from windlass.errors import ConfigError

_ANY: Final = "*"
Field = str | int | Iterable[int]


class schedule:
    """A fixed interval, in seconds."""

    def __init__(self, run_every: float | timedelta, relative: bool = False) -> None:
        self.run_every = run_every if isinstance(run_every, timedelta) else timedelta(seconds=run_every)
        self.relative = relative

    def __repr__(self) -> str:
        return f"<every {self.run_every.total_seconds():g} s>"


class crontab:
    """A schedule by wall-clock fields: cron texts, numbers, or lists of numbers."""

    def __init__(
        self,
        minute: Field = _ANY,
        hour: Field = _ANY,
        day_of_week: Field = _ANY,
        day_of_month: Field = _ANY,
        month_of_year: Field = _ANY,
    ) -> None:
        self.minute = _field(minute)
        self.hour = _field(hour)
        self.day_of_week = _field(day_of_week)
        self.day_of_month = _field(day_of_month)
        self.month_of_year = _field(month_of_year)
        if self.day_of_week != _ANY and self.day_of_month != _ANY:
            raise ConfigError(
                "day_of_week",
                message="give day_of_week or day_of_month, not both: Celery means both of them, cron either; "
                "check one of the two in the task",
                got=day_of_week,
            )
        Schedule(cron=self.cron)  # validates the fields

    @property
    def cron(self) -> str:
        """The five fields of cron."""
        return " ".join((self.minute, self.hour, self.day_of_month, self.month_of_year, self.day_of_week))

    def __repr__(self) -> str:
        return f"<crontab {self.cron}>"


def _field(value: Field) -> str:
    if isinstance(value, str):
        return ",".join(_name(part) for part in value.replace(" ", "").split(","))
    return str(value) if isinstance(value, int) else ",".join(str(one) for one in value)


def _name(part: str) -> str:
    """Shorten names of days and months: Celery accepts full names, cron only three letters."""
    return "-".join(one[:3] if one.isalpha() else one for one in part.split("-"))


def to_windlass(given: Any, timezone: str) -> Schedule:
    """Convert the ``schedule`` of an entry: a crontab, a number of seconds, or a timedelta."""
    if isinstance(given, crontab):
        return Schedule(cron=given.cron, timezone=timezone)
    if isinstance(given, schedule):
        given = given.run_every
    if isinstance(given, (int, float, timedelta)) and not isinstance(given, bool):
        return Schedule(every=given)
    raise ConfigError("schedule", "a crontab, a number of seconds or a timedelta", given)
