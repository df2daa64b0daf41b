"""The unpickler that knows plain data only."""

from __future__ import annotations

import os
import pickle
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.importing.model import Unreadable
from windlass.importing.plain import load_plain

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(
    derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)  # a busy machine is no failure
@given(PLAIN, st.integers(3, pickle.HIGHEST_PROTOCOL))  # before 3, bytes are calls of a codec
def test_plain_data_comes_back(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize(
    "value",
    [datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2), timedelta(1), Decimal("1.5"), UUID(int=7), {1, 2}],
    ids=lambda value: type(value).__name__,
)
def test_the_admitted_classes(value: object) -> None:
    assert load_plain(pickle.dumps(value)) == value


class Evil:
    def __init__(self, call: Any, *args: Any) -> None:
        self.call = (call, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "evil",
    [Evil(os.mkdir, "made-by-a-pickle"), Evil(eval, "1"), Evil(getattr, "", "join")],
    ids=["mkdir", "eval", "getattr"],
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_something_is_refused_before_it_does(
    evil: Evil, protocol: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unreadable, match="which is not plain data"):
        load_plain(pickle.dumps([1, evil], protocol))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"not a pickle", b"\x80\x04", pickle.dumps([1, 2, 3])[:-3], b"r" + struct.pack("<I", 2**31) + b"."],
    ids=["empty", "text", "no more", "cut off", "forged index"],
)
def test_damaged_and_forged_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match="damaged"):
        load_plain(data)


def test_a_huge_pickle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.importing.plain.MOST_BYTES", 10)
    with pytest.raises(Unreadable, match="over the limit of 10"):
        load_plain(pickle.dumps("x" * 100))
