"""What history keeps of error messages."""

from __future__ import annotations

import pytest

from windlass.core.job import BRIEF_CHARS, ErrorInfo
from windlass.core.masks import DEFAULT_MASK, HIDDEN, MessageMask


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("login failed: password=hunter2, user=ada", f"login failed: password={HIDDEN}, user=ada"),
        ('{"apiKey": "abc def", "id": 7}', f'{{"apiKey": {HIDDEN}, "id": 7}}'),
        ("db.password = 'a b c' refused", f"db.password = {HIDDEN} refused"),
        ("Authorization: Bearer abc.def is bad", f"Authorization: {HIDDEN} is bad"),
        ("GET https://ada:pw@host/x timed out", f"GET https://ada:{HIDDEN}@host/x timed out"),
        ("token='never closed", f"token={HIDDEN}"),
    ],
)
def test_values_of_masked_names_are_replaced(message: str, kept: str) -> None:
    assert MessageMask(DEFAULT_MASK).brief(message) == kept


@pytest.mark.parametrize("message", ["", "timeout after 30 s", "user=ada: no such table", "x" * 600])
def test_a_message_without_such_names_is_kept_by_its_beginning(message: str) -> None:
    error = ErrorInfo(message=message, brief=MessageMask(DEFAULT_MASK).brief(message))
    assert error.brief is None
    assert error.said == message[:BRIEF_CHARS]


def test_a_value_that_the_bound_cuts_through_is_hidden_all_the_same() -> None:
    message = "x" * (BRIEF_CHARS - 12) + ' secret="one two three four"'
    kept = MessageMask(DEFAULT_MASK).brief(message)
    assert kept is not None
    assert "one" not in kept and len(kept) == BRIEF_CHARS


def test_messages_can_be_switched_off_or_hidden_whole() -> None:
    assert MessageMask((), keep=False).brief("anything") == ""
    assert MessageMask(["*"]).brief("anything") == HIDDEN
    assert MessageMask(["customer"]).brief("customer=42 password=x") == f"customer={HIDDEN} password=x"
