"""Pika's warnings of channels that the broker closed, without those that are expected."""

from __future__ import annotations

import logging
from collections.abc import Callable


def ignore_refusals(is_expected: Callable[[int, str], bool]) -> None:
    """Drop warnings whose code and text ``is_expected`` knows."""

    def is_news(record: logging.LogRecord) -> bool:
        args = record.args
        if not isinstance(args, tuple) or len(args) < 2 or not isinstance(args[0], int):
            return True  # pika's own objects cannot even be compared with a number
        return not is_expected(args[0], str(args[1]))

    logging.getLogger("pika.channel").addFilter(is_news)
