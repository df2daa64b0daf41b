"""Builds one function library from many small Lua files.

The names of the library and of its functions contain a version (``windlass_v2``, ``windlass_v2_add``).
Libraries of several versions exist side by side on a server. A client loads its own where it is missing, and
never replaces or removes one. So the source of a released version never changes: the first change after a
release, in a Lua file or in a constant from Python (``words.py``), raises ``VERSION``, and every change
records the new ``DIGEST``. Comments are part of the source. The previous release must be able to read what a
new version stores.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from windlass.backends.valkey import words

VERSION = 2
#: The digest of the source of this version, which ``python -m windlass.backends.valkey.check`` compares.
DIGEST = "c79bc55ee3802dbaa13bc9912b42ffd1"

_HEADER = re.compile(r"^-- (\w+): ?(.*)$")
_MORE = re.compile(r"^--  +(.*)$")


@dataclass(frozen=True, slots=True)
class FunctionFile:
    """One server function: its name, the fields of its header, and its whole text."""

    name: str
    header: dict[str, str]
    body: str

    @property
    def flags(self) -> list[str]:
        return self.header.get("flags", "").split()


def function_name(name: str, version: int = VERSION) -> str:
    """The name of a function on the server."""
    return f"windlass_v{version}_{name}"


def library_name(version: int = VERSION) -> str:
    return f"windlass_v{version}"


@cache
def function_files() -> tuple[FunctionFile, ...]:
    """All functions, sorted by name."""
    return tuple(_parse(name, text) for name, text in _texts("functions"))


@cache
def include_files() -> tuple[tuple[str, str], ...]:
    """Name and text of the shared files, sorted by name, which is their order in the library."""
    return tuple(_texts("includes"))


@cache
def library_source(version: int = VERSION) -> str:
    """The source for ``FUNCTION LOAD``."""
    parts = [f"#!lua name={library_name(version)}", f"local LIBRARY_VERSION = {version}", words.source()]
    parts += [text for _, text in include_files()]
    parts += [_registration(function, version) for function in function_files()]
    return "\n".join(parts) + "\n"


def digest() -> str:
    """The digest of the present source, which ``DIGEST`` must equal."""
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


#: The first statement of every function: it removes the guard from the keys and notes whether the call
#: only reads.
_BEGIN = "begin(keys, {read_only})"


def guard_key(root: str) -> str:
    """A key that never exists, in the slot of ``root``. It is the last key of every call in a cluster.

    While a slot is moved, the server refuses calls that declare a missing key. Keys below a root are not
    declared. Without the guard, a call could find some of them missing after it has written others. With it,
    the call is refused before it starts, and repeated when the slot has been moved.
    """
    return f"{root}:?"


def _registration(function: FunctionFile, version: int) -> str:
    begin = _BEGIN.format(read_only="true" if "no-writes" in function.flags else "false")
    flags = ", ".join(f"'{flag}'" for flag in function.flags)
    return (
        f"redis.register_function({{ function_name = '{function_name(function.name, version)}', "
        f"flags = {{ {flags} }}, callback = function(keys, args)\n{begin}\n{function.body}\nend }})"
    )
