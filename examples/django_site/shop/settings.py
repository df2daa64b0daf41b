"""The settings of a small project: what concerns Windlass stands at the end."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

HERE = Path(os.environ.get("SHOP_DATA", Path(__file__).resolve().parents[1]))
SECRET_KEY = "only for the example"
USE_TZ = True
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": HERE / "shop.db",
        "TEST": {"NAME": HERE / "test.db"},
    }
}
INSTALLED_APPS = ["shop", "windlass.contrib.django"]
if importlib.util.find_spec("django.tasks") is None:  # before Django 6
    INSTALLED_APPS.append("django_tasks")

WINDLASS = {"URL": f"sqlite:///{HERE / 'jobs.db'}", "APP": "shop.jobs:app"}
TASKS = {
    "default": {"BACKEND": "windlass.contrib.django.TaskBackend", "QUEUES": ["default", "mail"]},
    "patient": {
        "BACKEND": "windlass.contrib.django.TaskBackend",
        "QUEUES": ["mail"],
        "OPTIONS": {
            "enqueue_on_commit": True,
            "job_options": {"max_attempts": 3, "backoff": {"type": "fixed", "delay": 0.01, "jitter": 0}},
        },
    },
}
