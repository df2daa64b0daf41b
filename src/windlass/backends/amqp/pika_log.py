"""Filters pika's warnings about channels that the broker closed, for refusals that we expect."""

from __future__ import annotations

import logging
from collections.abc import Callable


def ignore_refusals(is_expected: Callable[[int, str], bool]) -> None:
    """Drop warnings for which ``is_expected(code, text)`` is true."""

    def keep(record: logging.LogRecord) -> bool:
        args = record.args
        if not isinstance(args, tuple) or len(args) < 2 or not isinstance(args[0], int):
            return True  # not a refusal: pika logs other objects here
        return not is_expected(args[0], str(args[1]))

    logging.getLogger("pika.channel").addFilter(keep)
