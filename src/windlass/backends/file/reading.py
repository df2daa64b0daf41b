"""What may be written to the log, and how it is read when an earlier release wrote something else.

A step is built from a request and from what was read before. So a request is read back, by its declared
types, before anything is decided: what reads as its types is written as such, and what does not is refused
with nothing changed. (Reading back the step itself would refuse the same, at twice the cost.)

Earlier releases did not look. They wrote, say, the reason None where a text belongs, and could not open the
log again. Such a frame is whole: its checksum says that it holds what was decided. So where a text was
expected, anything simple is read as a text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from windlass.core.text import clean_text
from windlass.errors import ConfigError

if TYPE_CHECKING:
    from windlass.backend import requests as rq

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}
#: A refusal of msgspec: what it wanted, and where.
_WANTED: Final = re.compile(r"Expected `str(?: \| null)?`, got `[^`]+` - at `\$(.*)`")
_STEP: Final = re.compile(r"\[(\d+)\]|\.(\w+)")
#: Most values of one frame that are read as texts.
_MAX_MENDED: Final = 10_000


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


def read(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview | msgspec.Raw) -> tuple[Any, int]:
    """The value of ``data``, and how many values in it were read as texts although they are none.

    Raises ``msgspec.DecodeError`` when more than that is wrong.
    """
    try:
        return decoder.decode(data), 0
    except msgspec.ValidationError as exc:
        return _read_loosely(decoder, msgspec.msgpack.decode(data), exc)


def _read_loosely(
    decoder: msgspec.msgpack.Decoder[Any], plain: Any, refusal: msgspec.ValidationError
) -> tuple[Any, int]:
    for count in range(1, _MAX_MENDED):
        if not _make_text(plain, str(refusal)):
            break
        try:
            return decoder.decode(_encoder.encode(plain)), count
        except msgspec.ValidationError as exc:
            refusal = exc
    raise refusal


def _make_text(plain: Any, refusal: str) -> bool:
    """Make a text of the value that was refused; False when no text was wanted there."""
    found = _WANTED.fullmatch(refusal)
    if found is None:
        return False
    path = [int(number) if number else name for number, name in _STEP.findall(found[1])]
    if not path or "".join(match[0] for match in _STEP.finditer(found[1])) != found[1]:
        return False
    *way, last = path
    for step in way:
        plain = plain[step]
    value = plain[last]
    if isinstance(value, (str, list, dict)):
        return False
    plain[last] = "" if value is None else clean_text(value)
    return True
