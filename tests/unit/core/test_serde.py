"""Codecs: what goes in comes out, what cannot be stored is refused, nothing is pickled."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass import serde
from windlass.errors import ConfigError, PayloadTooLargeError
from windlass.serde import encode_payload, get_codec, register_codec
from windlass.serde.encrypted import EncryptedCodec, new_key
from windlass.serde.signed import SignedCodec

_json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.feature("W1", "W3")
@given(_json_values)
def test_json_gives_back_what_it_was_given(value: Any) -> None:
    codec = get_codec("json")
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.feature("W2")
@given(_json_values)
def test_msgpack_gives_back_what_it_was_given(value: Any) -> None:
    codec = get_codec("msgpack")
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.feature("W2")
def test_msgpack_keeps_bytes() -> None:
    codec = get_codec("msgpack")
    assert codec.decode(codec.encode({"raw": b"\x00\xff"})) == {"raw": b"\x00\xff"}


@pytest.mark.feature("A37", "W1")
@given(_json_values)
def test_a_compressed_codec_gives_back_what_it_was_given(value: Any) -> None:
    codec = get_codec("json+zlib")
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.feature("A37")
def test_large_values_are_compressed_and_small_ones_stay_readable() -> None:
    codec = get_codec("json+zlib")
    assert codec.encode({"a": 1}) == b'{"a":1}'
    assert len(codec.encode("x" * 100_000)) < 2_000


@pytest.mark.feature("W1")
@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"nul"])
def test_bytes_of_something_else_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        get_codec("json").decode(data)


@pytest.mark.feature("W1")
def test_damaged_compressed_bytes_are_a_value_error() -> None:
    codec = get_codec("json+zlib")
    data = codec.encode("x" * 10_000)
    for damaged in (data[:-3], data[:20] + b"\x00" * 20, b"x\x9cjunk"):
        with pytest.raises(ValueError):
            codec.decode(damaged)


@dataclasses.dataclass
class Order:
    id: UUID
    at: datetime
    total: Decimal


@pytest.mark.feature("W1", "W4")
def test_rich_types_become_plain_json() -> None:
    order = Order(UUID(int=5), datetime(2030, 1, 1, tzinfo=UTC), Decimal("1.50"))
    plain = msgspec.json.decode(encode_payload(get_codec("json"), order))
    assert plain == {
        "id": "00000000-0000-0000-0000-000000000005",
        "at": "2030-01-01T00:00:00Z",
        "total": "1.50",
    }


@pytest.mark.feature("A37", "W1")
@pytest.mark.parametrize("value", [object(), {1, object()}, lambda: None, "\ud800"])
def test_what_cannot_be_stored_is_refused_with_a_typed_error(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        encode_payload(get_codec("json"), value)
    assert caught.value.option == "arguments"


@pytest.mark.feature("A37")
def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ConfigError):
        encode_payload(get_codec("json"), loop)


@pytest.mark.feature("A37")
def test_the_cap_is_on_the_encoded_size() -> None:
    codec = get_codec("json")
    assert len(encode_payload(codec, "x" * 98, 100)) == 100
    with pytest.raises(PayloadTooLargeError) as caught:
        encode_payload(codec, "x" * 99, 100)
    assert (caught.value.size, caught.value.limit) == (101, 100)
    assert serde.DEFAULT_MAX_BYTES == 1_000_000


class Rot13:
    name = "rot13"

    def encode(self, value: Any) -> bytes:
        return str(value).encode()[::-1]

    def decode(self, data: bytes) -> Any:
        return data[::-1].decode()


@pytest.mark.feature("W1", "W2")
def test_ones_own_codec_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serde, "_codecs", dict(serde._codecs))
    register_codec(Rot13())
    codec = get_codec("rot13")
    assert codec.decode(codec.encode("abc")) == "abc"


@pytest.mark.parametrize("wrong", [object(), "json", type("X", (), {"name": "x"})()])
def test_what_is_no_codec_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        register_codec(wrong)


@pytest.mark.feature("Z6")
@pytest.mark.parametrize("name", ["pickle", "yaml", "", "pickle+zlib"])
def test_an_unknown_codec_is_refused_and_there_is_no_pickle(name: str) -> None:
    with pytest.raises(ConfigError, match=r"json.* msgpack"):
        get_codec(name)


@pytest.mark.parametrize("name", ["json", "msgpack", "json+zlib", "msgpack+zlib"])
def test_a_codec_with_keys_takes_no_name_of_a_plain_one(name: str) -> None:
    """Its app would read the other plain codecs as well, and every app of the process would sign."""
    with pytest.raises(ConfigError, match="without a seal"):
        SignedCodec({"k": "0123456789abcdef"}, name=name)
    with pytest.raises(ConfigError, match="without a seal"):
        EncryptedCodec({"k": new_key()}, name=name)
