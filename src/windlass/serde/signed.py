"""Signed payloads: any program can read them, but only holders of a key can write them (HMAC-SHA256).

Stored as ``wl-s2.<key id>.<64 hex digits>.<data of the inner codec>``. The signature covers the key id, the
data and its label (see ``windlass.serde.sealing``), so data that was moved to another job is refused. The
format of older releases (``wl-s1.``) covers only key id and data; it is read until ``accept_unbound_until``.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime

from windlass.errors import SignatureError
from windlass.serde import Codec, get_codec
from windlass.serde.keys import KeyRing, split_head
from windlass.serde.sealing import SealingCodec, UnboundEra, sealed_name

_MARK = b"wl-s2."
_UNBOUND_MARK = b"wl-s1."
_HEX = 64


class SignedCodec(SealingCodec):
    """Another codec, signed. ``keys`` maps key ids to secrets of 16 bytes or more; the first one signs."""

    def __init__(
        self,
        keys: Mapping[str, bytes | str],
        inner: str | Codec = "json",
        *,
        name: str | None = None,
        accept_unbound_until: datetime | float | None = None,
    ) -> None:
        self.inner: Codec = get_codec(inner) if isinstance(inner, str) else inner
        self._keys = KeyRing(keys, minimum=16)
        self._unbound = UnboundEra(accept_unbound_until)
        self.name: str = sealed_name(name, f"{self.inner.name}+signed")

    def seal(self, data: bytes, label: bytes) -> bytes:
        """Return ``data`` with its signature, bound to ``label``."""
        key_id = self._keys.current
        return b"%s%s.%s.%s" % (_MARK, key_id.encode(), self._sign(key_id, _bound(label, data)), data)

    def unseal(self, data: bytes, labels: Sequence[bytes]) -> bytes:
        """Return data that was signed for one of ``labels``. Raises ``SignatureError``."""
        data = bytes(data)
        if data.startswith(_UNBOUND_MARK):
            self._unbound.check()
            key_id, signature, body = _split(data, _UNBOUND_MARK)
            signed = [self._sign(key_id, body, _UNBOUND_MARK)]
        else:
            key_id, signature, body = _split(data, _MARK)
            signed = [self._sign(key_id, _bound(label, body)) for label in labels]
        if not any(hmac.compare_digest(signature, each) for each in signed):
            raise SignatureError(
                "its signature is wrong: it was changed, or signed with another secret or for another job"
            )
        return body

    def _sign(self, key_id: str, data: bytes, mark: bytes = _MARK) -> bytes:
        message = b"%s%s.%s" % (mark, key_id.encode(), data)
        return hmac.new(self._keys.get(key_id), message, "sha256").hexdigest().encode()


def _bound(label: bytes, data: bytes) -> bytes:
    """Join label and data. The length in front makes this unambiguous."""
    return b"%d.%s%s" % (len(label), label, data)


def _split(data: bytes, mark: bytes) -> tuple[str, bytes, bytes]:
    """Return the key id, the signature and the body."""
    key_id, rest = split_head(data, mark)
    if rest[_HEX : _HEX + 1] != b".":
        raise SignatureError("its signature is wrong: it is cut off")
    return key_id, rest[:_HEX], rest[_HEX + 1 :]
