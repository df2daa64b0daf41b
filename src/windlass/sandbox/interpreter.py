"""The command-line options of this interpreter, for child processes that must behave the same."""

from __future__ import annotations

import sys

_LETTERS = {
    "bytes_warning": "b",
    "debug": "d",
    "dont_write_bytecode": "B",
    "ignore_environment": "E",
    "isolated": "I",
    "no_site": "S",
    "no_user_site": "s",
    "optimize": "O",
    "quiet": "q",
    "safe_path": "P",
    "verbose": "v",
}


def interpreter_options() -> list[str]:
    """Return the options to insert between the interpreter and its script."""
    options = [
        f"-{letter * value}" for name, letter in _LETTERS.items() if (value := getattr(sys.flags, name))
    ]
    options += [f"-W{warning}" for warning in dict.fromkeys(sys.warnoptions)]
    for name, value in sys._xoptions.items():
        options += ["-X", name if value is True else f"{name}={value}"]
    return options
