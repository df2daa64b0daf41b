"""Users of the dashboard and their roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["operator", "reader"]


ROLES: tuple[Role, ...] = ("operator", "reader")


@dataclass(frozen=True, slots=True)
class Identity:
    """A signed-in caller. ``operator`` may change things, ``reader`` may read; rules may allow less."""

    name: str
    role: Role
    groups: tuple[str, ...] = ()
