"""``get_task_logger``: a standard logger; lines that a task writes name its job anyway."""

from __future__ import annotations

import logging


def get_task_logger(name: str) -> logging.Logger:
    """The logger of that name."""
    return logging.getLogger(name)
