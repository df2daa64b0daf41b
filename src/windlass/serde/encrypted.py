"""Encrypted payloads: AES-256-GCM by ``cryptography`` (``pip install windlass[crypto]``).

Stored as ``wl-e2.<key id>.`` + 12 random bytes + ciphertext and tag. The key id and the label of the data
(see ``windlass.serde.sealing``) are authenticated, so data that was moved to another job cannot be decrypted.
The format of older releases (``wl-e1.``) authenticates only the key id; it is read until
``accept_unbound_until``.

Task names, options, tags, errors and logs are not encrypted: keep secrets in arguments and results. Nonces
are random: change the key after 2^32 writes.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from windlass.errors import ConfigError, SignatureError, not_installed
from windlass.serde import Codec, get_codec
from windlass.serde.keys import KeyRing, split_head
from windlass.serde.sealing import SealingCodec, UnboundEra, sealed_name

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError as _missing:
    raise not_installed("codec", "the encrypting codec", "windlass[crypto]") from _missing

_MARK = b"wl-e2."
_UNBOUND_MARK = b"wl-e1."
_NONCE = 12
_KEY_BYTES = 32


def new_key() -> str:
    """Return a new random key, as text for a settings file or an environment variable."""
    return base64.urlsafe_b64encode(os.urandom(_KEY_BYTES)).decode()


class EncryptedCodec(SealingCodec):
    """Another codec, encrypted. ``keys`` maps key ids to keys of ``new_key()``; the first one encrypts."""

    def __init__(
        self,
        keys: Mapping[str, bytes | str],
        inner: str | Codec = "json",
        *,
        name: str | None = None,
        accept_unbound_until: datetime | float | None = None,
    ) -> None:
        self.inner: Codec = get_codec(inner) if isinstance(inner, str) else inner
        self._keys = KeyRing(keys, minimum=_KEY_BYTES)
        self._ciphers = {key_id: AESGCM(_as_key(key_id, key)) for key_id, key in self._keys.items()}
        self._unbound = UnboundEra(accept_unbound_until)
        self.name: str = sealed_name(name, f"{self.inner.name}+aes")

    def seal(self, data: bytes, label: bytes) -> bytes:
        """Encrypt ``data``, bound to ``label``."""
        key_id = self._keys.current
        head = _MARK + key_id.encode() + b"."
        nonce = os.urandom(_NONCE)
        return head + nonce + self._ciphers[key_id].encrypt(nonce, data, head + label)

    def unseal(self, data: bytes, labels: Sequence[bytes]) -> bytes:
        """Decrypt data that was encrypted for one of ``labels``. Raises ``SignatureError``."""
        data = bytes(data)
        mark = _MARK
        if data.startswith(_UNBOUND_MARK):
            self._unbound.check()
            mark, labels = _UNBOUND_MARK, [b""]
        key_id, rest = split_head(data, mark)
        self._keys.get(key_id)
        head = mark + key_id.encode() + b"."
        for label in labels:
            try:
                return self._ciphers[key_id].decrypt(rest[:_NONCE], rest[_NONCE:], head + label)
            except (InvalidTag, ValueError):
                continue
        raise SignatureError(
            "it was changed, cut off, encrypted with another key, or encrypted for another job"
        )


def _as_key(key_id: str, key: bytes) -> bytes:
    """Return the 32 bytes of a key, given as bytes or in base64."""
    if len(key) != _KEY_BYTES:
        try:
            key = base64.urlsafe_b64decode(key)
        except (binascii.Error, ValueError):
            key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"key {key_id!r}", "32 bytes, or text from windlass.serde.encrypted.new_key()")
    return key
