"""What tests share that run pytest in a process of its own."""

from __future__ import annotations

from typing import Final

#: Turns off plugins of our environment that nested runs do not use: they take most of the time of a start.
LEAN: Final = ("-p", "no:schemathesis", "-p", "no:faker", "-p", "no:valkey")
