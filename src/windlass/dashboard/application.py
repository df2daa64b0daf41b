"""``create_app``: the API and the pages as one ASGI application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, Response
from litestar.config.compression import CompressionConfig
from litestar.di import Provide
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.types import Scope

from windlass.api.app import Windlass, as_app
from windlass.dashboard import problems
from windlass.dashboard.access import check_declared, grant_of, unauthenticated
from windlass.dashboard.figures import Figures
from windlass.dashboard.guard import Guard
from windlass.dashboard.headers import headers_of
from windlass.dashboard.lake import LakeFigures
from windlass.dashboard.live import Tickers
from windlass.dashboard.openapi import describe_with
from windlass.dashboard.problems import ApiError
from windlass.dashboard.request_checks import check_parameters, parameters_of
from windlass.dashboard.routes import (
    bulk,
    export,
    flows,
    health,
    jobs,
    limits,
    live,
    metrics,
    pages,
    processes,
    queues,
    schedules,
    server,
    sets,
    signin,
)
from windlass.dashboard.scope import STREAMED, client_of, identity_of
from windlass.dashboard.settings import (
    DEFAULT_MASK,
    AuthHook,
    DashboardSettings,
    Rule,
    ServerLimits,
    to_tokens,
)
from windlass.dashboard.signin import OpenID, TrustedProxy
from windlass.dashboard.static import Static
from windlass.dashboard.store_view import StoreView
from windlass.dashboard.strict import StrictRequest
from windlass.errors import WindlassError

_MODULES = (
    pages,
    server,
    signin,
    live,
    queues,
    limits,
    sets,
    bulk,
    export,
    jobs,
    flows,
    schedules,
    processes,
    metrics,
    health,
)
#: Responses below this size are not compressed.
_COMPRESSED_BYTES = 1_000
Secrets = str | Sequence[str] | Mapping[str, str]


def create_app(  # noqa: PLR0913 - each is named, and most give few
    url_or_app: str | Windlass | None = None,
    *,
    operator_tokens: Secrets | None = None,
    reader_tokens: Secrets | None = None,
    users: Mapping[str, str] | None = None,
    reader_users: Mapping[str, str] | None = None,
    auth: AuthHook | None = None,
    read_only: bool = False,
    mask: Sequence[str] = DEFAULT_MASK,
    prefix: str = "",
    lake: str | None = None,
    queues: Sequence[str] | None = None,
    allowed_hosts: Sequence[str] = (),
    trusted_origins: Sequence[str] = (),
    rules: Sequence[Rule] | None = None,
    proxy: TrustedProxy | None = None,
    openid: OpenID | None = None,
    limits: ServerLimits | None = None,
    audit_file: str | Path | None = None,
    trace_url: str = "",
    stores: Sequence[str] = (),
    store: str = "",
) -> Guard:
    """The dashboard of a store, to be run by any ASGI server or mounted in another application.

    Sign-in: ``operator_tokens`` (may change things) and ``reader_tokens`` (may only read) are a token,
    several, or a mapping from the name that the audit log shows. ``users`` and ``reader_users`` are passwords
    by name. ``auth`` is your own function from the ASGI scope to ``"operator"``, ``"reader"``, an
    ``Identity``, or None. Without any of these, only requests from this machine are answered. ``rules`` say
    what users and groups may do to which queues; everything else is refused. ``openid`` signs users in at a
    provider. ``proxy`` trusts what a proxy reports about the client and its user.

    ``read_only`` refuses every change. ``mask`` names fields whose values are not shown (``*`` and ``?``
    match; ``["*"]`` hides all values). ``queues`` are the names of the queues to show (default: all).
    ``prefix`` is the path under which it is reached, if neither the server nor a mount sets it. ``lake`` is
    the folder or URL of a pipeline's lake, for figures over years. ``allowed_hosts`` are further names of
    this machine; ``trusted_origins`` other sites that may send changes. ``audit_file`` collects the audit
    entries of all processes. ``trace_url`` is the address of a job's trace in another tool; ``{trace_id}``,
    ``{span_id}``, ``{queue}``, ``{id}`` and ``{task}`` are replaced by those of the job.
    ``create_stores_app``, which shows several stores, sets ``stores`` and ``store``.
    """
    settings = DashboardSettings(
        operator_tokens=to_tokens(operator_tokens, "operator"),
        reader_tokens=to_tokens(reader_tokens, "reader"),
        users=dict(users or {}),
        reader_users=dict(reader_users or {}),
        auth=auth,
        read_only=read_only,
        mask=tuple(mask),
        prefix=prefix.rstrip("/"),
        lake=lake,
        queues=None if queues is None else tuple(queues),
        allowed_hosts=tuple(allowed_hosts),
        trusted_origins=tuple(trusted_origins),
        rules=None if rules is None else tuple(rules),
        proxy=proxy,
        openid=openid,
        limits=limits or ServerLimits(),
        audit_file=None if audit_file is None else Path(audit_file),
        trace_url=trace_url,
        stores=tuple(stores),
        store=store,
    )
    app = as_app(url_or_app)
    guard = Guard(StoreView(app, settings))
    inner = make_litestar(guard)
    check_declared(inner)
    guard.inner = inner
    guard.on_startup = app.open
    if app is not url_or_app:
        guard.on_shutdown = app.close
    return guard


def make_litestar(guard: Guard, openapi: OpenAPIConfig | None = None) -> Litestar:
    """The routes."""
    store_view = guard.store_view
    lake = None if store_view.settings.lake is None else LakeFigures(store_view.settings.lake)
    shared: dict[str, Any] = {
        "guard": guard,
        "figures": Figures(store_view),
        "lake": lake,
        "tickers": Tickers(),
        "static": Static(),
    }
    fixed = {name: _provide(value) for name, value in shared.items()}

    def store_view_of(scope: Scope) -> StoreView:
        return store_view.granted(grant_of(scope))

    def on_unmatched(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
        """The response for an unknown path. Callers who are not signed in get 401 and cannot list paths.

        It counts against the rate limit here, because no route counted it.
        """
        try:
            guard.allowance.request(client_of(request.scope))
            if identity_of(request.scope) is None:
                raise unauthenticated(store_view.settings, headers_of(request.scope))
        except ApiError as refusal:
            return problems.on_refusal(request, refusal)
        if _is_view(request, error):
            return pages.unknown(request, shared["static"])
        return problems.on_http(request, error)

    methods: dict[str, set[str]] = {}
    known: dict[HTTPRouteHandler, frozenset[str]] = {}

    async def before(request: Request[Any, Any, Any]) -> Response[None] | None:
        """Answer OPTIONS for callers with access, and refuse parameters that the route does not take."""
        if request.method == "OPTIONS":
            allow = ", ".join(sorted(methods[request.scope["path_template"]]))
            return Response(None, status_code=204, headers={"Allow": allow})
        handler = request.scope["route_handler"]
        if request.scope["path"].startswith("/api/") and isinstance(handler, HTTPRouteHandler):
            if handler not in known:
                known[handler] = parameters_of(handler)
            check_parameters(request.query_params.keys(), known[handler])
        return None

    app = Litestar(
        route_handlers=[handler for module in _MODULES for handler in module.HANDLERS],
        dependencies={"store_view": Provide(store_view_of, sync_to_thread=False), **fixed},
        guards=[guard.access_guard],
        exception_handlers={
            ApiError: problems.on_refusal,
            WindlassError: problems.on_ours,
            NotFoundException: on_unmatched,
            MethodNotAllowedException: on_unmatched,
            HTTPException: problems.on_http,
            Exception: problems.on_unexpected,
        },
        openapi_config=openapi,
        request_class=StrictRequest,
        request_max_body_size=store_view.settings.limits.body_bytes,
        logging_config=None,
        before_request=before,
        compression_config=CompressionConfig(
            backend="gzip", minimum_size=_COMPRESSED_BYTES, gzip_compress_level=5, exclude_opt_key=STREAMED
        ),
    )
    for route in app.routes:
        found = methods.setdefault(route.path_format or "/", set())
        found.update(route.methods or ())
        if "GET" in found:
            found.add("HEAD")
    return app


def _is_view(request: Request[Any, Any, Any], error: HTTPException) -> bool:
    """Whether a browser asked for a page that does not exist."""
    api = "/api/" in f"{request.scope['path']}/"
    return isinstance(error, NotFoundException) and not api and headers_of(request.scope).wants_page


def _provide(value: Any) -> Provide:
    return Provide(lambda: value, sync_to_thread=False, use_cache=True)


describe_with(lambda config: make_litestar(create_app("memory://openapi"), config))
