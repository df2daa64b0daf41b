"""Hints across processes, within milliseconds and without busy polling.

Each process that listens binds a datagram socket in a directory beside the store. After a commit the
writer sends one datagram with the touched topics to every other process that listens to such topics; the
name of a socket says which: ``<namespace key>.<kinds>.<unique>``, kinds being the first letters of topics.

Behind it stands a slow check: a few times a second a process that listens looks whether another process has
changed the store. So a lost datagram, or a system without such sockets, costs a quarter of a second, not a
job.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from windlass.backend.local.socket_folder import SocketFolder

if TYPE_CHECKING:
    from windlass.backend.hub import Hub

#: Seconds between looks at the store.
CHECK_S = 0.25
#: A longer datagram is sent as "anything may have changed".
_LONGEST_HINT = 8_192
_ANYTHING = b"*"
#: A listing is trusted when the directory had been left alone for this long before it was read.
_SETTLED_NS = 50_000_000

_GONE = {errno.ECONNREFUSED, errno.ECONNRESET}


class Mailboxes:
    """The sockets of other processes, and sending to them. Callable from any thread."""

    def __init__(self, beside: str, namespace: str, like: str) -> None:
        """``like``: the file or folder of the store whose mode the sockets follow."""
        self._folder = SocketFolder(beside, like)
        key = hashlib.blake2b(namespace.encode(), digest_size=4).hexdigest()
        self._prefix = key + "."
        self._lock = threading.Lock()
        self._socket = _socket()
        self._own = ""
        self._names: list[str] = []
        self._stamp = 0
        #: Those whose queue was full: the next hint they get says "anything".
        self._behind: set[str] = set()

    def open(self) -> None:
        """Make the folder of the sockets."""
        if self._socket is not None:
            self._folder.open()

    def bind(self, box: socket.socket, kinds: str, before: str = "") -> str:
        """Give ``box`` a name that says its ``kinds``; ``before`` is the name it had."""
        if self._folder.fd < 0:
            raise OSError("no folder for sockets")
        name = f"{self._prefix}{kinds}.{os.getpid()}-{id(box):x}"
        if before:
            os.rename(self.path(before), self.path(name))
        else:
            box.bind(self.path(name))
            os.chmod(self.path(name), self._folder.mode)
        self._own = name
        return name

    def unbind(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path(name))

    def path(self, name: str) -> str:
        return os.path.join(self._folder.path, name)

    def send(self, topics: Iterable[str] | None) -> None:
        """Tell the others; ``None``: anything may have changed."""
        with self._lock:
            try:
                names = self._others() if self._folder.fd >= 0 else ()
            except OSError:
                return  # the folder was removed: the slow check has to do
            if not names:
                return
            kinds = None if topics is None else {topic[0] for topic in topics}
            hint = _ANYTHING if topics is None else "\n".join(topics).encode()
            if len(hint) > _LONGEST_HINT:
                hint = _ANYTHING
            for name in names:
                if kinds is None or not kinds.isdisjoint(name[len(self._prefix) :].partition(".")[0]):
                    self._send_one(name, hint)

    def _send_one(self, name: str, hint: bytes) -> None:
        assert self._socket is not None
        path = self.path(name)
        try:
            self._socket.sendto(_ANYTHING if name in self._behind else hint, path)
            self._behind.discard(name)
        except BlockingIOError:
            self._behind.add(name)  # its queue is full: it is awake, but will not see this hint
        except OSError as exc:
            self._behind.discard(name)
            if exc.errno in _GONE:  # its process died
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _others(self) -> list[str]:
        stamp = os.fstat(self._folder.fd).st_mtime_ns
        if stamp != self._stamp:
            now = time.time_ns()
            names = os.listdir(self._folder.path)
            self._names = [name for name in names if name.startswith(self._prefix) and name != self._own]
            self._stamp = stamp if now - stamp > _SETTLED_NS else 0
        return self._names

    def close(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = None
            self._folder.close()


class Checker(ABC):
    """Tells whether another process has changed the store since it was last asked. Used by one thread."""

    @abstractmethod
    def foreign(self) -> bool: ...

    @abstractmethod
    def close(self) -> None: ...


class Notifier(ABC):
    """The hints of one store: sent after each commit, received while there are listeners."""

    def __init__(self, beside: str, namespace: str, hub: Hub, *, like: str) -> None:
        self._hub = hub
        self._boxes = Mailboxes(beside, namespace, like)
        self._lock = threading.Lock()
        self._kinds: set[str] = set()
        self._name = ""
        self._box: socket.socket | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def checker(self) -> Checker:
        """For the thread that listens."""

    def open_boxes(self) -> None:
        """The store is open."""
        with contextlib.suppress(OSError):  # without a directory the slow check has to do
            if not self._stop.is_set():
                self._boxes.open()

    def announce(self, topics: set[str]) -> None:
        """A transaction of this process touched ``topics``."""
        self._hub.publish(topics)
        self._boxes.send(topics)

    def announce_all(self) -> None:
        """Something changed, and this process does not know what."""
        self._hub.wake_all()
        self._boxes.send(None)

    def listen_for(self, topics: Iterable[str]) -> None:
        """Make sure that hints about ``topics`` of other processes reach the hub."""
        kinds = {topic[0] for topic in topics}
        with self._lock:
            if kinds <= self._kinds and self._thread is not None:
                return
            self._kinds |= kinds
            with contextlib.suppress(OSError):  # without a socket the slow check has to do
                if self._box is None:
                    self._box = _socket()
                if self._box is not None:
                    self._name = self._boxes.bind(self._box, "".join(sorted(self._kinds)), self._name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="windlass-wake", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread and take the socket away."""
        self._stop.set()
        with self._lock:
            thread, box, name = self._thread, self._box, self._name
        if box is not None and name:
            with contextlib.suppress(OSError):
                box.sendto(b"", self._boxes.path(name))
        if thread is not None:
            thread.join()
        if box is not None:
            box.close()
        if name:
            self._boxes.unbind(name)
        self._boxes.close()

    # --- the thread -------------------------------------------------------------------------------

    def _main(self) -> None:
        checker = self.checker()
        next_check = 0.0
        try:
            while not self._stop.is_set():
                now = time.monotonic()
                if now >= next_check:
                    next_check = now + CHECK_S
                    if checker.foreign():
                        self._hub.wake_all()
                self._receive(max(next_check - time.monotonic(), 0))
        finally:
            checker.close()

    def _receive(self, timeout: float) -> None:
        """Wait for hints, at most ``timeout``, and pass on all that have come."""
        if self._box is None or not self._name:
            self._stop.wait(timeout)
            return
        hints: set[bytes] = set()
        self._box.settimeout(max(timeout, 0.001))
        with contextlib.suppress(TimeoutError, BlockingIOError):
            while True:
                hints.update(self._box.recv(_LONGEST_HINT + 1).split(b"\n"))
                self._box.settimeout(0)
        if _ANYTHING in hints:
            self._hub.wake_all()
        else:
            self._hub.publish([hint.decode() for hint in hints if hint])


def _socket() -> socket.socket | None:
    """A datagram socket, if the system has them."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made
