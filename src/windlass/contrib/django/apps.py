"""The Django application, with management commands and a check of the settings."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks


class WindlassConfig(AppConfig):
    name = "windlass.contrib.django"
    label = "windlass"
    verbose_name = "Windlass"

    def ready(self) -> None:
        checks.register(check_settings)


def check_settings(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report problems of the setting WINDLASS in ``manage.py check``."""
    from windlass.contrib.django.conf import get_app
    from windlass.errors import WindlassError

    try:
        get_app()
    except (WindlassError, ImportError) as exc:
        return [checks.Error(str(exc), hint="look at the setting WINDLASS", id="windlass.E001")]
    return []
