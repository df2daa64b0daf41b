"""``windlass completion``: prints the shell completion script."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.output import Out
from windlass.cli.store_commands import carry_out, examples_epilog

_HOW = {
    "bash": 'eval "$(windlass completion bash)"           in ~/.bashrc',
    "zsh": 'eval "$(windlass completion zsh)"            in ~/.zshrc',
    "fish": "windlass completion fish > ~/.config/fish/completions/windlass.fish",
}


def script(shell: str) -> str:
    """The completion script for ``shell``."""
    from click.shell_completion import get_completion_class

    from windlass.cli.main import tree

    made = get_completion_class(shell)
    assert made is not None, shell
    if shell == "bash":  # click would start bash to find its version
        made = type("Bash", (made,), {"_check_version": staticmethod(lambda: None)})
    completion = made(tree, {}, "windlass", "_WINDLASS_COMPLETE")
    return completion.source()


@click.command("completion", epilog=examples_epilog("\n".join(_HOW.values())))
@click.argument("shell", type=click.Choice(sorted(_HOW)))
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def command(shell: str, as_json: bool, debug: bool) -> None:
    """Print the completion script of windlass for SHELL.

    Nothing is installed: add the line below to your shell's start file.
    """
    out = Out(as_json=as_json, debug=debug)

    def work() -> int:
        text = script(shell)
        value: dict[str, Any] = {"shell": shell, "script": text}
        if as_json:
            out.document(value)
        else:
            click.echo(text)
        return 0

    click.get_current_context().exit(carry_out(work, out))
