"""Tables of the reference, made from the code while the site is built, so that they are always up to date.

* ``<!-- fields: windlass.core.options.JobOptions -->``: name, type, default and meaning of every field;
* ``<!-- values: windlass.core.states.JobState -->``: every value of an enumeration;
* ``<!-- attributes: windlass.jobs.job.Job -->``: every attribute of an object.

The meaning is the ``#:`` comment above a field, or the docstring of a property; without one, it is an error.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

MARK = re.compile(r"<!-- (fields|values|attributes): ([\w.]+) -->")
#: Names that are public only for use inside the package, and not part of the reference.
INTERNAL = {
    "windlass.core.options.JobOptions": {"said"},
    "windlass.jobs.job.Job": {"call", "loop", "record"},
}


def fill(markdown: str) -> str:
    """The page with its marks replaced by tables."""
    return MARK.sub(lambda match: _TABLES[match[1]](match[2]), markdown)


def fields(path: str) -> str:
    """Every field of a struct, as a table."""
    kind = _find(path)
    notes = {name: (note, text) for name, note, text in _annotated(kind)}
    rows = []
    for field in msgspec.structs.fields(kind):
        if field.name in INTERNAL.get(path, ()):
            continue
        meaning, annotation = notes[field.name]
        default = "required" if field.required else f"`{_shown(field)}`"
        rows.append((f"`{field.name}`", f"`{annotation}`", default, _meaning(path, field.name, meaning)))
    return _table(("name", "type", "default", "meaning"), rows)


def values(path: str) -> str:
    """Every value of an enumeration, as a table."""
    kind = _find(path)
    assert issubclass(kind, enum.Enum)
    notes = {name: note for name, note, _ in _assigned(kind)}
    return _table(
        ("value", "name", "meaning"),
        [
            (
                f"`{one.value}`",
                f"`{kind.__name__}.{one.name}`",
                _meaning(path, one.name, notes.get(one.name, "")),
            )
            for one in kind
        ],
    )


def attributes(path: str) -> str:
    """Every attribute of an object, as a table: its properties, and attributes that ``__init__`` sets."""
    kind = _find(path)
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("windlass"):
            continue
        for name, member in vars(base).items():
            if isinstance(member, property) and member.fget is not None:
                note = inspect.getdoc(member) or found.get(name, ("", ""))[0]
                found[name] = (note, str(member.fget.__annotations__.get("return", "Any")))
        found |= {name: (note, text) for name, note, text in _set_by_init(base)}
    rows = [
        (f"`{name}`", f"`{annotation}`", _meaning(path, name, note))
        for name, (note, annotation) in sorted(found.items())
        if not name.startswith("_") and name not in INTERNAL.get(path, ())
    ]
    return _table(("name", "type", "meaning"), rows)


_TABLES = {"fields": fields, "values": values, "attributes": attributes}


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _source(kind: type) -> tuple[list[str], ast.ClassDef]:
    text = textwrap.dedent(inspect.getsource(kind))
    tree = ast.parse(text).body[0]
    assert isinstance(tree, ast.ClassDef)
    return text.splitlines(), tree


def _note(lines: list[str], line: int) -> str:
    """The ``#:`` comment that ends above a line."""
    words: list[str] = []
    at = line - 2
    while at >= 0 and lines[at].strip().startswith("#"):
        words.insert(0, lines[at].strip().lstrip("#").lstrip(":").strip())
        at -= 1
    return " ".join(words)


def _annotated(kind: type) -> Iterator[tuple[str, str, str]]:
    """(name, meaning, type) of every annotated field in the body of a class."""
    lines, tree = _source(kind)
    for one in tree.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id, _note(lines, one.lineno), ast.unparse(one.annotation)


def _assigned(kind: type) -> Iterator[tuple[str, str, str]]:
    lines, tree = _source(kind)
    for one in tree.body:
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            yield one.targets[0].id, _note(lines, one.lineno), ""


def _set_by_init(kind: type) -> Iterator[tuple[str, str, str]]:
    """(name, meaning, type) of every annotated attribute that ``__init__`` sets."""
    lines, tree = _source(kind)
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or function.name != "__init__":
            continue
        for one in ast.walk(function):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Attribute):
                yield one.target.attr, _note(lines, one.lineno), ast.unparse(one.annotation)


def _shown(field: Any) -> str:
    value = field.default
    if value is msgspec.NODEFAULT:
        return "as many as the machine has processors" if field.name == "process_slots" else "..."
    if isinstance(value, msgspec.Struct):  # the public options are in seconds
        items = msgspec.structs.asdict(value).items()
        return repr({k.removesuffix("_ms"): v / 1000 if k.endswith("_ms") else v for k, v in items})
    return repr(value.value) if isinstance(value, enum.Enum) else repr(value)


def _meaning(path: str, name: str, meaning: str) -> str:
    """The text for a table. Raises ``ValueError`` if it is empty."""
    if not meaning:
        raise ValueError(f"{path}.{name} has no meaning: write a #: comment above it, or a docstring")
    return " ".join(meaning.split()).replace("``", "`")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n" + "\n".join(f"| {line} |" for line in lines) + "\n"
