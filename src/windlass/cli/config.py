"""``windlass config``: the settings that a worker would have here, and where each comes from."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from windlass.cli.output import Column, Out
from windlass.cli.store_commands import carry_out, examples_epilog, shown_url
from windlass.cli.worker import command as worker
from windlass.cli.worker_settings import (
    ENVIRONMENT,
    misspelt_variables,
    project_file,
    project_settings,
    settings_of,
    variable_of,
)

_EXAMPLES = """
windlass config                                     what 'windlass worker' would do here
windlass config --json
WINDLASS_WORKER_CONCURRENCY=50 windlass config
"""


def settings() -> list[dict[str, Any]]:
    """Each setting with its value, its source and the variable that sets it."""
    context = click.Context(
        worker, info_name="worker", auto_envvar_prefix=ENVIRONMENT, default_map=project_settings(worker)
    )
    return [_setting(context, name, param) for name, param in settings_of(worker).items()]


def _setting(context: click.Context, name: str, param: click.Parameter) -> dict[str, Any]:
    value, source = param.consume_value(context, {})
    if source in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP) and not isinstance(
        value, (str, int, float, bool, list, tuple)
    ):
        value = None
    if isinstance(value, str) and "://" in value:
        value = shown_url(value)
    where = {
        ParameterSource.ENVIRONMENT: "environment",
        ParameterSource.DEFAULT_MAP: "pyproject.toml",
    }.get(source, "default")
    return {
        "setting": name,
        "value": value,
        "source": where,
        "variable": variable_of(name),
    }


@click.command("config", epilog=examples_epilog(_EXAMPLES))
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def command(as_json: bool, debug: bool) -> None:
    """Show the settings of a worker here, and where each comes from.

    The command line of 'windlass worker' wins over the environment, which wins over [tool.windlass] of
    the nearest pyproject.toml, which wins over the defaults.
    """
    out = Out(as_json=as_json, debug=debug)

    def work() -> int:
        found = settings()
        if as_json:
            out.document({"file": str(project_file() or ""), "settings": found})
            return 0
        columns = [Column("setting"), Column("value", cut=True), Column("from"), Column("variable", drop=1)]
        for warning in misspelt_variables(worker, os.environ):
            out.note(warning)
        out.table(
            columns, [[one["setting"], _shown(one["value"]), one["source"], one["variable"]] for one in found]
        )
        return 0

    click.get_current_context().exit(carry_out(work, out))


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
