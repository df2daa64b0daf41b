"""Generate the Python client of the HTTP API from its OpenAPI document.

    python -m tools.make_client            write src/windlass/client/operations.py
    python -m tools.make_client --check    fail if that file is out of date

The client has one method for every operation under ``/api/v1``, with the same name, and one ``TypedDict`` for
every schema that they use. Streams are left out: use any library for server-sent events.
"""

from __future__ import annotations

import argparse
import keyword
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from windlass.dashboard.application import create_app as _known  # noqa: F401 - it registers the routes
from windlass.dashboard.openapi import document

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "src" / "windlass" / "client" / "operations.py"
PREFIX = "/api/v1/"
_REFERENCE = "#/components/schemas/"
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_HEAD = '''"""The operations of the HTTP API. Made by ``python -m tools.make_client``: do not edit."""

# ruff: noqa: PLR0913 - operations take what the API takes

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from windlass.client.connection import Connection
'''


class Maker:
    """Writes the methods, and collects the schemas that they use."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._schemas: dict[str, Any] = found["components"]["schemas"]
        self._paths: dict[str, Any] = found["paths"]
        #: Schemas that are used, in the order of their first use.
        self._used: dict[str, None] = {}

    def source(self) -> str:
        """The whole module, not formatted yet."""
        methods = [
            self._method(path, method, operation)
            for path, operations in self._paths.items()
            if path.startswith(PREFIX)
            for method, operation in operations.items()
            if "application/json" in _answer(operation).get("content", {"application/json": {}})
        ]
        shapes = self._shapes()
        body = textwrap.indent("\n\n".join(sorted(methods)), "    ")
        head = 'class Operations(Connection):\n    """Every operation of the API, by its name."""'
        client = f"{head}\n\n{body}\n"
        return "\n\n".join([_HEAD, *shapes, client])

    def _shapes(self) -> list[str]:
        written: dict[str, str] = {}
        while left := [name for name in self._used if name not in written]:
            for name in left:
                written[name] = self._shape(name, self._schemas[name])
        return [written[name] for name in sorted(written)]

    def _shape(self, name: str, schema: dict[str, Any]) -> str:
        if "enum" in schema:
            return f"{name} = Literal[{', '.join(map(repr, schema['enum']))}]"
        required = set(schema.get("required", ()))
        lines = [f"class {name}(TypedDict):", f'    """{_sentence(schema, name)}"""', ""]
        for field, kind in schema.get("properties", {}).items():
            if keyword.iskeyword(field):
                continue  # an alias of another field that is not a valid name in Python
            hint = self.hint(kind)
            lines.append(f"    {field}: {hint if field in required else f'NotRequired[{hint}]'}")
        return "\n".join(lines)

    def hint(self, schema: dict[str, Any]) -> str:
        """The Python type of a schema."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(_REFERENCE)
            self._used[name] = None
            return str(name)
        for several in ("oneOf", "anyOf", "allOf"):
            if several in schema:
                return " | ".join(dict.fromkeys(self.hint(one) for one in schema[several]))
        if "enum" in schema or "const" in schema:
            return f"Literal[{', '.join(map(repr, schema.get('enum') or [schema['const']]))}]"
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(self.hint({**schema, "type": one}) for one in kind)
        if kind == "array":
            return f"list[{self.hint(schema.get('items', {}))}]"
        if kind == "object":
            inner = schema.get("additionalProperties")
            return f"dict[str, {self.hint(inner) if isinstance(inner, dict) else 'Any'}]"
        return _PLAIN.get(str(kind), "Any")

    def _method(self, path: str, method: str, operation: dict[str, Any]) -> str:
        given = operation.get("parameters", [])
        in_path = [one for one in given if one["in"] == "path"]
        in_query = [one for one in given if one["in"] == "query"]
        arguments = [f"{one['name']}: {self.hint(one['schema'])}" for one in in_path]
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            hint = self.hint(body["schema"])
            arguments.append(f"body: {hint}" + ("" if operation["requestBody"]["required"] else " = None"))
        if in_query:
            arguments.append("*")
            arguments += [f"{one['name']}: {_optional(self.hint(one['schema']))}" for one in in_query]
        content = _answer(operation).get("content")
        answer = "None" if not content else self.hint(content["application/json"]["schema"])
        query = "{" + ", ".join(f'"{one["name"]}": {one["name"]}' for one in in_query) + "}"
        where = path
        for one in in_path:
            escape = "name" if "~0" in one.get("description", "") else "part"
            where = where.replace("{" + one["name"] + "}", "{self." + escape + "(" + one["name"] + ")}")
        call = f'self.send("{method.upper()}", {"f" if in_path else ""}"{where}"'
        call += f", query={query}" if in_query else ""
        call += ", body=body)" if body is not None else ")"
        lines = [
            f"def {operation['operationId']}({', '.join(['self', *arguments])}) -> {answer}:",
            f'    """{_sentence(operation, operation["operationId"])}"""',
            f"    {call}" if answer == "None" else f"    found: {answer} = {call}",
            *([] if answer == "None" else ["    return found"]),
        ]
        return "\n".join(lines)


def _answer(operation: dict[str, Any]) -> dict[str, Any]:
    """The answer to a successful request."""
    status = min(one for one in operation["responses"] if one.startswith("2"))
    found: dict[str, Any] = operation["responses"][status]
    return found


def _optional(hint: str) -> str:
    return f"{hint} = None" if hint.endswith("| None") else f"{hint} | None = None"


def _sentence(described: dict[str, Any], name: str) -> str:
    text = " ".join(str(described.get("description") or name).split())
    first = text.split(". ")[0].rstrip(".:").replace('"', "'").replace("\\", "\\\\")
    return textwrap.shorten(first, 90, placeholder=" ...") + "."


def made() -> str:
    """The formatted source of the module."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FILE), "-"]
    source = Maker(document()).source()
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return done.stdout


def main() -> int:
    """Write the module, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    if not parser.parse_args().check:
        FILE.write_text(made())
        return 0
    if FILE.read_text() != made():
        sys.stderr.write("the client is not that of the API: run python -m tools.make_client\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
