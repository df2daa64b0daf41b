"""Django as a host of the dashboard, with users and sessions in a file of its own."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
from typing import Any

_BACKENDS = "django.contrib.auth.backends"
#: The first one knows active users alone; with the second one it is the application that looks.
_ACTIVE, _ALL = f"{_BACKENDS}.ModelBackend", f"{_BACKENDS}.AllowAllUsersModelBackend"


def start() -> None:
    """Set Django up, once in a process."""
    from django.conf import settings

    if settings.configured:
        return
    import django

    folder = tempfile.mkdtemp(prefix="windlass-django-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings.configure(
        SECRET_KEY="test",
        ROOT_URLCONF=[],
        ALLOWED_HOSTS=["*"],
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/django.db"}},
        AUTHENTICATION_BACKENDS=[_ACTIVE, _ALL],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    )
    django.setup()
    maker = threading.Thread(target=_make_tables)  # Django refuses to do it beside a running event loop
    maker.start()
    maker.join()


def _make_tables() -> None:
    from django.core.management import call_command
    from django.db import connections

    call_command("migrate", verbosity=0)
    connections.close_all()


def sign_in(name: str, *, superuser: bool = False, groups: tuple[str, ...] = (), active: bool = True) -> str:
    """A user who is signed in: the Cookie header of their browser."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import Group, User
    from django.contrib.sessions.backends.db import SessionStore

    user: Any = User.objects.create(username=name, is_superuser=superuser, is_active=active)
    for group in groups:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = _ACTIVE if active else _ALL
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return f"sessionid={session.session_key}"
