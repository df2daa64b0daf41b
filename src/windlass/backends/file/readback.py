"""Only what reads back is written to the log.

A step is built from a request and from what was read before. So a request is read back, by its declared
types, before anything is decided: what does not read as its types is refused, with nothing changed. (Reading
back the step itself would refuse the same, at twice the cost.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from windlass.errors import ConfigError

if TYPE_CHECKING:
    from windlass.backend import requests as rq

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}


def check(request: rq.Request[Any]) -> int:
    """The size of ``request`` in bytes; ``ConfigError`` when a value is not of the type that it declares."""
    kind = type(request)
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    data = _encoder.encode(request)
    try:
        decoder.decode(data)
    except msgspec.MsgspecError as exc:
        raise ConfigError(kind.__name__, f"made of values of the right types ({exc})") from exc
    return len(data)
