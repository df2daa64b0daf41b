"""Starlette and frameworks built on it: opens the app with the server, and finds it in a request.

::

    jobs = Windlass()
    app = Starlette(routes=[...], lifespan=lifespan(jobs))

    async def signup(request):
        await get_windlass(request).queue("mail").add("welcome", {"to": ...})

A server process that only adds jobs needs nothing else. ``worker=True`` also runs jobs in it. This is useful
in development and for small services; in production run ``windlass worker`` as a separate process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from windlass.api.app import Windlass
from windlass.errors import ConfigError, not_installed
from windlass.worker import Worker

try:
    from starlette.authentication import AuthCredentials, BaseUser
    from starlette.requests import HTTPConnection
except ImportError as _missing:
    raise not_installed("contrib", "Starlette", "windlass[starlette]") from _missing

if TYPE_CHECKING:
    from windlass.dashboard import Identity, Roles

#: Called with the web application. What it yields (a mapping or None) is the state of requests.
Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def lifespan(
    jobs: Windlass, *, worker: bool | Mapping[str, Any] = False, inner: Lifespan | None = None
) -> Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]:
    """A lifespan for ``Starlette(lifespan=...)`` or ``FastAPI(lifespan=...)``.

    ``jobs`` is opened when the server starts, so that an unreachable store prevents the start, and closed
    when it ends. ``worker`` (True, or a mapping of worker options) also runs the app's tasks here; it stops
    gracefully before the server exits. ``inner`` is your own lifespan, inside this one.
    """

    @asynccontextmanager
    async def manager(asgi: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(jobs)
            asgi.state.windlass = jobs
            if worker is not False:
                await stack.enter_async_context(make_worker(jobs, {} if worker is True else worker))
            state = None if inner is None else await stack.enter_async_context(inner(asgi))
            yield dict(state or {})

    return manager


def make_worker(jobs: Windlass, options: Mapping[str, Any]) -> Worker:
    """A worker for all queues of the app's tasks."""
    given = dict(options)
    queues = given.pop("queues", None) or sorted({task.queue_name for task in jobs.tasks.values()})
    if not queues:
        raise ConfigError(
            "worker", message="the app has no tasks, so name the queues of the worker: {'queues': [...]}"
        )
    return Worker(queues, url_or_app=jobs, **given)


def get_windlass(connection: HTTPConnection) -> Windlass:
    """The Windlass app of the web application that serves this request or web socket."""
    found = getattr(connection.app.state, "windlass", None)
    if not isinstance(found, Windlass):
        raise ConfigError(
            "lifespan",
            message="this web application has no Windlass app: give it "
            "windlass.contrib.starlette.lifespan(...), and let the server run the lifespan",
        )
    return found


def dashboard_user(roles: Roles) -> Callable[[Mapping[str, Any]], Identity | None]:
    """For ``create_app(auth=...)`` of a mounted dashboard: the user that ``AuthenticationMiddleware`` found.

    Their name is ``user.identity``, or ``user.username`` if the user has no identity. The scopes of their
    credentials are used as groups. A user without a role in ``roles`` is refused.
    """

    def check(scope: Mapping[str, Any]) -> Identity | None:
        user, credentials = scope.get("user"), scope.get("auth")
        if not isinstance(user, BaseUser) or not user.is_authenticated:
            return None
        groups = credentials.scopes if isinstance(credentials, AuthCredentials) else ()
        return roles.identity(_name_of(user), groups)

    return check


def _name_of(user: BaseUser) -> str:
    try:
        return user.identity
    except NotImplementedError:
        return str(getattr(user, "username", ""))
