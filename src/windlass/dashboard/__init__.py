"""The HTTP API and the web pages: ``create_app(url)`` is an ASGI app. Needs ``windlass[dashboard]``."""

from __future__ import annotations

from windlass.errors import not_installed

try:
    import litestar as _litestar
except ImportError as exc:
    raise not_installed("dashboard", "the dashboard", "windlass[dashboard]") from exc

from windlass.dashboard.application import create_app
from windlass.dashboard.settings import DEFAULT_MASK, Rule, ServerLimits
from windlass.dashboard.signin import OpenID, Roles, TrustedProxy
from windlass.dashboard.stores import create_stores_app
from windlass.dashboard.users import Identity

__all__ = [
    "DEFAULT_MASK",
    "Identity",
    "OpenID",
    "Roles",
    "Rule",
    "ServerLimits",
    "TrustedProxy",
    "create_app",
    "create_stores_app",
]
del _litestar
