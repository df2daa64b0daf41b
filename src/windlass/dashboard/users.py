"""Users of the dashboard and their roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["operator", "reader"]


ROLES: tuple[Role, ...] = ("operator", "reader")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks. ``operator`` may change things, ``reader`` may look; rules may allow less."""

    name: str
    role: Role
    groups: tuple[str, ...] = ()
