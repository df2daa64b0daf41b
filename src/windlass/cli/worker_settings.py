"""Settings of a worker from the environment and ``pyproject.toml``.

The command line wins over ``$WINDLASS_WORKER_...``, which wins over ``[tool.windlass]`` of the nearest
``pyproject.toml``, which wins over the defaults.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from windlass.core.option_values import check_known
from windlass.errors import ConfigError

ENVIRONMENT: Final = "WINDLASS_WORKER"
#: Parameters of the command that are not settings.
_NOT_SETTINGS: Final = frozenset({"lifeline", "help"})
#: Settings whose parameter has another name, because the option can be repeated.
_PARAMETERS: Final = {"cap": "caps", "reserve": "reserves"}


class ConfiguredCommand(click.Command):
    """A command whose options also come from the environment and from ``pyproject.toml``."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            extra.setdefault("default_map", project_settings(self))
        except ConfigError as exc:
            raise click.UsageError(str(exc)) from exc
        extra.setdefault("auto_envvar_prefix", ENVIRONMENT)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.NoSuchOption as exc:
            if exc.option_name != "-A":  # what 'celery worker' takes
                raise
            raise click.UsageError("Write the app without -A: windlass worker MODULE:APP.", exc.ctx) from exc
        except click.MissingParameter as exc:
            if exc.param is None or exc.param.name != "app":
                raise
            advice = (
                f"Name the app, such as shop.jobs:app, or set ${variable_of('app')} or [tool.windlass] app."
            )
            raise click.UsageError(advice, exc.ctx) from exc


def setting_name(param: click.Parameter) -> str:
    """The name of a parameter in ``pyproject.toml``."""
    return next((name for name, of in _PARAMETERS.items() if of == param.name), param.name or "")


def settings_of(command: click.Command) -> dict[str, click.Parameter]:
    """The settings of a command, by name."""
    found: dict[str, click.Parameter] = {}
    for param in command.params:
        if param.name and param.name not in _NOT_SETTINGS:
            found.setdefault(setting_name(param), param)  # --log-json is only a short form of --log-format
    return found


def variable_of(name: str) -> str:
    """The environment variable for a setting."""
    return "WINDLASS_URL" if name == "url" else f"{ENVIRONMENT}_{name.upper()}"


def misspelt_variables(command: click.Command, environment: Iterable[str]) -> list[str]:
    """A warning for each variable whose name is similar to one of ours.

    Other variables are ignored: Kubernetes sets variables that begin with the names of services.
    """
    known = {variable_of(name) for name in settings_of(command)}
    also = {f"{ENVIRONMENT}_{(param.name or '').upper()}" for param in command.params}
    others = sorted({one for one in environment if one.startswith(f"{ENVIRONMENT}_")} - known - also)
    return [
        f"{variable} is not a setting and has no effect (did you mean {near[0]}?)"
        for variable in others
        if (near := difflib.get_close_matches(variable, known, n=1, cutoff=0.9))
    ]


def project_file() -> Path | None:
    """The nearest ``pyproject.toml``, here or above."""
    here = Path.cwd()
    return next(
        (file for folder in (here, *here.parents) if (file := folder / "pyproject.toml").is_file()), None
    )


def project_settings(command: click.Command) -> dict[str, Any]:
    """The values of ``[tool.windlass]`` by parameter. Raises ``ConfigError`` for an unknown setting."""
    file = project_file()
    if file is None:
        return {}
    given = {name.replace("-", "_"): value for name, value in _table(file).items()}
    check_known(given, settings_of(command), f"setting in [tool.windlass] of {file}")
    return {_PARAMETERS.get(name, name): _as_text(name, value) for name, value in given.items()}


def project_url() -> str | None:
    """The store URL in ``[tool.windlass]``, for all commands; None if there is none."""
    file = project_file()
    try:
        url = None if file is None else _table(file).get("url")
    except ConfigError:  # a file in a parent folder may be unrelated
        return None
    return url if isinstance(url, str) else None


def _table(file: Path) -> dict[str, Any]:
    try:
        tool = tomllib.loads(file.read_text()).get("tool", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(str(file), message=f"cannot read {file}: {exc}") from exc
    table: Any = tool.get("windlass", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"[tool.windlass] of {file}", "a table", table)
    return table


def _as_text(name: str, value: Any) -> Any:
    """A value in the form of the command line, where tables and lists of queues are texts."""
    if name == "queues":
        if isinstance(value, dict):
            value = [f"{queue}:{weight}" for queue, weight in value.items()]
        return ",".join(value) if isinstance(value, list) else value
    if name == "limiter" and isinstance(value, dict):
        return f"{value.get('max')}/{value.get('duration')}"
    if isinstance(value, dict):
        return [f"{queue}={number}" for queue, number in value.items()]
    return value
