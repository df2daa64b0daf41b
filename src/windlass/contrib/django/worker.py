"""The project's app for workers: ``windlass worker windlass.contrib.django.worker:app`` with
``DJANGO_SETTINGS_MODULE`` set does the same as ``manage.py windlass_worker``."""

from __future__ import annotations

import importlib
from typing import Any

import django
from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from windlass.api.app import Windlass
from windlass.contrib.django.conf import get_app

if not apps.ready:
    django.setup()

#: The app of the setting ``WINDLASS``. It also runs tasks of ``django.tasks``, if that is installed.
app: Windlass = get_app()
autodiscover_modules("tasks")


def served_queues() -> list[str]:
    """The queues of the app's tasks, and those of our task backends on the same store."""
    names = {task.queue_name for task in app.tasks.values()}
    for backend in _task_backends():
        if backend.jobs is app:
            names |= set(backend.queues)
    return sorted(names)


def _task_backends() -> list[Any]:
    try:
        backend = importlib.import_module("windlass.contrib.django.backend")
    except ModuleNotFoundError:
        return []  # the project has no django.tasks
    found: list[Any] = backend.windlass_backends()
    if found:
        backend.install_runner(app)
    return found


_task_backends()
