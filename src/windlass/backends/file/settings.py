"""The settings of a ``file://`` URL: directory, namespace, durability, timeout, mode."""

from __future__ import annotations

import os

from windlass.backend.local.settings import LocalSettings
from windlass.backend.urls import BackendUrl
from windlass.errors import ConfigError


class FileSettings(LocalSettings):
    """The settings of a store in a directory."""

    what = "directory"
    levels = ("full", "off")

    @property
    def directory(self) -> str:
        """The directory of this namespace."""
        return os.path.join(self.path, self.namespace)


def parse(url: BackendUrl) -> FileSettings:
    """Return the settings of ``url``. Raises ``ConfigError``."""
    if url.host:
        raise ConfigError("url", "like file:///absolute/directory (three slashes)", url.text)
    if not url.path.strip("/") or "\0" in url.path:
        raise ConfigError("url", "a path to a directory, like file:///var/lib/jobs", url.text)
    return FileSettings.at(url.path, url)
