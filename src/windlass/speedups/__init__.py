"""Speed-ups that rest on private or unusual ground, each beside a plain twin that uses ordinary public means.

Every module here says what it does, why that is safe and what it wins on the work that it is for, which
``scripts/bench speedups`` measures again; what wins less than 5 % is deleted. No other part of the package
uses a private name of another package: ``scripts/check`` looks for that.

``WINDLASS_SPEEDUPS=off`` takes the plain twins, all of them; ``WINDLASS_SPEEDUPS=amqp,recast`` those of
the named ones. It is read once, here, when the first of them is imported.
"""

from __future__ import annotations

import os

from windlass.errors import ConfigError

#: The speed-ups, by the names of their modules.
NAMES = ("amqp", "recast", "valkey")
VARIABLE = "WINDLASS_SPEEDUPS"


def read_off(text: str) -> frozenset[str]:
    """Which speed-ups ``text`` turns off: nothing, ``off``, or names with commas between them."""
    if text.strip().lower() == "off":
        return frozenset(NAMES)
    off = frozenset(name.strip() for name in text.split(",") if name.strip())
    if unknown := sorted(off - set(NAMES)):
        raise ConfigError(VARIABLE, f"empty, off, or some of {', '.join(NAMES)}", ", ".join(unknown))
    return off


_OFF = read_off(os.environ.get(VARIABLE, ""))


def enabled(name: str) -> bool:
    """Whether the speed-up ``name`` is in use in this process."""
    return name not in _OFF
