"""The group ``windlass pipeline``, and options that its commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from windlass.backend.urls import default_url
from windlass.cli.output import Out
from windlass.cli.reach import check_reachable
from windlass.cli.store_commands import carry_out, check_exists, examples_epilog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windlass.pipeline.session import SessionOptions

Work = Callable[..., int]

lake_option = click.option(
    "--lake",
    metavar="PLACE",
    required=True,
    envvar="WINDLASS_LAKE",
    show_envvar=True,
    help="The folder of the lake, or a URL such as s3://bucket/lake.",
)
source_option = click.option(
    "--source", default="default", show_default=True, help="Name of this store within the lake."
)
master_option = click.option(
    "--master", metavar="M", help="Where Spark runs, such as spark://host:7077.  [default: local[*]]"
)
conf_option = click.option(
    "--conf", "-c", multiple=True, metavar="NAME=VALUE", help="A Spark setting (repeatable)."
)


def payload_options(work: Work) -> Work:
    """Add the options for arguments and results."""
    size = click.option(
        "--payload-bytes",
        type=click.IntRange(1),
        default=10_000,
        show_default=True,
        help="With --payloads: longer texts are left out.",
    )
    masks = click.option(
        "--mask",
        multiple=True,
        metavar="FIELD",
        help="With --payloads: another field whose values are hidden (repeatable).",
    )
    asked = click.option("--payloads", is_flag=True, help="Keep arguments and results of jobs as JSON text.")
    return asked(size(masks(work)))


@click.group("pipeline", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Copy every finished attempt into a lake of Delta tables, and query it.

    'run' fills the lake; 'report', 'sql' and 'replay' read it without a JVM. Needs
    pip install 'windlass[spark]' and, for run and backfill, Java 17.
    """


def pipeline_command(name: str, *, examples: str) -> Callable[[Work], click.Command]:
    """Add a command to the group, with ``--json``, ``--debug`` and error handling."""

    def decorate(work: Work) -> click.Command:
        @functools.wraps(work)
        def callback(as_json: bool, debug: bool, **values: Any) -> None:
            out = Out(as_json=as_json, debug=debug)
            click.get_current_context().exit(carry_out(lambda: work(out, **values), out))

        wrapped: Any = callback
        wrapped = click.option("--debug", is_flag=True, help="Show tracebacks of errors.")(wrapped)
        wrapped = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(wrapped)
        made: click.Command = command.command(name, epilog=examples_epilog(examples))(wrapped)
        return made

    return decorate


def existing_store(url: str | None) -> str:
    """The URL of the store, which must exist: the commands of the pipeline read it, and create none."""
    chosen = url or default_url()
    check_exists(chosen)
    check_reachable(chosen)
    return chosen


@contextmanager
def spark_session(out: Out, master: str | None, conf: tuple[str, ...]) -> Iterator[SparkSession]:
    """A Spark session. Prints a note first, because a JVM takes some time to start."""
    from windlass.pipeline.session import session

    out.note("starting Spark ...")
    with session(session_options(master, conf)) as spark:
        yield spark


def session_options(master: str | None, conf: tuple[str, ...]) -> SessionOptions:
    from windlass.pipeline.session import SessionOptions

    pairs = {}
    for item in conf:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.BadParameter("must be NAME=VALUE", param_hint="'--conf'")
        pairs[name] = value
    return SessionOptions(master=master, conf=pairs)
