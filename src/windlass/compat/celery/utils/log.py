"""``get_task_logger``: returns a standard logger. Log lines of a task name its job in any case."""

from __future__ import annotations

import logging


def get_task_logger(name: str) -> logging.Logger:
    """The logger of that name."""
    return logging.getLogger(name)
