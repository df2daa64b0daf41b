"""Django: settings, management commands, a backend for ``django.tasks``, enqueue on commit.

::

    INSTALLED_APPS = [..., "windlass.contrib.django"]
    WINDLASS = {"URL": "valkey://localhost", "APP": "shop.jobs:app"}     # both optional
    TASKS = {"default": {"BACKEND": "windlass.contrib.django.TaskBackend", "QUEUES": ["default", "mail"]}}

``manage.py windlass_worker`` runs the tasks of both kinds: those made with ``django.tasks`` (or, before
Django 6, the ``django_tasks`` package) and those of the Windlass app. ``manage.py windlass queues`` and all
other commands work on the same store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.contrib.django.commit import enqueue_on_commit
from windlass.contrib.django.conf import get_app

if TYPE_CHECKING:
    from windlass.contrib.django.backend import TaskBackend

__all__ = ["TaskBackend", "enqueue_on_commit", "get_app"]


def __getattr__(name: str) -> Any:
    if name == "TaskBackend":  # needs django.tasks, which not every project has
        from windlass.contrib.django.backend import TaskBackend

        return TaskBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
