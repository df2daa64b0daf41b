"""Flask: an extension for application factories, commands under ``flask windlass``, tasks with a context.

::

    jobs = Windlass()
    extension = FlaskWindlass(jobs)

    def create_app() -> Flask:
        app = Flask(__name__)
        app.config["WINDLASS_URL"] = "valkey://localhost"
        extension.init_app(app)
        return app

Views use the synchronous methods: ``send_mail.sync.enqueue(...)``. Tasks run inside an application context,
so ``current_app`` and extensions that need it work as in a view.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from windlass.api.app import SyncApp, Windlass
from windlass.cli.main import tree
from windlass.errors import ConfigError, not_installed
from windlass.jobs.job import Job

try:
    from flask import Flask, current_app
except ImportError as _missing:
    raise not_installed("contrib", "Flask", "windlass[flask]") from _missing

if TYPE_CHECKING:
    from windlass.dashboard import Identity, Roles

_KEY = "windlass"


class FlaskWindlass:
    """Connects a Windlass app to Flask applications. ``app.extensions["windlass"]`` is this object."""

    def __init__(self, jobs: Windlass, app: Flask | None = None) -> None:
        self.jobs = jobs
        self._flask: Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Use ``WINDLASS_URL`` of the application's configuration, if it is set, and add the commands."""
        url = app.config.get("WINDLASS_URL")
        if url is not None and url != self.jobs.url:
            self.jobs.use_store(url)
        app.extensions[_KEY] = self
        app.cli.add_command(_commands(self.jobs))
        if self._flask is None:
            self.jobs.around_execute(self._with_context)
        self._flask = app

    def _with_context(self, job: Job[object]) -> Iterator[None]:
        """Run every task inside the application's context."""
        assert self._flask is not None
        with self._flask.app_context():
            yield

    @property
    def sync(self) -> SyncApp:
        """The synchronous producer methods, for views."""
        return self.jobs.sync


def get_windlass() -> Windlass:
    """The Windlass app of the current Flask application."""
    found = current_app.extensions.get(_KEY)
    if found is None:
        raise ConfigError(
            "extension",
            message="this Flask app has no Windlass extension: call FlaskWindlass(jobs).init_app(app)",
        )
    extension: FlaskWindlass = found
    return extension.jobs


def dashboard_user(
    app: Flask, load: Callable[[], tuple[str, Iterable[str]] | None], roles: Roles
) -> Callable[[Mapping[str, Any]], Awaitable[Identity | None]]:
    """For ``create_app(auth=...)`` of a dashboard next to a Flask application on the same ASGI server.

    ``load`` is called inside a request context of ``app``, where ``session`` and ``current_user`` work. It
    returns the name and the groups of the signed-in user, or None. ``roles`` decides about their role.
    """

    def read(headers: list[tuple[str, str]]) -> Identity | None:
        with app.test_request_context("/", headers=headers):
            found = load()
        return None if found is None else roles.identity(found[0], found[1])

    async def check(scope: Mapping[str, Any]) -> Identity | None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        return await asyncio.to_thread(read, headers)

    return check


def _commands(jobs: Windlass) -> click.Command:
    @click.command(
        "windlass",
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
        help="Windlass: workers and queues; 'flask windlass --help' lists the commands.",
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        os.environ["WINDLASS_URL"] = jobs.url
        tree.main(list(arguments), prog_name="flask windlass")

    return command
