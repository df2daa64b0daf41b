"""Cursors of listings: where a page begins, and which texts are no cursors."""

from __future__ import annotations

import pytest

from windlass.core.order import LAST, seq_after
from windlass.errors import ConfigError


def test_a_listing_begins_before_all_jobs_or_behind_its_cursor() -> None:
    assert seq_after(None, newest_first=True) == LAST
    assert seq_after(None, newest_first=False) == 0
    assert seq_after("7", newest_first=True) == seq_after("7", newest_first=False) == 7


@pytest.mark.parametrize("cursor", ["", "x", "-5", "1.2", "9" * 20])
def test_a_text_that_no_page_gave_is_refused(cursor: str) -> None:
    with pytest.raises(ConfigError, match="cursor"):
        seq_after(cursor, newest_first=True)
