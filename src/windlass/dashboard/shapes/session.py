"""Problems, and the caller's session."""

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
    """The caller, their rights, and the features of the server."""

    authenticated: bool
    user: str
    role: Literal["operator", "reader", "none"]
    #: Nothing can be changed, in any role.
    read_only: bool
    auth: list[str]
    version: str
    backend: str
    namespace: str
    capabilities: list[str]
    #: Figures can come from a lake.
    lake: bool
    #: The URL of a job's trace in another tool, with fields such as ``{trace_id}``; empty if not set.
    trace_url: str
    now_ms: int
    #: The names of all stores of this dashboard (empty: only this one), and of this one. The pages of another
    #: store are next to these, under its name.
    stores: list[str]
    store: str


class SignIn(Body):
    """A token, or a user with a password."""

    token: str = ""
    username: str = ""
    password: str = ""
