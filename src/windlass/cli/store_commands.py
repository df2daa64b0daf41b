"""What all commands on a store share: ``--url``, ``--json``, ``--debug``, errors and exit codes."""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from windlass.cli.app_loading import load_app
from windlass.cli.output import Out
from windlass.cli.reach import check_reachable
from windlass.cli.worker_settings import project_url
from windlass.core.option_values import nearest
from windlass.core.text import printable, printable_lines
from windlass.errors import ConfigError, StorageError, WindlassError

if TYPE_CHECKING:
    from windlass.api.app import Windlass
    from windlass.api.queue import Queue

INTERRUPTED = 130

OptionsT = TypeVar("OptionsT")
Run = Callable[[OptionsT, Out], Coroutine[Any, Any, int]]
Make = Callable[..., OptionsT]


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The store that a command uses. None: the default file.

    ``app_name`` names the app whose codecs read and write values.
    """

    url: str | None = field(default=None, repr=False)
    app_name: str | None = None

    def app(self, *, create: bool = False) -> Windlass:
        """An app on the store. Unless ``create``, a missing database file is an error."""
        from windlass.api.app import Windlass

        app = Windlass(self.url) if self.app_name is None else load_app(self.app_name, self.url)
        if not create:
            check_exists(app.url)
        check_reachable(app.url)
        return app


def check_exists(url: str) -> None:
    """Raise ``StorageError`` if the file or the directory of a store on this machine is missing."""
    path = sqlite_path(url) or directory_path(url)
    if path is not None and not path.exists():
        what = "database" if sqlite_path(url) else "store"
        raise StorageError(
            f"there is no {what} at {path}: check --url or $WINDLASS_URL (a worker or an "
            "enqueue would create it)"
        )


async def find_queue(app: Windlass, name: str) -> Queue:
    """The queue of that name. If the store has none, raises ``ConfigError`` with a similar name."""
    names = [info.name for info in await app.queues()]
    if name not in names:
        near = nearest(name, names)
        hint = (
            f"did you mean {near!r}?"
            if near
            else f"known: {', '.join(names[:10])}"
            if names
            else "there is none yet"
        )
        raise ConfigError("queue", message=f"there is no queue {name!r} in this store ({hint})", got=name)
    return app.queue(name)


def sqlite_path(url: str) -> Path | None:
    """The file of a ``sqlite://`` URL; None for other stores."""
    from windlass.backend.urls import parse_url

    parsed = parse_url(url)
    return Path(parsed.path.removeprefix("/")) if parsed.scheme == "sqlite" else None


def directory_path(url: str) -> Path | None:
    """The directory of a ``file://`` URL; None for other stores."""
    from windlass.backend.urls import parse_url

    parsed = parse_url(url)
    return Path(parsed.path) if parsed.scheme == "file" else None


def shown_url(url: str) -> str:
    """A URL without its secrets, for printing."""
    from windlass.backend.urls import hide_secrets

    return printable(hide_secrets(url))


def store_command(
    name: str, run: Run[OptionsT], *, examples: str, asks: bool = False, fast: bool = False
) -> Callable[[Make[OptionsT]], click.Command]:
    """Make a click command from a function that converts its parameters to the options of ``run``.

    ``asks``: the command deletes data, so it has ``--yes``. ``fast``: run on the event loop of workers.
    """

    def decorate(make: Make[OptionsT]) -> click.Command:
        @functools.wraps(make)
        def callback(as_json: bool, debug: bool, yes: bool = False, **values: Any) -> None:
            out = Out(as_json=as_json, debug=debug, yes=yes)
            options = make(**values)
            click.get_current_context().exit(carry_out(lambda: _run(run(options, out), fast), out))

        wrapped: Any = callback
        for option in reversed(_shared_options(asks)):
            wrapped = option(wrapped)
        return click.command(name, epilog=examples_epilog(examples))(wrapped)

    return decorate


def _run(work: Coroutine[Any, Any, int], fast: bool) -> int:
    with asyncio.Runner(loop_factory=loop_factory() if fast else None) as runner:
        return runner.run(work)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop factory of uvloop, if it is installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


def examples_epilog(examples: str) -> str:
    """The examples at the end of a help page."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines())


url_option = click.option(
    "--url",
    metavar="URL",
    envvar="WINDLASS_URL",
    show_envvar=True,
    default=project_url,
    help="The store, such as sqlite:///jobs.db.  [default: that of pyproject.toml, else windlass.db here]",
)


#: For commands that read or write arguments and results.
app_option = click.option(
    "--app",
    "app_name",
    metavar="MODULE:APP",
    help="The app whose codecs and keys encode the jobs' values.",
)


def _shared_options(asks: bool) -> list[Callable[[Any], Any]]:
    options = [
        url_option,
        click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
        click.option("--debug", is_flag=True, help="Show tracebacks of errors."),
    ]
    if asks:
        options.insert(0, click.option("--yes", "-y", is_flag=True, help="Do not ask."))
    return options


def _print_escaped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback whose message may contain texts of a job."""
    text = "".join(traceback.format_exception(kind, error, trace))
    print(printable_lines(text.rstrip("\n")), file=sys.stderr)


def carry_out(work: Callable[[], int], out: Out) -> int:
    """Run a command. Errors become one line and an exit code."""
    try:
        return work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
        raise
    except WindlassError as exc:
        if out.debug:
            sys.excepthook = _print_escaped
            raise
        out.error(str(exc), exc.code)
    except Exception as exc:
        if out.debug:
            sys.excepthook = _print_escaped
            raise
        out.error(f"unexpected {type(exc).__name__}: {exc} (--debug shows where)", "unexpected")
    return 1
