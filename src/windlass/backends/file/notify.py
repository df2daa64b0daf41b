"""Hints across processes, as ``backend.local.notify`` describes.

The slow check looks at the length of the log.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Protocol

from windlass.backend.local import notify

if TYPE_CHECKING:
    from windlass.backend.hub import Hub
    from windlass.backends.file.log import Log
    from windlass.backends.file.settings import FileSettings

log = logging.getLogger("windlass.file")


class LogReader(Protocol):
    """The session that reads the log."""

    log: Log


class FileNotifier(notify.Notifier):
    """The hints of one ``Directory``."""

    def __init__(self, settings: FileSettings, hub: Hub) -> None:
        super().__init__(
            os.path.join(settings.directory, "wake"), settings.namespace, hub, like=settings.directory
        )
        self._settings = settings
        self._session: LogReader | None = None

    def open(self, session: LogReader) -> None:
        """The store is open."""
        self._session = session
        self.open_boxes()

    def checker(self) -> notify.Checker:
        return _Checker(self)

    @property
    def behind(self) -> tuple[str, int] | None:
        """Where the log ends, when this process has not read that far; None when it has."""
        session = self._session
        if session is None:
            return None
        known = session.log
        try:
            if known.is_current and not known.grew:
                return None
            return known.path, os.fstat(known.fd).st_size
        except OSError:
            return None  # the next look may succeed; callers see their own errors

    def complain(self, what: str, exc: Exception) -> None:
        """Something that concerns no caller went wrong."""
        log.warning("%s: %s: %s", self._settings.shown, what, exc)


class _Checker(notify.Checker):
    def __init__(self, wake: FileNotifier) -> None:
        self._wake = wake
        self._seen: tuple[str, int] | None = None

    def foreign(self) -> bool:
        """Whether there is something new that this process did not write."""
        before, self._seen = self._seen, self._wake.behind
        return self._seen is not None and self._seen != before

    def close(self) -> None:
        """Nothing to close."""
