"""Sign-in at an OpenID Connect provider."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.params import QueryParameter

from windlass.dashboard.access import public
from windlass.dashboard.audit import note
from windlass.dashboard.injected import TheGuard
from windlass.dashboard.problems import ApiError
from windlass.dashboard.scope import BASE

Anyone = Request[Any, Any, Any]
State = Annotated[str, QueryParameter(name="state", max_length=1_000)]
Word = Annotated[str, QueryParameter(max_length=1_000)]


@get("/api/session/openid", status_code=302, tags=["server"], access=public())
async def begin_openid(guard: TheGuard, request: Anyone) -> Response[None]:
    """Redirect to the provider to sign in."""
    url, cookie = await guard.authenticator.begin_openid(request.scope)
    return Response(None, status_code=302, headers={"Location": url, "Set-Cookie": cookie})


@get("/api/session/openid/callback", status_code=303, tags=["server"], access=public())
async def finish_openid(
    guard: TheGuard, request: Anyone, returned: State = "", code: Word = "", error: Word = ""
) -> Response[None]:
    """The return from the provider: creates a session and redirects to the pages."""
    if error:
        raise ApiError(401, "unauthenticated", "the provider did not sign you in", "Sign in again.")
    cookie = await guard.authenticator.finish_openid(request.scope, returned, code)
    note(request, session="begun")
    headers = {"Location": f"{request.scope.get(BASE, '')}/", "Set-Cookie": cookie}
    return Response(None, status_code=303, headers=headers)


HANDLERS = [begin_openid, finish_openid]
