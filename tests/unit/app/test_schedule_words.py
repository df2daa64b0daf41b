"""Cron expressions in words."""

from __future__ import annotations

import pytest

from windlass.schedules.cron_text import in_words


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("30 9 * * 1-5", "at 09:30, on Monday to Friday"),
        ("*/15 * * * *", "every 15 minutes"),
        ("* * * * *", "every minute"),
        ("0 * * * *", "every hour"),
        ("0 */6 * * *", "every 6 hours"),
        ("@daily", "at 00:00"),
        ("0 9,17 * * *", "at 09:00 and 17:00"),
        ("5 */2 * * mon,fri", "at minute 5, every 2 hours, on Monday and Friday"),
        ("0 0 1 1 *", "at 00:00, on day 1 of the month, in January"),
        ("0 0 13 * 5", "at 00:00, on day 13 of the month or on Friday"),
        ("0 0 * * 7", "at 00:00, on Sunday"),
        ("*/5 9-17 * jun-aug *", "every 5 minutes, at hours 9 to 17, in June to August"),
    ],
)
def test_a_cron_expression_is_told_in_words(cron: str, words: str) -> None:
    assert in_words(cron) == words
