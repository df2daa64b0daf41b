"""Refuse requests that could not be read back from the log.

A step consists of values of a request and of values that were read before. So a request is encoded and
decoded by its declared types before anything is decided. If that fails, the request is refused and nothing
changes. Decoding the step itself would find the same mistakes at twice the cost.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from windlass.backend import requests as rq
from windlass.errors import ConfigError

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}


def check(request: rq.Request[Any]) -> int:
    """Return the encoded size of ``request``. Raises ``ConfigError`` if a value is of a wrong type."""
    kind = type(request)
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    data = _encoder.encode(request)
    try:
        decoder.decode(data)
    except msgspec.MsgspecError as exc:
        raise ConfigError(
            kind.__name__, message=f"{kind.__name__} has a value of a wrong type ({exc})"
        ) from exc
    return len(data)
