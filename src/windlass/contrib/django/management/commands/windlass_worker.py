"""``manage.py windlass_worker``: run the jobs of the project."""

from __future__ import annotations

import os

from django.conf import settings

from windlass.contrib.django.management.passing import PassingCommand

_APP = "windlass.contrib.django.worker:app"


class Command(PassingCommand):
    help = "Run the jobs of the project; takes the options of 'windlass worker'."

    def words(self, given: list[str]) -> list[str]:
        from windlass.contrib.django.worker import served_queues

        os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings.SETTINGS_MODULE)
        named = any(word.startswith(("--queues", "-q")) for word in given)
        queues = [] if named else ["--queues", ",".join(served_queues()) or "default"]
        return ["worker", _APP, *queues, *given]
