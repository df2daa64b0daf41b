"""Signed payloads: readable by everybody, written only by holders of a key (HMAC-SHA256, standard library).

Stored as ``wl-s1.<key id>.<64 hex digits>.<data of the inner codec>``. The signature covers key id and data.
It proves who wrote the arguments, not for which job: somebody who can write to the store can still put
signed arguments under another job.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from windlass.errors import SignatureError
from windlass.serde import Codec, encode_value, get_codec
from windlass.serde.keys import KeyRing, split_head

_MARK = b"wl-s1."
_HEX = 64


class SignedCodec:
    """Another codec, signed. ``keys`` maps key ids to secrets of 16 bytes or more; the first signs."""

    def __init__(
        self, keys: Mapping[str, bytes | str], inner: str | Codec = "json", *, name: str | None = None
    ) -> None:
        self._inner = get_codec(inner) if isinstance(inner, str) else inner
        self._keys = KeyRing(keys, minimum=16)
        self.name: str = name or f"{self._inner.name}+signed"

    def encode(self, value: Any) -> bytes:
        """The bytes of ``value`` behind their signature."""
        data = encode_value(self._inner, value)
        key_id = self._keys.current
        return b"%s%s.%s.%s" % (_MARK, key_id.encode(), self._sign(key_id, data), data)

    def decode(self, data: bytes) -> Any:
        """The value; ``SignatureError`` when it was not written by a holder of a known key."""
        key_id, rest = split_head(bytes(data), _MARK)
        signature, body = rest[:_HEX], rest[_HEX + 1 :]
        if rest[_HEX : _HEX + 1] != b"." or not hmac.compare_digest(signature, self._sign(key_id, body)):
            raise SignatureError("its signature is wrong: it was changed, or signed with another secret")
        return self._inner.decode(body)

    def _sign(self, key_id: str, data: bytes) -> bytes:
        message = b"%s%s.%s" % (_MARK, key_id.encode(), data)
        return hmac.new(self._keys.get(key_id), message, "sha256").hexdigest().encode()
