"""Problems, and who asks."""

from __future__ import annotations

from typing import Literal

import msgspec

from windlass.dashboard.shapes.base import Body, Shape


class Problem(Shape, omit_defaults=True):
    """Every error: RFC 9457, with what to do about it."""

    type: str
    title: str
    status: int
    detail: str
    #: A stable word for programs; the last part of ``type``.
    code: str
    #: What the caller can do about it.
    advice: str = ""
    instance: str = ""
    #: Which parts of the request are wrong.
    errors: list[dict[str, str]] = msgspec.field(default_factory=list)


class Session(Shape):
    """Who asks, what they may do, and what stands behind the API."""

    authenticated: bool
    user: str
    role: Literal["operator", "reader", "none"]
    #: Nothing can be changed, whatever the role.
    read_only: bool
    auth: list[str]
    version: str
    backend: str
    namespace: str
    capabilities: list[str]
    #: Figures can come from a lake.
    lake: bool
    #: The address of a job's trace elsewhere, with fields such as ``{trace_id}``; empty: none was given.
    trace_url: str
    now_ms: int
    #: The names of all stores of this dashboard (none: only this one), and of this one. The pages of another
    #: are beside those of this one, under its name.
    stores: list[str]
    store: str


class SignIn(Body):
    """A token, or a user with a password."""

    token: str = ""
    username: str = ""
    password: str = ""
