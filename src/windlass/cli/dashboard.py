"""``windlass dashboard``: the HTTP API and the pages."""

from __future__ import annotations

import ipaddress
import logging
import os
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.dashboard_options import Options
from windlass.cli.output import Out
from windlass.cli.store import shown_url, store_command
from windlass.errors import ConfigError

if TYPE_CHECKING:
    from windlass.dashboard.guard import Guard


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make(options: Options) -> Guard:
    """The application that the options mean; refused when it would be open to others without a sign-in."""
    from windlass.cli.access import sign_in_options
    from windlass.dashboard import DEFAULT_MASK, create_app

    ways = sign_in_options(options)
    app = create_app(
        options.app(create=True),
        operator_tokens=options.operator_token,
        reader_tokens=options.reader_token,
        users=_passwords(options.users, "--user"),
        reader_users=_passwords(options.readers, "--reader"),
        read_only=options.read_only,
        mask=(*DEFAULT_MASK, *options.mask),
        queues=options.queues or None,
        prefix=options.prefix,
        lake=options.lake,
        audit_file=options.audit_file,
        trace_url=options.trace_url,
        **ways,
    )
    if not is_loopback(options.host) and not app.store_view.settings.methods:
        raise ConfigError(
            "host",
            "127.0.0.1 unless there is a sign-in: give --operator-token (or $WINDLASS_OPERATOR_TOKEN), "
            "--reader-token, --user, --openid-issuer, or --trusted-proxy with --proxy-user-header",
            options.host,
        )
    return app


def _passwords(given: tuple[str, ...], option: str) -> dict[str, str]:
    """NAME:PASSWORD, or NAME with the password in $WINDLASS_PASSWORD_NAME."""
    found = {}
    for entry in given:
        name, colon, password = entry.partition(":")
        if not colon:
            password = os.environ.get(f"WINDLASS_PASSWORD_{name.upper()}", "")
        if not password:
            raise ConfigError(option, f"NAME:PASSWORD, or the password in $WINDLASS_PASSWORD_{name.upper()}")
        found[name] = password
    return found


async def run(options: Options, out: Out) -> int:
    """Serve until a signal stops it."""
    app = make(options)
    from windlass.dashboard.serve import DashboardServer  # after ``make`` has reported what is missing

    windlass = app.store_view.app
    store = shown_url(windlass.url)

    def tell(port: int) -> None:
        host = f"[{options.host}]" if ":" in options.host else options.host
        url = f"http://{host}:{port}{options.prefix}/"
        if out.as_json:
            out.line({"url": url, "store": store})
        else:
            out.text(f"dashboard of {store} on {url}")

    logging.getLogger("windlass.audit").setLevel(logging.INFO)
    server = DashboardServer(app, options.host, options.port, tell)
    try:
        await server.serve()
    finally:
        await windlass.close()
    return 0 if server.started else 1


@store_command(
    "dashboard",
    run,
    examples="""
windlass dashboard --url sqlite:///jobs.db
windlass dashboard --port 9000 --read-only
WINDLASS_OPERATOR_TOKEN=... windlass dashboard --host 0.0.0.0
windlass dashboard --host 0.0.0.0 --user ada --reader bob     passwords in the environment
windlass dashboard --host 0.0.0.0 --access access.toml        who may do what, in a file
windlass dashboard --trusted-proxy 10.0.0.5 --proxy-user-header X-Forwarded-User --operator-role ada
""",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="0: any free one."
)
@click.option(
    "--operator-token", envvar="WINDLASS_OPERATOR_TOKEN", show_envvar=True, help="May change things."
)
@click.option("--reader-token", envvar="WINDLASS_READER_TOKEN", show_envvar=True, help="May look.")
@click.option("--user", "users", multiple=True, metavar="NAME[:PASSWORD]", help="Who may change things.")
@click.option("--reader", "readers", multiple=True, metavar="NAME[:PASSWORD]", help="Who may look.")
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
    help="Who of the provider's or proxy's users may change things; * and ? match.",
)
@click.option(
    "--reader-role",
    "reader_roles",
    multiple=True,
    metavar="USER|@GROUP",
    envvar="WINDLASS_READER_ROLE",
    show_envvar=True,
    help="Who of them may look.",
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
    help="This dashboard's name at the provider.",
)
@click.option(
    "--public-url",
    metavar="URL",
    envvar="WINDLASS_PUBLIC_URL",
    show_envvar=True,
    help="Where browsers reach this dashboard; the provider sends users back to it.",
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="ADDRESS",
    envvar="WINDLASS_TRUSTED_PROXY",
    show_envvar=True,
    help="A proxy, or its network, that tells the client's address. Its secret: $WINDLASS_PROXY_SECRET.",
)
@click.option(
    "--proxy-user-header",
    metavar="NAME",
    envvar="WINDLASS_PROXY_USER_HEADER",
    show_envvar=True,
    help="Where it names the user who signed in there. It must remove this header from what clients send.",
)
@click.option(
    "--proxy-groups-header",
    metavar="NAME",
    envvar="WINDLASS_PROXY_GROUPS_HEADER",
    show_envvar=True,
    help="Where it names the user's groups, with commas between; as above.",
)
@click.option("--read-only", is_flag=True, help="Nothing can be changed.")
@click.option("--mask", multiple=True, metavar="FIELD", help="More fields whose values are hidden.")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only these queues; * and ? match.")
@click.option("--prefix", default="", metavar="PATH", help="The path under which a proxy serves it.")
@click.option("--lake", metavar="PLACE", help="The pipeline's lake, for figures over years.")
@click.option("--audit-file", metavar="FILE", help="Write every change there too.")
@click.option(
    "--trace-url",
    default="",
    metavar="TEMPLATE",
    envvar="WINDLASS_TRACE_URL",
    show_envvar=True,
    help="Where the trace of a job is shown: https://traces.example/trace/{trace_id}.",
)
def command(**values: Any) -> Options:
    """Serve the HTTP API and the pages.

    Only this machine can reach it, unless there is a sign-in: tokens or passwords, best given in the
    environment, an OpenID Connect provider, or a proxy that signs users in. Secrets of these two come from
    the environment alone. API: /api/openapi.json.
    """
    return Options(**values)
