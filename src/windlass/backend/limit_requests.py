"""Requests about limits, groups and unique keys. See ``backend.requests`` for what holds for all requests.

``core.limit_rules`` explains how limits work, ``core.unique_rules`` how keys do.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backend.requests import Request
from windlass.core.limit_rules import GroupInfo, GroupLimits, GroupSettings, QueueLimits, Rate
from windlass.core.unique_rules import UniqueHolder

# --- queues and groups ---------------------------------------------------------------------------


class SetQueueLimits(Request[None], kw_only=True):
    """Change those limits of a queue that are named in ``fields``; a value of None removes the limit.

    What started before a rate was set does not count.
    """

    needs: ClassVar[str] = "limits"

    queue: str
    fields: list[str]
    concurrency: int | None = None
    rate: Rate | None = None


class SetGroupLimits(Request[None], kw_only=True):
    """Replace the limits of a group; of ``*``: of every group that has none of its own.

    ``limits`` None removes them. Parked jobs that may start now are let in (at most 1,000 in this step, the
    rest with the next claims); jobs that wait and may not start any more are parked when a claim meets them.
    Raises ``OrderedGroupError``, and changes nothing, when a group would become ordered that has unfinished
    jobs with a priority or ``lifo``.
    """

    needs: ClassVar[str] = "groups"

    queue: str
    group: str
    limits: GroupLimits | None = None


class PauseGroup(Request[bool], kw_only=True):
    """Start no more jobs of a group, or continue; True when that changed something."""

    needs: ClassVar[str] = "groups"

    queue: str
    group: str
    paused: bool


class Hold(Request[int], kw_only=True):
    """Start nothing of a group (None: of the whole queue) before now + ``ms``; returns until when.

    A longer hold stays as it is; ``ms`` = 0 ends any.
    """

    needs: ClassVar[str] = "limits"

    queue: str
    group: str | None = None
    ms: int


class RevokeTask(Request[None], kw_only=True):
    """Let every job of a task in a queue that would start end as ``cancelled`` instead.

    This ends at ``until_ms``, or now + ``for_ms``; without either it holds until the task is restored. With
    ``once`` it holds for the next job that would start. It replaces an earlier one of the same task. Raises
    ``ConfigError`` when too many tasks of the queue are revoked.
    """

    needs: ClassVar[str] = "revoked_tasks"

    queue: str
    task: str
    until_ms: int | None = None
    for_ms: int | None = None
    once: bool = False


class RestoreTask(Request[bool], kw_only=True):
    """Undo ``RevokeTask``; False when the task was not revoked."""

    needs: ClassVar[str] = "revoked_tasks"

    queue: str
    task: str


class Limits(msgspec.Struct, kw_only=True):
    """The limits of a queue and of some of its groups. A hold that has passed is reported as 0, and a
    revocation that has passed is left out."""

    queue: QueueLimits
    hold_until_ms: int
    every_group: GroupLimits
    groups: dict[str, GroupSettings]
    #: How long the queue's rate and hold let nothing more start; 0: something may start now.
    opens_in_ms: int = 0


class GetLimits(Request[Limits], kw_only=True):
    """The limits of a queue, of all its groups, and of the named groups (each is in the answer)."""

    needs: ClassVar[str] = "limits"

    queue: str
    groups: tuple[str, ...] = ()


class GroupPage(msgspec.Struct):
    """Some groups and where to continue (None: that was all)."""

    groups: list[GroupInfo]
    cursor: str | None = None


class ListGroups(Request[GroupPage], kw_only=True):
    """Groups of a queue with unfinished jobs, or paused, or held, or with limits of their own; by name."""

    needs: ClassVar[str] = "groups"

    queue: str
    cursor: str | None = None
    limit: int = 100


# --- unique keys -----------------------------------------------------------------------------------


class GetUniqueKey(Request["UniqueHolder | None"], kw_only=True):
    """Who holds a key now."""

    needs: ClassVar[str] = "unique"

    queue: str
    key: str


class FreeUniqueKey(Request[bool], kw_only=True):
    """Free a key, no matter which job holds it; False when none did. The holder itself keeps running."""

    needs: ClassVar[str] = "unique"

    queue: str
    key: str


class KeyPage(msgspec.Struct):
    """Some keys and where to continue (None: that was all)."""

    keys: list[UniqueHolder]
    cursor: str | None = None


class ListUniqueKeys(Request[KeyPage], kw_only=True):
    """Keys of a queue that are held, by key."""

    needs: ClassVar[str] = "unique"

    queue: str
    cursor: str | None = None
    limit: int = 100
