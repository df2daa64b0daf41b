"""Signed and encrypted payloads: what goes in comes out, what was touched is refused, keys can change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.errors import ConfigError, SignatureError
from windlass.serde import Codec, get_codec
from windlass.serde.encrypted import EncryptedCodec, new_key
from windlass.serde.signed import SignedCodec

Make = Callable[..., Codec]

_KEYS = {"new": new_key(), "old": new_key()}
MAKERS: list[Make] = [SignedCodec, EncryptedCodec]
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


@pytest.mark.feature("W5")
@pytest.mark.parametrize("codec", [SignedCodec(_KEYS), EncryptedCodec(_KEYS)], ids=lambda codec: codec.name)
@given(value=_values)
def test_what_goes_in_comes_out(codec: Codec, value: Any) -> None:
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.feature("W5")
def test_signed_data_stays_readable_and_encrypted_data_does_not() -> None:
    assert SignedCodec(_KEYS).encode({"card": "4242"}).endswith(b'.{"card":"4242"}')
    sealed = EncryptedCodec(_KEYS)
    first, second = sealed.encode({"card": "4242"}), sealed.encode({"card": "4242"})
    assert b"4242" not in first
    assert first != second, "the same value never looks the same"


@pytest.mark.feature("W5")
def test_every_changed_byte_is_noticed(make: Make) -> None:
    codec = make(_KEYS)
    data = codec.encode({"amount": 10})
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(SignatureError):
            codec.decode(bytes(changed))
    for end in range(len(data)):
        with pytest.raises(SignatureError):
            codec.decode(data[:end])
    with pytest.raises(SignatureError):
        codec.decode(get_codec("json").encode({"amount": 10}))


@pytest.mark.feature("W5")
def test_an_old_key_still_reads_and_no_longer_writes(make: Make) -> None:
    before = make({"old": _KEYS["old"]})
    data = before.encode("hello")
    both = make(_KEYS)
    assert both.decode(data) == "hello"
    assert both.encode("hello").split(b".", 2)[1] == b"new"
    with pytest.raises(SignatureError, match="'old', which is not known"):
        make({"new": _KEYS["new"]}).decode(data)
    with pytest.raises(SignatureError):
        make({"old": _KEYS["new"]}).decode(data)


@pytest.mark.feature("W5")
def test_keys_are_checked_and_never_shown(make: Make) -> None:
    for bad in ({}, {"a.b": _KEYS["new"]}, {"short": "secret"}, {"": _KEYS["new"]}):
        with pytest.raises(ConfigError) as caught:
            make(bad)
        assert "secret" not in str(caught.value).replace("secrets", "")
    assert _KEYS["new"] not in repr(vars(make(_KEYS)))
    with pytest.raises(ConfigError, match="32 bytes"):
        EncryptedCodec({"text": "x" * 40})


@pytest.mark.feature("W5", "A37")
def test_they_wrap_any_codec(make: Make) -> None:
    assert make(_KEYS, "msgpack").decode(make(_KEYS, "msgpack").encode({"raw": b"\xff"})) == {"raw": b"\xff"}
    small = make(_KEYS, "json+zlib")
    assert len(small.encode("a" * 100_000)) < 1_000
    assert small.decode(small.encode("a" * 100_000)) == "a" * 100_000
    assert make(_KEYS, name="payments").name == "payments"
