"""``create_app``: the API and the pages as one ASGI application."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from litestar import Litestar
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.routes import HTTPRoute

from windlass.app import Windlass, as_app
from windlass.dashboard import problems
from windlass.dashboard.desk import Desk
from windlass.dashboard.figures import Figures
from windlass.dashboard.guard import Guard
from windlass.dashboard.lake import LakeFigures
from windlass.dashboard.live import Ticker
from windlass.dashboard.problems import ApiError
from windlass.dashboard.routes import (
    bulk,
    flows,
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
)
from windlass.dashboard.settings import DEFAULT_MASK, AuthHook, ServerLimits, Settings, to_tokens
from windlass.dashboard.static import Static
from windlass.dashboard.strict import StrictRequest
from windlass.errors import WindlassError

_MODULES = (pages, server, live, queues, limits, sets, bulk, jobs, flows, schedules, processes, metrics)
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
    limits: ServerLimits | None = None,
    audit_file: str | Path | None = None,
) -> Guard:
    """The dashboard of a store, to be run by any ASGI server or mounted in another application.

    Who may come in: ``operator_tokens`` (may change things) and ``reader_tokens`` (may look): a token,
    several, or a mapping from the name that the audit log shows; ``users`` and ``reader_users``: passwords by
    name; ``auth``: a function of one's own, from the ASGI scope to ``"operator"``, ``"reader"``, an
    ``Identity``, or None. Without any of them only requests from this machine are answered.

    ``read_only`` refuses every change. ``mask`` names fields whose values are not shown (``*`` and ``?``
    match; ``["*"]`` hides all values). ``queues`` are the names of the queues that this dashboard is about
    (all). ``prefix`` is the path under which it is reached, when neither the server nor a mount tells.
    ``lake`` is the folder of a pipeline's lake, for figures over years. ``allowed_hosts`` are further
    names of this machine; ``trusted_origins`` other sites that may send changes. ``audit_file`` collects the
    audit entries of all processes.
    """
    settings = Settings(
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
        limits=limits or ServerLimits(),
        audit_file=None if audit_file is None else Path(audit_file),
    )
    app = as_app(url_or_app)
    guard = Guard(Desk(app, settings))
    inner = make_litestar(guard)
    guard.inner = inner
    guard.methods_of = _methods(inner)
    guard.is_page = pages.is_page
    guard.on_startup = app.store.open
    if app is not url_or_app:
        guard.on_shutdown = app.close
    return guard


def make_litestar(guard: Guard, openapi: OpenAPIConfig | None = None) -> Litestar:
    """The routes."""
    desk = guard.desk
    lake = None if desk.settings.lake is None else LakeFigures(desk.settings.lake)
    shared: dict[str, Any] = {
        "desk": desk,
        "guard": guard,
        "figures": Figures(desk),
        "lake": lake,
        "ticker": Ticker(desk),
        "static": Static(),
    }
    return Litestar(
        route_handlers=[handler for module in _MODULES for handler in module.HANDLERS],
        dependencies={name: _provide(value) for name, value in shared.items()},
        exception_handlers={
            ApiError: problems.on_refusal,
            WindlassError: problems.on_ours,
            HTTPException: problems.on_http,
            Exception: problems.on_unexpected,
        },
        openapi_config=openapi,
        request_class=StrictRequest,
        request_max_body_size=desk.settings.limits.body_bytes,
        logging_config=None,
    )


def _provide(value: Any) -> Provide:
    return Provide(lambda: value, sync_to_thread=False, use_cache=True)


def _methods(app: Litestar) -> Callable[[str], set[str]]:
    """The methods of each path, for those who ask what they may do."""
    patterns = [
        (re.compile(re.sub(r"\{[^}]+\}", "[^/]+", route.path_format or "/") + r"\Z"), set(route.methods))
        for route in app.routes
        if isinstance(route, HTTPRoute)
    ]

    def methods_of(path: str) -> set[str]:
        plain = path.rstrip("/") or "/"
        found: set[str] = set()
        for pattern, methods in patterns:
            if pattern.match(plain):
                found |= methods
        return found - {"OPTIONS"}

    return methods_of
