"""Hints between processes, as ``backend.local.notify`` describes. Polling compares the length of the log."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from windlass.backend.local import notify
from windlass.backends.file.log import Log
from windlass.backends.file.settings import FileSettings

log = logging.getLogger("windlass.file")


class FileNotifier(notify.Notifier):
    """The hints of one directory."""

    def __init__(self, settings: FileSettings) -> None:
        super().__init__(
            os.path.join(settings.directory, "wake"), settings.namespace, like=settings.directory
        )
        self._settings = settings
        self._log: Callable[[], Log] | None = None
        self._seen: tuple[str, int] | None = None

    def open(self, log: Callable[[], Log]) -> None:
        """Create the sockets. Called when the store is open. ``log`` returns the log that it reads now."""
        self._log = log
        self.open_boxes()

    def foreign(self) -> bool:
        """Whether the log has grown and this process has not read the new part."""
        before, self._seen = self._seen, self._behind()
        return self._seen is not None and self._seen != before

    def end_checks(self) -> None:
        """Nothing to release."""

    def _behind(self) -> tuple[str, int] | None:
        """The path and size of the log if this process has not read all of it; otherwise None."""
        if self._log is None:
            return None
        known = self._log()
        try:
            if known.is_current and not known.grew:
                return None
            return known.path, os.fstat(known.fd).st_size
        except OSError:
            return None  # the next poll may succeed, and callers get their own errors

    def warn(self, what: str, exc: Exception) -> None:
        """Log an error that concerns no caller."""
        log.warning("%s: %s: %s", self._settings.shown, what, exc)
