"""Loads a ``Windlass`` app from ``MODULE:APP``, with helpful errors."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from windlass.api.app import Windlass


class LoadError(click.ClickException):
    """The app's own code failed while it was imported."""

    exit_code = 1


def load_app(spec: str, url: str | None = None) -> Windlass:
    """Import the app that ``spec`` names. ``url`` replaces the store that its code sets."""
    module_name, _, attribute = spec.partition(":")
    _check_spec(spec, module_name)
    add_current_folder()
    if url is not None:
        os.environ["WINDLASS_URL"] = url  # child processes of isolated tasks import the app too
    module = _import(module_name)
    app = _attribute(module, attribute) if attribute else _only_app(module)
    if url is not None and app.url != url:
        app.use_store(url)
    return app


def add_current_folder() -> None:
    """Put the current folder first on the import path."""
    here = os.getcwd()
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)


def _check_spec(spec: str, module_name: str) -> None:
    if module_name.endswith(".py") or "/" in module_name:
        path = module_name.removesuffix(".py").strip("./").replace("/", ".")
        attribute = spec.partition(":")[2]
        meant = f"{path}:{attribute}" if attribute else path
        raise click.UsageError(f"'{module_name}' is a path; name the module instead: '{meant}'.")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise click.UsageError(f"'{spec}' does not name an app: write MODULE:APP, such as shop.jobs:app.")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise click.UsageError(_no_module(exc.name)) from exc
        raise LoadError(_what_failed(name, exc)) from exc
    except (Exception, SystemExit) as exc:
        raise LoadError(_what_failed(name, exc)) from exc


def _no_module(name: str) -> str:
    here = [path.stem for path in Path.cwd().glob("*.py")]
    here += [path.parent.name for path in Path.cwd().glob("*/__init__.py")]
    near = difflib.get_close_matches(name, here, n=1)
    parent, _, last = name.rpartition(".")
    if parent and Path(*parent.split(".")).with_suffix(".py").is_file():
        near = [f"{parent}:{last}"]
    hint = f"Did you mean '{near[0]}'?" if near else "Run this in the folder that holds it."
    return f"There is no module '{name}' here or on the Python path. {hint}"


def _what_failed(name: str, exc: BaseException) -> str:
    """The error, and the line of the app's code that raised it."""
    frames = [f for f in traceback.extract_tb(exc.__traceback__) if "importlib" not in f.filename]
    place = ""
    if isinstance(exc, SyntaxError) and exc.filename:
        place = f" ({Path(exc.filename).name}, line {exc.lineno})"
    elif len(frames) > 1:
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    text = exc.msg if isinstance(exc, SyntaxError) else str(exc)
    return f"Importing '{name}' failed: {type(exc).__name__}: {text}{place}. --debug shows the traceback."


def _attribute(module: ModuleType, path: str) -> Windlass:
    from windlass.api.app import Windlass

    found: object = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if _is_compat_app(found):
        found = getattr(found, "windlass")  # noqa: B009 - its type is not known here
    if isinstance(found, Windlass):
        return found
    apps = list(_apps(module))
    near = difflib.get_close_matches(path, apps, n=1)
    if found is not None:
        why = f"'{path}' of '{module.__name__}' is a {type(found).__name__}, not a Windlass app."
    else:
        why = f"'{module.__name__}' has no '{path}'."
    if near or len(apps) == 1:
        hint = f"Did you mean '{module.__name__}:{(near or apps)[0]}'?"
    else:
        hint = f"Apps in it: {', '.join(apps)}." if apps else "There is no app in it: app = Windlass()."
    raise click.UsageError(f"{why} {hint}")


def _only_app(module: ModuleType) -> Windlass:
    apps = _apps(module)
    if len(set(map(id, apps.values()))) == 1:
        return next(iter(apps.values()))
    name = module.__name__
    if not apps:
        raise click.UsageError(
            f"There is no Windlass app in '{name}': it needs a line like app = Windlass()."
        )
    choices = ", ".join(f"{name}:{app}" for app in apps)
    raise click.UsageError(f"There are several apps in '{name}'; choose one: {choices}.")


def _apps(module: ModuleType) -> dict[str, Windlass]:
    from windlass.api.app import Windlass

    found: dict[str, Windlass] = {}
    for name, value in vars(module).items():
        if isinstance(value, Windlass):
            found[name] = value
        elif _is_compat_app(value):
            found[name] = value.windlass
    return found


def _is_compat_app(found: object) -> bool:
    """Whether it is an app of ``windlass.compat``, which has a ``windlass`` attribute."""
    return isinstance(inspect.getattr_static(type(found), "windlass", None), property)
