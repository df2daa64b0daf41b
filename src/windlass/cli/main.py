"""The tree of commands. Each command is imported when it is called, so that ``windlass --help`` is fast."""

from __future__ import annotations

import difflib
import importlib
from typing import NamedTuple

import click

from windlass._version import __version__
from windlass.cli.standard_streams import open_standard_streams


class CommandEntry(NamedTuple):
    """A command in the list. Its code is the module of the same name, or ``module``."""

    section: str
    summary: str
    module: str = ""


COMMANDS = {
    "worker": CommandEntry("Run", "Run the tasks of an app until stopped."),
    "dashboard": CommandEntry("Run", "Serve the dashboard and the HTTP API."),
    "server": CommandEntry("Run", "Run only the coordinator of an AMQP broker."),
    "enqueue": CommandEntry("Run", "Add a job, or all jobs of a file."),
    "config": CommandEntry("Run", "Show the settings of a worker, and where each comes from."),
    "new": CommandEntry("Run", "Write a small project with tests and deployment files."),
    "import": CommandEntry("Run", "Move waiting jobs from Celery, RQ, BullMQ and others.", "importer"),
    "queues": CommandEntry("Look", "List the queues and how many jobs are in each state."),
    "jobs": CommandEntry("Look", "List, search or export jobs."),
    "job": CommandEntry("Look", "Show one job: timeline, arguments, errors, logs."),
    "why": CommandEntry("Look", "Explain why a job is not running, and what to do."),
    "flow": CommandEntry("Look", "Show a job and everything it waits for; cancel or remove all of it."),
    "stats": CommandEntry("Look", "Show totals and rates; live with --watch."),
    "workers": CommandEntry(
        "Look", "List the workers that are alive, or send one a command: quiet, resume, stop."
    ),
    "schedules": CommandEntry("Look", "List recurring schedules; pause, run or remove one."),
    "events": CommandEntry("Look", "Show what happened in a queue, or follow it."),
    "history": CommandEntry("Look", "Show finished attempts with wait and run times."),
    "pipeline": CommandEntry(
        "Look", "Copy history into a lake; report on it, query it, replay jobs from it."
    ),
    "retry": CommandEntry("Change", "Run failed or finished jobs again."),
    "promote": CommandEntry("Change", "Run scheduled or retrying jobs now."),
    "cancel": CommandEntry("Change", "Cancel jobs, running ones too."),
    "remove": CommandEntry("Change", "Delete jobs for good."),
    "pause": CommandEntry("Change", "Stop starting jobs of a queue."),
    "resume": CommandEntry("Change", "Start jobs of a paused queue again."),
    "tasks": CommandEntry("Change", "Revoke a task, so that its jobs do not start; restore it."),
    "clean": CommandEntry("Change", "Delete old finished jobs."),
    "clear": CommandEntry("Change", "Delete all waiting jobs of a queue."),
    "drain": CommandEntry("Change", "Old name of clear: deletes all waiting jobs."),
    "doctor": CommandEntry("Check", "Find problems and explain how to fix them."),
    "bench": CommandEntry("Check", "Measure the speed of a store on this machine."),
    "completion": CommandEntry("Check", "Print the completion script for your shell."),
}


#: Names of our commands in other systems.
_MEANT = {
    "purge": "clear",
    "flush": "clear",
    "empty": "clear",
    "delete": "remove",
    "rm": "remove",
    "ls": "jobs",
    "list": "jobs",
    "status": "stats",
    "info": "stats",
    "inspect": "workers",
    "version": "--version",
    "logs": "events",
    "run": "worker",
    "start": "worker",
    "send": "enqueue",
    "add": "enqueue",
    "init": "new",
    "beat": "schedules",
}


class CommandTree(click.Group):
    """Loads commands on demand, lists them by topic, and suggests similar names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = COMMANDS[cmd_name].module or cmd_name
        command: click.Command = importlib.import_module(f"windlass.cli.{module}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            meant = _MEANT.get(name)
            near = [meant] if meant else difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else "See 'windlass --help' for the list."
            ctx.fail(f"There is no command '{name}'. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.summary) for name, entry in COMMANDS.items() if entry.section == section]
                )


EPILOG = """\b
Start here:
  windlass worker mail:app              run the tasks of mail.py
  windlass enqueue mail mail.send_mail --arg to=ada@example.com --arg subject=Hello
  windlass queues
  windlass stats --watch

Every command takes --url or reads $WINDLASS_URL or 'url' in [tool.windlass] of
pyproject.toml; without any of these the store is windlass.db in the current
folder. 'windlass COMMAND --help' shows examples.
"""


@click.group(cls=CommandTree, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="windlass %(version)s")
def tree() -> None:
    """Windlass: background jobs from the shell."""


def main() -> None:
    """The entry point of ``windlass`` and of ``python -m windlass``."""
    open_standard_streams()
    tree(prog_name="windlass")
