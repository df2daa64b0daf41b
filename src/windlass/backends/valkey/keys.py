"""Names of keys and channels.

All keys of a queue have the hash tag ``{namespace:queue}``, so they are in one slot of a cluster. Keys of the
whole namespace have ``{namespace}``. ``lua/includes/10_queue.lua`` lists the keys below the root of a queue.
"""

from __future__ import annotations

PREFIX = "windlass:"

#: The types of the keys below the root of a queue (see ``lua/includes``), without keys of one job or group.
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
#: Appended to the name of a key that had the wrong type, when it is moved aside.
DAMAGED = ":damaged"


class Keys:
    """The keys of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.root = f"{PREFIX}{{{namespace}}}"
        self.queues = f"{self.root}:queues"
        #: A set: names of the queues that ever had a schedule.
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
        if kind == "to":  # jobs that a queue hands to one worker
            queue, _, worker = name.partition(":")
            return f"{self.queue(queue)}:to:{worker}"
        return f"{self.queue(name)}:{kind}"
