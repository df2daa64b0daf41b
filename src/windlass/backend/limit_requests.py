"""Requests about limits, groups and unique keys. ``backend.requests`` has the rules for all requests.

``core.limit_rules`` explains how limits work, ``core.unique_rules`` how unique keys work.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backend.requests import Request
from windlass.core.limit_rules import GroupInfo, GroupLimits, GroupSettings, QueueLimits, Rate
from windlass.core.unique_rules import UniqueHolder

# --- queues and groups ---------------------------------------------------------------------------


class SetQueueLimits(Request[None], kw_only=True):
    """Change the limits of a queue that are named in ``fields``; a value of None removes the limit.

    Jobs that started before a rate was set do not count for it.
    """

    needs: ClassVar[str] = "limits"

    queue: str
    fields: list[str]
    concurrency: int | None = None
    rate: Rate | None = None


class SetGroupLimits(Request[None], kw_only=True):
    """Replace the limits of a group; None removes them. Group ``*`` is the default for all other groups.

    Parked jobs that may start now become waiting: at most 1,000 in this step, the rest with the next claims.
    Waiting jobs that may not start any more are parked when a claim reaches them.

    Raises ``OrderedGroupError``, and changes nothing, if a group would become ordered while it has unfinished
    jobs with a priority or ``lifo``.
    """

    needs: ClassVar[str] = "groups"

    queue: str
    group: str
    limits: GroupLimits | None = None


class PauseGroup(Request[bool], kw_only=True):
    """Pause or resume a group; True if that changed its setting. Jobs of a paused group do not start."""

    needs: ClassVar[str] = "groups"

    queue: str
    group: str
    paused: bool


class Hold(Request[int], kw_only=True):
    """Start no job of a group (None: of the whole queue) before now + ``ms``; returns the end of the hold.

    A hold that already lasts longer stays as it is. ``ms`` = 0 removes the hold.
    """

    needs: ClassVar[str] = "limits"

    queue: str
    group: str | None = None
    ms: int


class RevokeTask(Request[None], kw_only=True):
    """Revoke a task in a queue: its jobs end as ``cancelled`` instead of starting.

    This lasts until ``until_ms`` or now + ``for_ms``; without either, until the task is restored. With
    ``once`` it applies only to the next job that would start. It replaces an earlier revocation of the task.
    Raises ``ConfigError`` if too many tasks of the queue are revoked.
    """

    needs: ClassVar[str] = "revoked_tasks"

    queue: str
    task: str
    until_ms: int | None = None
    for_ms: int | None = None
    once: bool = False


class RestoreTask(Request[bool], kw_only=True):
    """Undo ``RevokeTask``; False if the task was not revoked."""

    needs: ClassVar[str] = "revoked_tasks"

    queue: str
    task: str


class Limits(msgspec.Struct, kw_only=True):
    """The limits of a queue and of some of its groups.

    A hold that has ended is reported as 0. A revocation that has ended is left out.
    """

    queue: QueueLimits
    hold_until_ms: int
    every_group: GroupLimits
    groups: dict[str, GroupSettings]
    #: How long the rate and the hold of the queue allow no further start; 0: a job may start now.
    opens_in_ms: int = 0


class GetLimits(Request[Limits], kw_only=True):
    """The limits of a queue, the default for its groups, and the settings of each of the named ``groups``."""

    needs: ClassVar[str] = "limits"

    queue: str
    groups: tuple[str, ...] = ()


class GroupPage(msgspec.Struct):
    """Some groups. ``cursor`` continues the list; None if this is the last page."""

    groups: list[GroupInfo]
    cursor: str | None = None


class ListGroups(Request[GroupPage], kw_only=True):
    """Groups of a queue, ordered by name: those with unfinished jobs, a pause, a hold or their own limits."""

    needs: ClassVar[str] = "groups"

    queue: str
    cursor: str | None = None
    limit: int = 100


# --- unique keys -----------------------------------------------------------------------------------


class GetUniqueKey(Request["UniqueHolder | None"], kw_only=True):
    """The job that holds a key now; None if the key is free."""

    needs: ClassVar[str] = "unique"

    queue: str
    key: str


class FreeUniqueKey(Request[bool], kw_only=True):
    """Free a key, no matter which job holds it; False if it was free. The holder is not affected."""

    needs: ClassVar[str] = "unique"

    queue: str
    key: str


class KeyPage(msgspec.Struct):
    """Some keys. ``cursor`` continues the list; None if this is the last page."""

    keys: list[UniqueHolder]
    cursor: str | None = None


class ListUniqueKeys(Request[KeyPage], kw_only=True):
    """The keys of a queue that are held, ordered by key."""

    needs: ClassVar[str] = "unique"

    queue: str
    cursor: str | None = None
    limit: int = 100
