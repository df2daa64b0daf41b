"""Encrypted payloads: AES-256-GCM by ``cryptography`` (``pip install windlass[crypto]``).

Stored as ``wl-e1.<key id>.`` + 12 random bytes + ciphertext and tag. The key id is authenticated with the
data. Task names, options, tags, errors and logs are not encrypted: keep secrets in arguments and results.
Nonces are random: change the key after 2^32 writes.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Any

from windlass.errors import ConfigError, SignatureError
from windlass.serde import Codec, encode_value, get_codec
from windlass.serde.keys import KeyRing, split_head

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError as _missing:
    raise ConfigError("codec", "usable here: pip install 'windlass[crypto]'") from _missing

_MARK = b"wl-e1."
_NONCE = 12
_KEY_BYTES = 32


def new_key() -> str:
    """A new random key, as text for a settings file or an environment variable."""
    return base64.urlsafe_b64encode(os.urandom(_KEY_BYTES)).decode()


class EncryptedCodec:
    """Another codec, encrypted. ``keys`` maps key ids to what ``new_key()`` makes; the first one writes."""

    def __init__(
        self, keys: Mapping[str, bytes | str], inner: str | Codec = "json", *, name: str | None = None
    ) -> None:
        self._inner = get_codec(inner) if isinstance(inner, str) else inner
        self._keys = KeyRing(keys, minimum=_KEY_BYTES)
        self._ciphers = {key_id: AESGCM(_as_key(key_id, key)) for key_id, key in self._keys.items()}
        self.name: str = name or f"{self._inner.name}+aes"

    def encode(self, value: Any) -> bytes:
        """The encrypted bytes of ``value``."""
        key_id = self._keys.current
        head = _MARK + key_id.encode() + b"."
        nonce = os.urandom(_NONCE)
        return head + nonce + self._ciphers[key_id].encrypt(nonce, encode_value(self._inner, value), head)

    def decode(self, data: bytes) -> Any:
        """The value; ``SignatureError`` when it was not written by a holder of a known key."""
        key_id, rest = split_head(bytes(data), _MARK)
        self._keys.get(key_id)
        head = _MARK + key_id.encode() + b"."
        try:
            plain = self._ciphers[key_id].decrypt(rest[:_NONCE], rest[_NONCE:], head)
        except (InvalidTag, ValueError):
            raise SignatureError("it was changed, cut off, or encrypted with another key") from None
        return self._inner.decode(plain)


def _as_key(key_id: str, key: bytes) -> bytes:
    """32 bytes, given as they are or in base64."""
    if len(key) != _KEY_BYTES:
        try:
            key = base64.urlsafe_b64decode(key)
        except (binascii.Error, ValueError):
            key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"key {key_id!r}", "32 bytes, or text from windlass.serde.encrypted.new_key()")
    return key
