"""Authorisation: who may call which route, and on which queues.

Each route declares the access that it needs (``access=of_queue("cancel")``). ``AccessGuard`` checks it after
routing and before the handler runs; for a queue in the path, ``check_queue`` decides. ``Grant`` has the
rights of one request: the rights of the caller's role and of the rules (``Rule``) that match the caller. A
handler that finds queues in the body asks ``StoreView.queue``, which calls ``check_queue`` too.

The server does not start if a route declares no access.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.routes import HTTPRoute

from windlass.core.patterns import matches
from windlass.dashboard.allowance import Allowance
from windlass.dashboard.headers import CSRF_HEADER, Headers, headers_of
from windlass.dashboard.problems import ApiError, not_found
from windlass.dashboard.scope import ADMITTED, SAFE, client_of, identity_of
from windlass.dashboard.settings import Action, DashboardSettings
from windlass.dashboard.users import Identity
from windlass.errors import ConfigError

_READ_ACTIONS: frozenset[str] = frozenset({"read", "audit"})
#: What a request is about: nothing secret, a page without data, a page or data, the queue in the path, the
#: queues that the response or the body names, the store as a whole.
Subject = Literal["nothing", "page", "page or queues", "page or queue", "queue", "queues", "store"]
_GRANT = "windlass.grant"
_PAGE = "windlass.page"


@dataclass(frozen=True, slots=True)
class Access:
    """The access that a handler needs. ``actions``: possible actions if the body selects one of them."""

    subject: Subject
    action: Action = "read"
    actions: tuple[Action, ...] = ()
    #: Whether the request is counted for the rate limit before its handler runs; else the handler does it.
    counted: bool = True


def public() -> Access:
    """For all callers: shows and changes nothing of the store."""
    return Access("nothing")


def signing_in() -> Access:
    """For all callers, because they may sign in. Counted when the user is known."""
    return Access("nothing", counted=False)


def page() -> Access:
    """A page or a file of it, without data. Open to all callers if the pages have a sign-in form."""
    return Access("page")


def page_or(subject: Literal["queue", "queues"]) -> Access:
    """A page for a browser, data for other clients."""
    return Access("page or queue" if subject == "queue" else "page or queues")


def of_queue(action: Action = "read") -> Access:
    """About the queue that the path names."""
    return Access("queue", action)


def of_queues(action: Action = "read", *others: Action) -> Access:
    """About queues that the query, body or response names. The store view shows no others."""
    return Access("queues", action, (action, *others) if others else ())


def of_store(action: Action) -> Access:
    """About all queues, including future ones."""
    return Access("store", action)


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of one request: the caller, the action of its route, and the queues."""

    settings: DashboardSettings
    identity: Identity | None = None
    #: The action of the route; None until the handler knows it.
    action: Action | None = None

    def may(self, queue: str, action: Action | None) -> bool:
        """Whether the caller may perform the action on that queue."""
        if action is None or not self.settings.shows(queue) or not self._role_allows(action):
            return False
        return any(_matches(queue, patterns) for patterns in self._patterns(action))

    def may_somewhere(self, action: Action) -> bool:
        """Whether there can be a queue on which the caller may perform the action."""
        return self._role_allows(action) and bool(self._patterns(action))

    def may_everywhere(self, action: Action) -> bool:
        """Whether the caller may perform the action on every queue."""
        return self._role_allows(action) and any("*" in patterns for patterns in self._patterns(action))

    def visible_queues(self) -> tuple[tuple[str, ...], ...]:
        """A key that is equal for callers who see the same queues."""
        return tuple(sorted(set(self._patterns("read")))) if self._role_allows("read") else ()

    def _role_allows(self, action: Action) -> bool:
        if self.identity is None or (self.settings.read_only and action not in _READ_ACTIONS):
            return False
        return self.identity.role == "operator" or action in _READ_ACTIONS

    def _patterns(self, action: Action) -> list[tuple[str, ...]]:
        rules = self.settings.rules
        if self.identity is None:
            return []
        if rules is None:
            return [("*",)]
        return [tuple(rule.queues) for rule in rules if rule.names(self.identity) and rule.allows(action)]


def _matches(queue: str, patterns: Iterable[str]) -> bool:
    return any(matches(queue, pattern) for pattern in patterns)


def as_page(scope: Any) -> bool:
    """Whether the response is the page, not the data."""
    return bool(scope[_PAGE])


def grant_of(scope: Any) -> Grant:
    """The rights of this request."""
    found: Grant = scope[_GRANT]
    return found


class AccessGuard:
    """The Litestar guard of every route. It runs after routing and before the body is read."""

    def __init__(self, settings: DashboardSettings, allowance: Allowance) -> None:
        self._settings = settings
        self._allowance = allowance

    async def __call__(
        self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        scope: Any = connection.scope
        access = handler.opt.get("access") or of_queues("read")
        headers, identity = headers_of(scope), identity_of(scope)
        scope[_PAGE] = access.subject.startswith("page") and (access.subject == "page" or headers.wants_page)
        scope[_GRANT] = grant = Grant(self._settings, identity, None if access.actions else access.action)
        if access.counted:
            self._count(scope)
        if identity is None and not self._is_open(access, bool(scope[_PAGE])):
            raise unauthenticated(self._settings, headers)
        if scope["method"] not in SAFE:
            self._check_change(headers)
        if access.subject != "nothing" and not scope[_PAGE]:
            self._check_grant(access, grant, connection.path_params.get("queue"))
        scope[ADMITTED] = True

    def _is_open(self, access: Access, a_page: bool) -> bool:
        return access.subject == "nothing" or (a_page and self._settings.has_form)

    def _count(self, scope: Any) -> None:
        """Refuse if the client exceeds its rate of requests, or of changes."""
        client = client_of(scope)
        self._allowance.request(client)
        if scope["method"] not in SAFE:
            self._allowance.change(client)

    def _check_change(self, headers: Headers) -> None:
        """Refuse changes that a page of another site may have sent."""
        self._check_origin(headers)
        bearer = headers.get("authorization", "").lower().startswith("bearer ")
        if not bearer and headers.get(CSRF_HEADER) != "1":
            raise ApiError(
                403, "csrf", "the request may come from another site", "Send the header X-Windlass-CSRF: 1."
            )

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is not None and origin in self._settings.trusted_origins:
            return
        site = headers.get("sec-fetch-site", "none")
        same = origin is None or _netloc(origin) == headers.get("host", "")
        if site not in ("none", "same-origin") or not same:
            raise ApiError(
                403, "cross_site", "the request comes from another site", "Use the dashboard's own pages."
            )

    def _check_grant(self, access: Access, grant: Grant, queue: str | None) -> None:
        """Refuse a caller without the rights that the route needs.

        If the path names a queue, ``check_queue`` checks the action on it. Otherwise the caller must have the
        right for at least one queue, or for the whole store.
        """
        actions = access.actions or (access.action,)
        if self._settings.read_only and not _READ_ACTIONS.intersection(actions):
            raise ApiError(
                403, "read_only", "this dashboard is read-only", "Use a dashboard that allows changes."
            )
        if access.subject == "store":
            allowed = grant.may_everywhere(access.action)
        elif access.subject.endswith("queue"):
            allowed = grant.may_somewhere("read")
        else:
            allowed = any(grant.may_somewhere(action) for action in actions)
        if not allowed:
            raise forbidden(access.action)
        if queue is not None:
            check_queue(grant, queue)


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def check_queue(grant: Grant, queue: str) -> None:
    """Refuse a queue that the caller may not see (404), or on which the action is not allowed (403)."""
    if not grant.may(queue, "read"):
        raise not_found(f"there is no queue {queue!r} here", "Look at /api/job-queues.")
    if not grant.may(queue, grant.action):
        raise forbidden(grant.action)


def forbidden(action: str | None) -> ApiError:
    """The error for an action that the caller may not perform."""
    return ApiError(403, "forbidden", f"you may not do this ({action})", "Sign in as a user who may.")


def unauthenticated(settings: DashboardSettings, headers: Headers) -> ApiError:
    """The error for a caller who is not signed in."""
    challenge = "Bearer"
    if "basic" in settings.methods and "sec-fetch-mode" not in headers:
        challenge = 'Basic realm="windlass", charset="UTF-8"'
    advice = "Send a token (Authorization: Bearer ...), or sign in at /api/session."
    return ApiError(401, "unauthenticated", "sign in first", advice, {"WWW-Authenticate": challenge})


def check_declared(app: Litestar) -> None:
    """Raise ``ConfigError`` if a handler does not declare its access."""
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            raise ConfigError("routes", message=f"{route.path} is not an HTTP route", got=route.path)
        for handler in route.route_handlers:
            if handler.http_methods != {"OPTIONS"}:
                _check_handler(route, handler)


def _check_handler(route: HTTPRoute, handler: HTTPRouteHandler) -> None:
    access = handler.opt.get("access")
    if not isinstance(access, Access):
        raise ConfigError(
            "access", message=f"handler {handler.handler_name} of {route.path} declares no access"
        )
    named = "queue" in route.path_parameters
    if access.subject.endswith("queue") != named and access.subject != "page":
        raise ConfigError(
            "access",
            message=f"the access of {route.path} must be to a queue if its path names one, and only then",
        )
    changing = not set(handler.http_methods) <= SAFE
    if changing and access.subject != "nothing" and {access.action, *access.actions} & _READ_ACTIONS:
        raise ConfigError("access", message=f"{route.path} makes changes, but its access is for reading only")
