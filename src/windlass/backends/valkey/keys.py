"""Names of keys and channels.

Everything of a queue carries the hash tag ``{namespace:queue}`` and so lives in one slot of a cluster; what
belongs to the namespace as a whole carries ``{namespace}``. ``lua/includes/10_queue.lua`` lists what hangs
below a root.
"""

from __future__ import annotations

PREFIX = "windlass:"

#: What the keys below the root of a queue hold (see ``lua/includes``), except for those of one job or group.
KINDS: dict[str, str] = {
    "": "hash",
    **{f":{name}": "hash" for name in ("j", "m", "r", "g", "e", "y", "q", "K", "U", "G", "M", "schedules")},
    **{f":{name}": "zset" for name in "wdazPCFXokiIJbuLYEZAHQRn"},
    **{f":{name}": "stream" for name in "fvhx"},
    **{f":{name}": "set" for name in "tT"},
    **{f":{name}": "zset" for name in ("schedules:names", "schedules:due", "minutes:keys", "hours:keys")},
    ":minutes": "hash",
    ":hours": "hash",
}
#: Put behind the name of a key that held something else, when it is moved aside.
DAMAGED = ":damaged"


class Keys:
    """The keys of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.root = f"{PREFIX}{{{namespace}}}"
        self.queues = f"{self.root}:queues"
        #: Names of the queues that ever had a schedule.
        self.scheduled = f"{self.root}:scheduled"
        self._known: dict[str, str] = {}

    def queue(self, name: str) -> str:
        """The root of a queue's keys."""
        root = self._known.get(name)
        if root is None:
            root = self._known[name] = f"{PREFIX}{{{self.namespace}:{name}}}"
        return root

    def channel(self, topic: str) -> str:
        """The channel on which hints about ``topic`` are published."""
        kind, _, name = topic.partition(":")
        if not name or kind == "worker":
            return f"{self.root}:{topic}"
        if kind == "to":  # what a queue gives one worker
            queue, _, worker = name.partition(":")
            return f"{self.queue(queue)}:to:{worker}"
        return f"{self.queue(name)}:{kind}"
