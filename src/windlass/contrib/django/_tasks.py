"""``django.tasks`` of Django 6, or the package ``django_tasks`` for older versions."""

from __future__ import annotations

import importlib
from typing import Any

try:
    _base: Any = importlib.import_module("django.tasks")
    _name = "django.tasks"
except ModuleNotFoundError:
    try:
        _base = importlib.import_module("django_tasks")
        _name = "django_tasks"
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError(
            "the task backend needs Django 6, or the package django-tasks: pip install 'windlass[django]'"
        ) from exc

_parts: Any = importlib.import_module(f"{_name}.base")
_signals: Any = importlib.import_module(f"{_name}.signals")
_exceptions: Any = importlib.import_module(f"{_name}.exceptions")

BaseTaskBackend: Any = importlib.import_module(f"{_name}.backends.base").BaseTaskBackend
Task: Any = _parts.Task
TaskContext: Any = _parts.TaskContext
TaskError: Any = _parts.TaskError
TaskResult: Any = _parts.TaskResult
TaskResultStatus: Any = _parts.TaskResultStatus
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist
task_backends: Any = _base.task_backends
task_enqueued: Any = _signals.task_enqueued
task_started: Any = _signals.task_started
task_finished: Any = _signals.task_finished
