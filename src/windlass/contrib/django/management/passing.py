"""Management commands that pass all their arguments to the command line of Windlass."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import Any

from django.core.management.base import BaseCommand

from windlass.cli.main import tree
from windlass.contrib.django.conf import get_app

_NOTHING_SAID = {
    "settings": None,
    "pythonpath": None,
    "traceback": False,
    "force_color": False,
    "no_color": False,
    "skip_checks": False,
}


class PassingCommand(BaseCommand):
    """Takes any arguments. Windlass parses them, with its own help and errors."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.parse_args = lambda args=None, namespace=None: Namespace(
            args=[str(word) for word in args or ()], **_NOTHING_SAID
        )
        return parser

    def handle(self, *args: str, **options: Any) -> None:
        """Run the command on the project's store. Exits with its code if that is not 0."""
        os.environ["WINDLASS_URL"] = get_app().url
        try:
            tree.main(
                self.words(list(args)), prog_name=f"{sys.argv[0]} {type(self).__module__.split('.')[-1]}"
            )
        except SystemExit as done:
            if done.code:
                sys.exit(done.code)

    def words(self, given: list[str]) -> list[str]:
        """The arguments for Windlass."""
        return given
