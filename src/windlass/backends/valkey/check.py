"""Check the Lua files without a server: ``python -m windlass.backends.valkey.check``.

Every function needs a header that names its keys, arguments and answer, and a stub in ``functions.py`` that
sends as many arguments as its body reads. Every name in capitals must be defined. The source must have the
digest that was recorded for its version. ``luac`` checks the syntax if it is installed (the tests load the
library into a server anyway).
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from windlass.backends.valkey import loader, words

_NEEDED = ("KEYS", "ARGV", "returns")
_ARGUMENT = re.compile(r"args\[(\d+)\]")
#: The instruction for a global name in the compiler's listing.
_GLOBAL = re.compile(r"[GS]ETGLOBAL\b.*; (\w+)")
_BUILT_IN = frozenset(
    (
        *("redis", "cmsgpack", "struct", "math", "string", "table", "tonumber", "type", "next"),
        *("ipairs", "pairs", "pcall", "rawget", "setmetatable", "unpack"),
    )
)
#: Strings and comments of Lua.
_NO_CODE = re.compile(r"'[^'\n]*'|--[^\n]*")
_WORD = re.compile(r"(?<![\w.])([A-Z][A-Z_]*)\b(?:\.(\w+))?(?! =(?!=))")
_DEFINED = re.compile(r"^local ([A-Z][A-Z_]*(?:, [A-Z][A-Z_]*)*) =", re.M)
_OWN_TABLE = re.compile(r"^local ([A-Z][A-Z_]*) = \{([^{}]*)\}", re.M)
_FIELD = re.compile(r"([A-Z][A-Z_]*) =")


def problems() -> list[str]:
    """All problems, one line each."""
    found: list[str] = []
    stubs = _stub_arguments()
    for function in loader.function_files():
        found += _header_problems(function)
        if function.name not in stubs:
            found.append(f"{function.name}: no stub in functions.py calls it")
            continue
        sent = stubs.pop(function.name)
        used = max((int(number) for number in _ARGUMENT.findall(function.body)), default=0)
        if used > sent:
            found.append(f"{function.name}: reads args[{used}], its stub sends {sent} arguments")
    found += [f"{name}: a stub calls it, but there is no such file" for name in stubs]
    return found + _word_problems() + _digest_problems() + _syntax_problems()


def _word_problems() -> list[str]:
    """Names in capitals that nothing defines. Lua would only fail when it executes such a line."""
    source = _NO_CODE.sub("", loader.library_source())
    found = []
    known = words.tables()
    own = {name: set(_FIELD.findall(fields)) for name, fields in _OWN_TABLE.findall(source)}
    fields = {name: set(table) for name, table in known.items()} | own
    defined = {word for names in _DEFINED.findall(source) for word in names.split(", ")}
    for name, field in sorted(set(_WORD.findall(source))):
        if name not in defined:
            found.append(f"{name}: no Lua file and no table of words.py defines it")
        elif field and name in fields and field not in fields[name]:
            found.append(f"{name}.{field}: there is no such word")
    return found


def _digest_problems() -> list[str]:
    """Report a changed source: servers keep the library that they have for a version."""
    if loader.digest() == loader.DIGEST:
        return []
    advice = f"if that was released, raise VERSION in loader.py; record DIGEST = {loader.digest()!r}"
    return [f"the server functions are not those recorded for version {loader.VERSION}: {advice}"]


def _header_problems(function: loader.FunctionFile) -> list[str]:
    found = [f"{function.name}: its header lacks {name}" for name in _NEEDED if name not in function.header]
    if function.name not in function.header:
        found.append(f"{function.name}: its header does not begin with its name")
    if function.header.get("KEYS") == "none" and "keys" in re.sub(r"--.*", "", function.body):
        found.append(f"{function.name}: uses keys that its header does not name")
    if "keys[2]" in function.body:
        found.append(f"{function.name}: names a second key; all keys of a call are roots of one kind")
    return found


def _stub_arguments() -> dict[str, int]:
    """Function -> number of arguments that its stub sends (1,000 if it has a starred argument)."""
    tree = ast.parse(files(__package__).joinpath("functions.py").read_text("utf-8"))
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_call":
            name = node.args[0]
            assert isinstance(name, ast.Constant)
            rest = node.args[2:]
            starred = any(isinstance(argument, ast.Starred) for argument in rest)
            found[str(name.value)] = 1_000 if starred else len(rest)
    return found


def _syntax_problems() -> list[str]:
    luac = shutil.which("luac5.1") or shutil.which("luac")
    if luac is None:
        return []
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(loader.library_source().split("\n", 1)[1])  # without the shebang line
        file.flush()
        done = subprocess.run([luac, "-l", "-p", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        return [done.stderr.replace(file.name, Path("library.lua").name).strip()]
    strange = sorted(set(_GLOBAL.findall(done.stdout)) - _BUILT_IN)
    return [f"{name}: used, but nothing defines it" for name in strange]


def main() -> int:
    found = problems()
    for line in found:
        sys.stderr.write(f"{line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
