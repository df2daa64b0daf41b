"""How a handler is named for a child process, and how the child finds it.

A target is one of

* ``module:qualname``: a function, a ``Task``, or an app whose registry has the handler;
* ``path/to/file.py:qualname``, or only the file, for its function ``handler``.

``__main__`` works as it does for multiprocessing: the child runs the parent's script again under the name
``__windlass_main__``, so a script that starts a worker needs its ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import runpy
import sys
import types
from typing import TYPE_CHECKING, Any

from windlass.errors import ConfigError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from windlass.core.job import JobRecord
    from windlass.handlers.propagation import ContextPropagator

MAIN = "__windlass_main__"
#: The default function of a file.
FILE_HANDLER = "handler"


# --- in the parent -------------------------------------------------------------------------------------


def target_of(handler: Any) -> str:
    """Return the target of a function, task or file. Raises ``ConfigError`` if a child could not find it."""
    if isinstance(handler, (str, os.PathLike)):
        return _file_target(os.fspath(handler))
    fn = _unwrapped(handler)
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not inspect.isroutine(fn) or not isinstance(module, str) or not isinstance(qualname, str):
        raise ConfigError(
            "handler",
            message=f"{shown(handler)} cannot run in a child process: it is not a function of a module",
            got=handler,
        )
    if "<" in qualname or _unwrapped(_walk(sys.modules.get(module), qualname)) is not fn:
        raise ConfigError(
            "handler",
            message=f"{module}.{qualname} cannot run in a child process: its module has no function of that "
            "name",
        )
    if module == "__main__" and main_source() == (None, None):
        raise ConfigError(
            "handler", message=f"{qualname} cannot run in a child process: this __main__ is not in a file"
        )
    return f"{'__main__' if module == MAIN else module}:{qualname}"


def _file_target(path: str) -> str:
    if ":" in path and not path.endswith(".py"):
        file, _, name = path.rpartition(":")
        if not file.endswith(".py"):
            return path  # module:qualname
        return f"{_real_file(file)}:{name}"
    return f"{_real_file(path)}:{FILE_HANDLER}"


def _real_file(path: str) -> str:
    real = os.path.realpath(path)
    if not real.endswith(".py") or not os.path.isfile(real):
        raise ConfigError("handler", "a Python file that exists, or module:function", path)
    return real


def main_source() -> tuple[str | None, str | None]:
    """Return the module name (for ``python -m``), or else the path, of this process's ``__main__``."""
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if isinstance(name, str):
        return name, None
    path = getattr(main, "__file__", None)
    return None, os.path.abspath(path) if isinstance(path, str) and os.path.exists(path) else None


# --- in the child --------------------------------------------------------------------------------------


def resolve(target: str, record: JobRecord) -> Callable[..., Any]:
    """Return the function of ``target``. Raises import errors, or ``ConfigError`` without a function."""
    found = _find(target)
    handlers = getattr(found, "registry", None)
    if handlers is not None and hasattr(handlers, "find"):
        handler = handlers.find(record.queue, record.task)
        found = None if handler is None else handler.call
    found = _unwrapped(found)
    if not callable(found):
        raise ConfigError("handler", message=f"a child process cannot import a function as {target!r}")
    function: Callable[..., Any] = found
    return function


def carrier_of(target: str) -> ContextPropagator | None:
    """Return the context propagator of the app of ``target``; None when it names no task and no app."""
    found = _find(target)
    carrier: ContextPropagator | None = getattr(getattr(found, "app", found), "carrier", None)
    return carrier or None


def _find(target: str) -> Any:
    place, _, qualname = target.rpartition(":")
    if place.endswith(".py"):
        module = _load_file(place)
    else:
        module = sys.modules[MAIN] if place == "__main__" else importlib.import_module(place)
    return _walk(module, qualname)


def prepare_main(module: str | None, path: str | None) -> None:
    """Run the parent's ``__main__`` under the name ``__windlass_main__``, once."""
    if MAIN in sys.modules:
        return
    if module is None and path is None:
        raise ConfigError(
            "handler",
            message="the handler cannot run in a child process: the worker's __main__ is not in a file",
        )
    main = types.ModuleType(MAIN)
    if module is not None:
        main.__dict__.update(runpy.run_module(module, run_name=MAIN, alter_sys=True))
    else:
        main.__dict__.update(runpy.run_path(str(path), run_name=MAIN))
    sys.modules["__main__"] = sys.modules[MAIN] = main


@functools.cache
def _load_file(path: str) -> types.ModuleType:
    name = f"windlass_file_{os.path.splitext(os.path.basename(path))[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("handler", "a Python file that exists", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _walk(found: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _unwrapped(handler: Any) -> Any:
    """Return the function of a task. Decorated functions are returned unchanged."""
    if not inspect.isroutine(handler) and hasattr(handler, "__wrapped__"):
        return handler.__wrapped__
    return handler
