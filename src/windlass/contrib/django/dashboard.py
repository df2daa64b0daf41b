"""Signs users of Django in to a dashboard that runs next to Django in ``asgi.py``.

::

    dashboard = create_app(jobs, prefix="/admin/jobs", auth=dashboard_user(Roles(reader_groups=["support"])))

    async def application(scope, receive, send):
        ours = scope["path"] == "/admin/jobs" or scope["path"].startswith("/admin/jobs/")
        await (dashboard if ours else django)(scope, receive, send)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth import get_user
from django.core.handlers.asgi import ASGIRequest
from django.db import connections

if TYPE_CHECKING:
    from windlass.dashboard import Identity, Roles


def dashboard_user(roles: Roles) -> Callable[[Mapping[str, Any]], Awaitable[Identity | None]]:
    """For ``create_app(auth=...)``: the user of the Django session. Superusers are operators. For other
    users, ``roles`` decides by their name and groups."""

    def read(scope: Mapping[str, Any]) -> Identity | None:
        request = ASGIRequest({**scope, "method": "GET"}, BytesIO())
        engine = import_module(settings.SESSION_ENGINE)
        request.session = engine.SessionStore(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
        try:
            return _identity(get_user(request), roles)
        finally:
            connections.close_all()  # of this thread

    async def check(scope: Mapping[str, Any]) -> Identity | None:
        return await asyncio.to_thread(read, scope)

    return check


def _identity(user: Any, roles: Roles) -> Identity | None:
    from windlass.dashboard import Identity

    if not user.is_authenticated or not user.is_active:
        return None
    if user.is_superuser:
        return Identity(user.get_username(), "operator")
    return roles.identity(user.get_username(), [group.name for group in user.groups.all()])
