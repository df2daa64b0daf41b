"""The setting ``WINDLASS``, and the app that it configures."""

from __future__ import annotations

import threading
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from windlass.api.app import Windlass
from windlass.core.option_values import check_known
from windlass.errors import ConfigError

_KNOWN = ("APP", "URL")
_apps: dict[tuple[str | None, str | None], Windlass] = {}
_lock = threading.Lock()


def get_app(url: str | None = None) -> Windlass:
    """The Windlass app of the project: the one that ``WINDLASS["APP"]`` names, or one on its ``URL``.

    ``url`` overrides the setting, for a task backend with a separate store. Repeated calls return the same
    app.
    """
    setting: Any = getattr(settings, "WINDLASS", None) or {}
    if not isinstance(setting, dict):
        raise ConfigError("WINDLASS", "a dictionary with URL and APP, both optional", setting)
    check_known(setting, _KNOWN, "key of the setting WINDLASS")
    key = (setting.get("APP"), url or setting.get("URL"))
    with _lock:
        found = _apps.get(key)
        if found is None:
            found = _apps[key] = _make(*key)
        return found


def _make(path: str | None, url: str | None) -> Windlass:
    if path is None:
        return Windlass(url, name="django")
    try:
        app = import_string(str(path).replace(":", "."))
    except ImportError as exc:
        raise ConfigError("WINDLASS['APP']", f"MODULE:APP of a Windlass app ({exc})", path) from exc
    if not isinstance(app, Windlass):
        raise ConfigError("WINDLASS['APP']", "MODULE:APP of a Windlass app", path)
    if url is not None and app.url != url:
        app.use_store(url)
    return app


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "WINDLASS":
        with _lock:
            _apps.clear()


setting_changed.connect(_forget)
