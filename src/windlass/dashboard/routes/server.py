"""The server itself: session, audit log, OpenAPI document, probes, Prometheus."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from litestar import Request, Response, delete, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, QueryParameter

from windlass._version import __version__
from windlass.dashboard.access import of_queues, of_store, public, signing_in
from windlass.dashboard.audit import note
from windlass.dashboard.injected import TheGuard, TheStoreView
from windlass.dashboard.openapi import document
from windlass.dashboard.params import Limit
from windlass.dashboard.prometheus import CONTENT_TYPE, render
from windlass.dashboard.scope import identity_of
from windlass.dashboard.shapes.server import Audit, Health, Version
from windlass.dashboard.shapes.session import Session, SignIn
from windlass.dashboard.store_view import StoreView
from windlass.dashboard.users import Identity

Anyone = Request[Any, Any, Any]
Skip = Annotated[str | None, QueryParameter(pattern=r"^[0-9]{1,6}$", description="From the page before.")]
Refused = Annotated[
    bool, QueryParameter(description="A sample of the requests that were not let in, instead of changes.")
]
Everywhere = Annotated[bool, QueryParameter(description="All sessions of the user, not only this one.")]
#: The maximum size of a sign-in body, which unknown clients may send.
_SIGN_IN_BYTES = 16_384


def _session(store_view: StoreView, identity: Identity | None) -> Session:
    methods = store_view.settings.methods
    capabilities = asdict(store_view.store.capabilities)
    namespace = parse_qs(urlsplit(store_view.app.url).query).get("namespace", [""])[0]
    known = identity is not None
    return Session(
        authenticated=known,
        user=identity.name if identity is not None else "",
        role=identity.role if identity is not None else "none",
        read_only=store_view.settings.read_only or (identity is not None and identity.role != "operator"),
        auth=methods,
        version=__version__ if known else "",
        backend=store_view.store.name if known else "",
        namespace=namespace if known else "",
        capabilities=sorted(name for name, has in capabilities.items() if has) if known else [],
        lake=known and store_view.settings.lake is not None,
        trace_url=store_view.settings.trace_url if known else "",
        now_ms=store_view.now_ms(),
        stores=list(store_view.settings.stores) if known else [],
        store=store_view.settings.store if known else "",
    )


@get("/api/session", tags=["server"], access=public())
async def get_session(store_view: TheStoreView, request: Anyone) -> Session:
    """The caller and their rights. Open to all requests; without a sign-in it only shows how to sign in."""
    return _session(store_view, identity_of(request.scope))


@post(
    "/api/session",
    status_code=200,
    tags=["server"],
    access=signing_in(),
    request_max_body_size=_SIGN_IN_BYTES,
)
async def sign_in(
    store_view: TheStoreView, guard: TheGuard, request: Anyone, data: JSONBody[SignIn]
) -> Response[Session]:
    """Sign in with a token or a password; answers with a session cookie."""
    authenticator = guard.authenticator
    identity = authenticator.sign_in(request.scope, data.token, data.username, data.password)
    headers = {"Set-Cookie": authenticator.begin_session(request.scope, identity)}
    note(request, session="begun")
    return Response(_session(store_view, identity), headers=headers)


@delete("/api/session", status_code=204, tags=["server"], access=public())
async def sign_out(guard: TheGuard, request: Anyone, everywhere: Everywhere = False) -> Response[None]:
    """End the session of this browser; with ``everywhere`` all sessions of its user."""
    cookie = guard.authenticator.end_session(request.scope, everywhere)
    note(request, session="all ended" if everywhere else "ended")
    return Response(None, status_code=204, headers={"Set-Cookie": cookie})


@get("/api/audit", tags=["server"], access=of_store("audit"))
async def get_audit(
    store_view: TheStoreView, cursor: Skip = None, limit: Limit = 100, refused: Refused = False
) -> Audit:
    """Changes that were made or tried through this API, newest first, or a sample of refused requests."""
    return store_view.audit.page(int(cursor or 0), limit, refused=refused)


@get("/api/v1/version", tags=["server"], access=of_queues())
async def get_version(request: Anyone) -> Version:
    """The version of the server."""
    return Version(version=__version__, api="v1")


@get("/api/openapi.json", tags=["server"], access=of_queues())
async def get_openapi(request: Anyone) -> dict[str, Any]:
    """This document: OpenAPI 3.1."""
    return document()


@get("/live", tags=["probes"], access=public())
async def get_live(store_view: TheStoreView, request: Anyone) -> Health:
    """The server answers."""
    return _health(store_view, request, "")


@get(
    ["/ready", "/health"],
    tags=["probes"],
    responses={503: ResponseSpec(Health, description="The store does not answer", generate_examples=False)},
    access=public(),
)
async def get_ready(store_view: TheStoreView, request: Anyone) -> Response[Health]:
    """Whether the store answers, else 503, with the reason for signed-in callers. Cached for a second."""
    health = _health(store_view, request, await store_view.readiness.reason())
    return Response(health, status_code=200 if health.ready else 503)


def _health(store_view: StoreView, request: Anyone, reason: str) -> Health:
    """The health, without the store's name and reason for callers who are not signed in."""
    known = identity_of(request.scope) is not None
    shown = reason if known or not reason else "the store does not answer"
    return Health(live=True, ready=not reason, reason=shown, backend=store_view.store.name if known else "")


@get(
    "/metrics",
    tags=["probes"],
    media_type=CONTENT_TYPE,
    responses={
        200: ResponseSpec(
            str, media_type=CONTENT_TYPE, description="Prometheus text", generate_examples=False
        )
    },
    access=of_queues(),
)
async def get_prometheus(store_view: TheStoreView) -> Response[bytes]:
    """Jobs by queue and state, lifetime totals by task and outcome, workers: for Prometheus."""
    return Response(await render(store_view), media_type=CONTENT_TYPE)


HANDLERS = [
    get_session,
    sign_in,
    sign_out,
    get_audit,
    get_version,
    get_openapi,
    get_live,
    get_ready,
    get_prometheus,
]
