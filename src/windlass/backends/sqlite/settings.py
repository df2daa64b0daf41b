"""The settings in a ``sqlite://`` URL: file, namespace, durability, timeout and file mode."""

from __future__ import annotations

from windlass.backend.local.settings import LocalSettings
from windlass.backend.urls import BackendUrl
from windlass.errors import ConfigError


class SqliteSettings(LocalSettings):
    """The settings of a database file."""

    what = "database"
    levels = ("full", "normal")


def parse(url: BackendUrl) -> SqliteSettings:
    """Return the settings of ``url``; raises ``ConfigError``."""
    if url.host:
        raise ConfigError(
            "url", "like sqlite:///relative.db or sqlite:////absolute.db (three slashes)", url.text
        )
    path = url.path.removeprefix("/")
    if not path or path.endswith("/") or "\0" in path:
        raise ConfigError("url", "a path to a file, like sqlite:///jobs.db", url.text)
    if path == ":memory:":
        raise ConfigError("url", "a path to a file (for jobs in memory use memory://)", url.text)
    return SqliteSettings.at(path, url)
