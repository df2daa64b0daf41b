"""One function library out of many small Lua files.

The library and its functions carry a number (``windlass_v2``, ``windlass_v2_add``). Libraries of different
numbers live side by side, and a client loads its own where it is missing and never replaces or removes
another. So a text that was released never changes: a change of a Lua file, or of a word that it has from
Python (``words.py``), raises ``VERSION`` once per release and records the ``DIGEST`` of the new text. What is
stored stays readable for the release before.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from windlass.backends.valkey import words

VERSION = 2
#: Of the text that goes by this number; ``python -m windlass.backends.valkey.check`` compares them.
DIGEST = "e32971395043426f12d7c82b3bb0c787"

_HEADER = re.compile(r"^-- (\w+): ?(.*)$")
_MORE = re.compile(r"^--  +(.*)$")


@dataclass(frozen=True, slots=True)
class FunctionFile:
    """One server function: its name, what its header says, and its body."""

    name: str
    header: dict[str, str]
    body: str

    @property
    def flags(self) -> list[str]:
        return self.header.get("flags", "").split()


def function_name(name: str, version: int = VERSION) -> str:
    """The name under which the server knows the function."""
    return f"windlass_v{version}_{name}"


def library_name(version: int = VERSION) -> str:
    return f"windlass_v{version}"


@cache
def function_files() -> tuple[FunctionFile, ...]:
    """Every function, by name."""
    return tuple(_parse(name, text) for name, text in _texts("functions"))


@cache
def include_files() -> tuple[tuple[str, str], ...]:
    """Name and text of the shared parts, in the order of their names."""
    return tuple(_texts("includes"))


@cache
def library_source(version: int = VERSION) -> str:
    """The text for ``FUNCTION LOAD``."""
    parts = [f"#!lua name={library_name(version)}", f"local LIBRARY_VERSION = {version}", words.source()]
    parts += [text for _, text in include_files()]
    parts += [_registration(function, version) for function in function_files()]
    return "\n".join(parts) + "\n"


def digest() -> str:
    """What ``DIGEST`` is to be."""
    return hashlib.sha256(library_source().encode()).hexdigest()[:32]


def _texts(folder: str) -> list[tuple[str, str]]:
    found = files(__package__).joinpath("lua", folder).iterdir()
    return sorted(
        (file.name.removesuffix(".lua"), file.read_text("utf-8"))
        for file in found
        if file.name.endswith(".lua")
    )


def _parse(name: str, text: str) -> FunctionFile:
    header: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        if match := _HEADER.match(line):
            key = match[1]
            header[key] = match[2]
        elif key and (more := _MORE.match(line)):
            header[key] += " " + more[1]
        else:
            break
    return FunctionFile(name, header, text)


#: What every call begins with: it takes the guard off the keys, and says whether it may only look.
_BEGIN = "begin(keys, {looks})"


def guard_key(root: str) -> str:
    """A key that never exists, in the slot of ``root``: the last key of every call in a cluster.

    While a slot moves from one server to another, a server refuses calls of which a declared key is missing.
    Keys below a root are not declared, so a call could find some of them gone when it has already written
    others; with the guard it is refused before it begins, and repeated when the slot has arrived.
    """
    return f"{root}:?"


def _registration(function: FunctionFile, version: int) -> str:
    begin = _BEGIN.format(looks="true" if "no-writes" in function.flags else "false")
    flags = ", ".join(f"'{flag}'" for flag in function.flags)
    return (
        f"redis.register_function({{ function_name = '{function_name(function.name, version)}', "
        f"flags = {{ {flags} }}, callback = function(keys, args)\n{begin}\n{function.body}\nend }})"
    )
