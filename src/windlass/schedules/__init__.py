"""Schedules: jobs that are added again and again."""

from typing import TYPE_CHECKING

from windlass._renamed import old_names
from windlass.core.schedule_rules import Schedule
from windlass.schedules.verbs import ScheduleInfo

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

__all__ = ["Schedule", "ScheduleInfo"]
