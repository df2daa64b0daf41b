"""``windlass dashboard``: serves the HTTP API and the web pages."""

from __future__ import annotations

import ipaddress
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from windlass._renamed import old_names
from windlass.cli.dashboard_options import DashboardOptions
from windlass.cli.output import Out
from windlass.cli.store_commands import shown_url, store_command
from windlass.errors import ConfigError

if TYPE_CHECKING:
    from windlass.api.app import Windlass
    from windlass.dashboard.guard import Guard
    from windlass.dashboard.stores import StoresDashboard


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make(options: DashboardOptions) -> Guard | StoresDashboard:
    """Build the application. Raises ``ConfigError`` if other machines could use it without a sign-in."""
    from windlass.cli.signin_settings import sign_in_options
    from windlass.dashboard import DEFAULT_MASK, create_app, create_stores_app

    shared: dict[str, Any] = {
        "operator_tokens": options.operator_token,
        "reader_tokens": options.reader_token,
        "users": _passwords(options.users, "--user"),
        "reader_users": _passwords(options.readers, "--reader"),
        "read_only": options.read_only,
        "mask": (*DEFAULT_MASK, *options.mask),
        "queues": options.queues or None,
        "prefix": options.prefix,
        "lake": options.lake,
        "audit_file": options.audit_file,
        "trace_url": options.trace_url,
        **sign_in_options(options),
    }
    stores = _open(options)
    app = create_stores_app(stores, **shared) if options.stores else create_app(stores[""], **shared)
    if not is_loopback(options.host) and not app.settings.methods:
        raise ConfigError(
            "host",
            message=f"host {options.host!r} can be reached from other machines, but there is no sign-in: "
            "give --operator-token (or $WINDLASS_OPERATOR_TOKEN), --reader-token, --user, --openid-issuer, "
            "or --trusted-proxy with --proxy-user-header",
            got=options.host,
        )
    return app


def _open(options: DashboardOptions) -> dict[str, Windlass]:
    """The stores by name. Without ``--store`` there is one, with an empty name."""
    if not options.stores:
        return {"": options.app(create=True)}
    if options.lake is not None:
        raise ConfigError(
            "--lake", message="--lake cannot be used with --store: a lake holds the history of one store"
        )
    named: dict[str, str] = {}
    for entry in options.stores:
        name, _, url = entry.partition("=")
        if "://" in name or not url or name in named:
            raise ConfigError("--store", "NAME=URL, each name once")  # not shown: it may hold a password
        named[name] = url
    return {name: replace(options, url=url).app(create=True) for name, url in named.items()}


def _passwords(given: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse NAME:PASSWORD, or NAME with the password in $WINDLASS_PASSWORD_NAME."""
    found = {}
    for entry in given:
        name, colon, password = entry.partition(":")
        if not colon:
            password = os.environ.get(f"WINDLASS_PASSWORD_{name.upper()}", "")
        if not password:
            raise ConfigError(
                option,
                message=f"user {name!r} has no password: write {option} {name}:PASSWORD, or set "
                f"$WINDLASS_PASSWORD_{name.upper()}",
            )
        found[name] = password
    return found


async def run(options: DashboardOptions, out: Out) -> int:
    """Serve until a signal arrives."""
    app = make(options)
    from windlass.dashboard.serve import DashboardServer  # after ``make``, which reports missing packages
    from windlass.dashboard.stores import StoresDashboard

    dashboards = app.dashboards if isinstance(app, StoresDashboard) else {"": app}
    apps = {name: one.store_view.app for name, one in dashboards.items()}

    def report(port: int) -> None:
        host = f"[{options.host}]" if ":" in options.host else options.host
        for name, windlass in apps.items():
            url = f"http://{host}:{port}{options.prefix}/" + (f"{name}/" if name else "")
            store = shown_url(windlass.url)
            if out.as_json:
                out.line({"url": url, "store": store})
            else:
                out.text(f"dashboard of {store} on {url}")

    logging.getLogger("windlass.audit").setLevel(logging.INFO)
    server = DashboardServer(app, options.host, options.port, report)
    try:
        await server.serve()
    finally:
        for windlass in apps.values():
            await windlass.close()
    return 0 if server.started else 1


@store_command(
    "dashboard",
    run,
    examples="""
windlass dashboard --url sqlite:///jobs.db
windlass dashboard --port 9000 --read-only
windlass dashboard --store shop=valkey://cache:6379 --store mail=sqlite:///mail.db
WINDLASS_OPERATOR_TOKEN=... windlass dashboard --host 0.0.0.0
windlass dashboard --host 0.0.0.0 --user ada --reader bob     passwords in the environment
windlass dashboard --host 0.0.0.0 --access access.toml        who may do what, in a file
windlass dashboard --trusted-proxy 10.0.0.5 --proxy-user-header X-Forwarded-User --operator-role ada
""",
)
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="NAME=URL",
    help="A store under a name of its own, instead of --url (repeatable).",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--operator-token",
    envvar="WINDLASS_OPERATOR_TOKEN",
    show_envvar=True,
    help="Token of users who may change jobs.",
)
@click.option(
    "--reader-token",
    envvar="WINDLASS_READER_TOKEN",
    show_envvar=True,
    help="Token of users who may only read.",
)
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME[:PASSWORD]",
    help="A user who may change jobs (repeatable).",
)
@click.option(
    "--reader",
    "readers",
    multiple=True,
    metavar="NAME[:PASSWORD]",
    help="A user who may only read (repeatable).",
)
@click.option(
    "--access",
    metavar="FILE",
    envvar="WINDLASS_ACCESS",
    show_envvar=True,
    help="A TOML file: who may do what to which queues.",
)
@click.option(
    "--operator-role",
    "operator_roles",
    multiple=True,
    metavar="USER|@GROUP",
    envvar="WINDLASS_OPERATOR_ROLE",
    show_envvar=True,
    help="Users or groups of the provider or proxy that may change jobs; * and ? match.",
)
@click.option(
    "--reader-role",
    "reader_roles",
    multiple=True,
    metavar="USER|@GROUP",
    envvar="WINDLASS_READER_ROLE",
    show_envvar=True,
    help="Users or groups that may only read.",
)
@click.option(
    "--openid-issuer",
    metavar="URL",
    envvar="WINDLASS_OPENID_ISSUER",
    show_envvar=True,
    help="An OpenID Connect provider that signs users in. Client secret: $WINDLASS_OPENID_CLIENT_SECRET.",
)
@click.option(
    "--openid-client-id",
    metavar="ID",
    envvar="WINDLASS_OPENID_CLIENT_ID",
    show_envvar=True,
    help="The client id of this dashboard at the provider.",
)
@click.option(
    "--public-url",
    metavar="URL",
    envvar="WINDLASS_PUBLIC_URL",
    show_envvar=True,
    help="The URL at which browsers reach this dashboard; the provider redirects users to it.",
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="ADDRESS",
    envvar="WINDLASS_TRUSTED_PROXY",
    show_envvar=True,
    help="A trusted proxy or network that reports the client's address. Its secret: $WINDLASS_PROXY_SECRET.",
)
@click.option(
    "--proxy-user-header",
    metavar="NAME",
    envvar="WINDLASS_PROXY_USER_HEADER",
    show_envvar=True,
    help="The header with the user whom the proxy signed in. The proxy must remove it from client requests.",
)
@click.option(
    "--proxy-groups-header",
    metavar="NAME",
    envvar="WINDLASS_PROXY_GROUPS_HEADER",
    show_envvar=True,
    help="The header with the user's groups, separated by commas. The same rule applies.",
)
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option(
    "--mask", multiple=True, metavar="FIELD", help="Another field whose values are hidden (repeatable)."
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Show only these queues (repeatable); * and ? match.",
)
@click.option("--prefix", default="", metavar="PATH", help="The path under which a proxy serves it.")
@click.option("--lake", metavar="PLACE", help="The pipeline's lake, for long-term figures.")
@click.option("--audit-file", metavar="FILE", help="Also write every change to this file.")
@click.option(
    "--trace-url",
    default="",
    metavar="TEMPLATE",
    envvar="WINDLASS_TRACE_URL",
    show_envvar=True,
    help="URL of a job's trace: https://traces.example/trace/{trace_id}.",
)
def command(**values: Any) -> DashboardOptions:
    """Serve the dashboard and the HTTP API.

    Without a sign-in it serves only this machine. Users can sign in with tokens or passwords (set them in
    the environment), through an OpenID Connect provider, or through a proxy. The secrets of provider and
    proxy are read from the environment only. The API is described at /api/openapi.json.
    """
    return DashboardOptions(**values)


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
