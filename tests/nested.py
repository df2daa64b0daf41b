"""Shared by tests that run pytest in a separate process."""

from __future__ import annotations

from typing import Final

#: Turns off installed plugins that nested runs do not use, because they take most of the start-up time.
LEAN: Final = ("-p", "no:schemathesis", "-p", "no:faker", "-p", "no:valkey")
