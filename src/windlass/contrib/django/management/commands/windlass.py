"""``manage.py windlass``: the whole command line, on the store of the setting ``WINDLASS``."""

from __future__ import annotations

from windlass.contrib.django.management.passing import PassingCommand


class Command(PassingCommand):
    help = "Look at queues and jobs and change them: 'manage.py windlass --help' lists the commands."
