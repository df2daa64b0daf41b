"""Keys by id, for codecs that sign or encrypt. The first key writes, all keys read.

To rotate keys, put the new one first and keep the old ones until no job that was written with them is left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from windlass.errors import ConfigError, SignatureError

_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")


class KeyRing:
    """Secrets by key id. They never appear in a message or a ``repr``."""

    def __init__(self, keys: Mapping[str, bytes | str], *, minimum: int) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise ConfigError("keys", "a mapping from key ids to secrets (the first one writes)")
        self._keys: dict[str, bytes] = {}
        for key_id, secret in keys.items():
            if not isinstance(key_id, str) or not _ID.fullmatch(key_id):
                raise ConfigError("key id", "1 to 32 letters, digits, - or _", key_id)
            data = secret.encode() if isinstance(secret, str) else secret
            if not isinstance(data, bytes) or len(data) < minimum:
                raise ConfigError(f"key {key_id!r}", f"bytes or text, at least {minimum} bytes long")
            self._keys[key_id] = data
        #: The id of the key that writes.
        self.current: str = next(iter(self._keys))

    def __repr__(self) -> str:
        return f"<KeyRing {', '.join(self._keys)}>"

    def items(self) -> list[tuple[str, bytes]]:
        """Return all keys, the writing one first."""
        return list(self._keys.items())

    def get(self, key_id: str) -> bytes:
        """Return a secret. Raises ``SignatureError`` when the id is unknown."""
        found = self._keys.get(key_id)
        if found is None:
            raise SignatureError(
                f"written with key {key_id!r}, which is not known here: give this codec that key as well"
            )
        return found


def split_head(data: bytes, mark: bytes) -> tuple[str, bytes]:
    """Split ``mark + id + "." + rest`` into key id and rest. Raises ``SignatureError``."""
    head, dot, _ = data[len(mark) : len(mark) + 33].partition(b".")
    if not data.startswith(mark) or not dot:
        raise SignatureError("not signed or encrypted with this codec: was it written by an app without it?")
    try:
        key_id = head.decode("ascii")
    except UnicodeDecodeError:
        raise SignatureError("damaged: its key id cannot be read") from None
    return key_id, data[len(mark) + len(head) + 1 :]
