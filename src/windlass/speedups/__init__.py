"""Optimisations that use private names or unusual techniques, each with a plain twin that uses public APIs.

Every module says what it does, why that is safe, and what it wins on the work that it is for.
``scripts/bench speedups`` measures that; a speed-up that wins less than 5 % is deleted. No other part of the
package uses a private name of another package, which ``scripts/check`` verifies.

``WINDLASS_SPEEDUPS=off`` selects all plain twins, ``WINDLASS_SPEEDUPS=amqp,recast`` those of the listed
speed-ups. The variable is read once, when this package is imported.
"""

from __future__ import annotations

import os

from windlass.errors import ConfigError

#: The speed-ups, by the names of their modules.
NAMES = ("amqp", "amqp_loop", "recast", "valkey")
VARIABLE = "WINDLASS_SPEEDUPS"


def read_off(text: str) -> frozenset[str]:
    """The speed-ups that ``text`` turns off. It is empty, ``off``, or a comma-separated list of names."""
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
