"""Search for uses of private names of other packages, and similar tricks, outside ``windlass.speedups``.

Reports in the source code of ``src/``:

* an import of a private module or name of another package;
* ``thing._name``, if neither the module nor our modules that it imports define that name;
* ``self._name`` in a subclass of another package's class, if neither the subclass nor our own parent classes
  set it, and a private method that overrides one of the other package;
* ``sys.getrefcount``, ``ctypes``, and an assignment to ``__class__``.

Run by ``scripts/check``. Prints one line for each finding; exits with 1 if there are any. ``_NO_OTHER_WAY``
lists the uses without a public alternative, with their reasons. Libraries whose private names are used must
be pinned exactly in ``pyproject.toml``.

Tests: ``tests/unit/test_private_names.py``.
"""

from __future__ import annotations

import ast
import importlib
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_OURS = ("windlass", "windlass_conformance")
_FREE = "windlass.speedups"

#: Names that begin with an underscore and are documented nevertheless.
_DOCUMENTED = {"os._exit", "sys._current_frames", "sys._getframe", "sys._xoptions"}
#: Attributes of every named tuple.
_OF_TUPLES = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
_UNUSUAL = {"sys.getrefcount": "decides by a reference count"}

#: Uses without a public alternative, by module and name.
_NO_OTHER_WAY = {
    ("windlass.importing.plain", "pickle._Unpickler"): "the C version trusts the size of a forged index",
    ("windlass.serde", "_meta"): "Django documents it as the way to recognize a model",
    ("windlass.pipeline.session", "_active_spark_context"): "whether Spark runs, in any thread",
    ("windlass.pipeline.session", "_gateway"): "PySpark has no public way to end its JVM",
    ("windlass.pipeline.session", "_jvm"): "the same",
    ("windlass.sandbox._tree", "ctypes"): "only prctl notifies a process that its parent died",
}
#: Libraries whose private names are used by the speed-ups or by the places above.
PINNED = ("pika", "pyspark")


def main() -> int:
    """Check all modules of the package."""
    sys.path.insert(0, str(ROOT / "src"))
    found = [problem for path in sorted((ROOT / "src").rglob("*.py")) for problem in problems(path)]
    found += pin_problems((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for line in found:
        print(line)
    return 1 if found else 0


def problems(path: Path) -> Iterator[str]:
    """Yield the findings of one module."""
    module = module_name(path)
    if module == _FREE or module.startswith(_FREE + "."):
        return
    shown = path.relative_to(ROOT)
    for line, name, why in findings(path.read_text(encoding="utf-8"), module):
        if (module, name) not in _NO_OTHER_WAY:
            yield f"{shown}:{line}: {name} {why}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def findings(source: str, module: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and complaint for each private or unusual name in ``source``."""
    tree = ast.parse(source)
    own = _own_names(tree)
    yield from _imports(tree, module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from _attribute(node, own)
        elif isinstance(node, ast.Call):
            yield from _by_name(node, own)
        elif isinstance(node, ast.ClassDef):
            yield from _subclass(node, module)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _imports(tree: ast.AST, module: str) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "ctypes":
                yield node.lineno, "ctypes", "calls C by hand: that belongs to windlass.speedups"
            elif parts[0] not in _OURS and not _is_sibling(parts[0], module) and any(map(_is_private, parts)):
                yield node.lineno, name, "is private to another package"


def _is_sibling(name: str, module: str) -> bool:
    """Whether ``import name`` is a file beside ``module``: one that also runs as a script."""
    return (ROOT / "src" / Path(*module.split(".")[:-1]) / f"{name}.py").exists()


def _attribute(node: ast.Attribute, own: set[str]) -> Iterator[tuple[int, str, str]]:
    name = ast.unparse(node)
    if name in _UNUSUAL:
        yield node.lineno, name, f"{_UNUSUAL[name]}: that belongs to windlass.speedups"
    elif node.attr == "__class__" and isinstance(node.ctx, ast.Store):
        yield node.lineno, name, "changes the class of an object: that belongs to windlass.speedups"
    elif _is_private(node.attr) and node.attr not in own and name not in _DOCUMENTED:
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):  # see _subclass
            base = node.value
            module = isinstance(base, ast.Name) and base.id in sys.stdlib_module_names
            yield node.lineno, name if module else node.attr, "is private to another package"


def _by_name(node: ast.Call, own: set[str]) -> Iterator[tuple[int, str, str]]:
    """``getattr`` and similar functions, with a private name as text."""
    if not (isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr", "hasattr", "delattr")):
        return
    if len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
        name = str(node.args[1].value)
        if _is_private(name) and name not in own:
            yield node.lineno, name, "is private to another package"


# --- names that our modules define -----------------------------------------------------------------------


def _own_names(tree: ast.AST) -> set[str]:
    """Names that this module defines, and those of our modules that it imports, directly or through one."""
    names = _given(tree) | _OF_TUPLES
    for module in set(_imported(tree)):
        names |= _given_near(module)
    return names


@cache
def _given_near(module: str) -> frozenset[str]:
    """Names that a module defines, and those of our modules that it imports."""
    return _given_by(module).union(*map(_given_by, set(_imported(_parsed(module)))))


def _imported(tree: ast.AST) -> Iterator[str]:
    """Our modules that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _OURS:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _given(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names |= _targets(target)
                if isinstance(target, ast.Name) and target.id == "__slots__" and node.value is not None:
                    names |= {str(c.value) for c in ast.walk(node.value) if isinstance(c, ast.Constant)}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _targets(target: ast.expr) -> set[str]:
    """Names that an assignment defines: variables, and attributes of ``self`` or ``cls``."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return set().union(*map(_targets, target.elts))
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        return {target.attr} if target.value.id in ("self", "cls") else set()
    return set()


@cache
def _given_by(module: str) -> frozenset[str]:
    return frozenset(_given(_parsed(module)))


@cache
def _parsed(module: str) -> ast.AST:
    """The syntax tree of one of our modules; an empty tree if there is no such module."""
    place = ROOT / "src" / Path(*module.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.exists():
            return ast.parse(path.read_text(encoding="utf-8"))
    return ast.parse("")


# --- classes that inherit from others ----------------------------------------------------------------------


def _subclass(node: ast.ClassDef, module: str) -> Iterator[tuple[int, str, str]]:
    foreign, ours = _parents(node, module)
    if not foreign:
        return
    theirs = {name for parent in foreign for name in vars(parent) if _is_private(name)}
    known = _given(node).union(*(_given_by(parent.__module__) for parent in ours))
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) and part.name in theirs:
            yield part.lineno, part.name, "overrides a private method of another package"
        elif (
            isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and part.value.id in ("self", "cls")
            and _is_private(part.attr)
            and (part.attr in theirs or part.attr not in known)
        ):
            yield part.lineno, f"{part.value.id}.{part.attr}", "is private to the parent's package"


def _parents(node: ast.ClassDef, module: str) -> tuple[list[type], list[type]]:
    """The parent classes of ``node``: of other packages (without basic ones such as ``abc``), and ours."""
    if not node.bases:
        return [], []
    found = getattr(importlib.import_module(module), node.name, None)
    if not isinstance(found, type):
        return [], []  # inside a function, or for type checkers only
    machinery = ("abc", "builtins", "enum", "typing", "collections", "msgspec")
    above = found.__mro__[1:]
    ours = [one for one in above if one.__module__.split(".")[0] in _OURS]
    foreign = [one for one in above if one not in ours and one.__module__.split(".")[0] not in machinery]
    return foreign, ours


# --- pins ------------------------------------------------------------------------------------------------


def pin_problems(text: str) -> list[str]:
    """Libraries that must be pinned exactly and are not."""
    project = tomllib.loads(text)["project"]
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    return [
        f"pyproject.toml: {name} is reached into, so it is pinned with == (found {one})"
        for name in PINNED
        for one in wanted
        if one.startswith(name) and "==" not in one
    ]


if __name__ == "__main__":
    sys.exit(main())
