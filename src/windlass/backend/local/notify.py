"""Hints between processes, within milliseconds and without busy polling.

Each process that listens binds a datagram socket in a directory beside the store. After a commit the writer
sends one datagram with the changed topics to every other process that listens for such topics. The name of a
socket says which topics: ``<namespace key>.<kinds>.<unique>``, where kinds are the first letters of topics.

In addition, each process that listens polls every ``CHECK_S`` seconds whether another process has changed the
store. So a lost datagram, or a system without such sockets, only adds that delay.
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

from windlass.backend.hub import Hub
from windlass.backend.local.socket_folder import SocketFolder

#: Seconds between two polls of the store.
CHECK_S = 0.25
#: Instead of a longer datagram, ``_ANYTHING`` is sent: any topic may have changed.
_LONGEST_HINT = 8_192
_ANYTHING = b"*"
#: A listing is cached only if the directory was last changed at least this long before it was read.
_SETTLED_NS = 50_000_000

_GONE = {errno.ECONNREFUSED, errno.ECONNRESET}


class Mailboxes:
    """Sends hints to the sockets of other processes. Callable from any thread."""

    def __init__(self, beside: str, namespace: str, like: str) -> None:
        """``like`` is the file or folder of the store whose mode the sockets get."""
        self._folder = SocketFolder(beside, like)
        key = hashlib.blake2b(namespace.encode(), digest_size=4).hexdigest()
        self._prefix = key + "."
        self._lock = threading.Lock()
        self._socket = _socket()
        self._own = ""
        self._names: list[str] = []
        self._stamp = 0
        #: Sockets whose buffer was full. The next hint to them is ``_ANYTHING``.
        self._behind: set[str] = set()

    def open(self) -> None:
        """Create the folder of the sockets. Raises ``OSError``."""
        if self._socket is not None:
            self._folder.open()

    def bind(self, box: socket.socket, kinds: str, before: str = "") -> str:
        """Bind ``box`` to a new name with its ``kinds``, and return the name. ``before`` is its old name."""
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
        """Send a hint to the other processes. ``None``: any topic may have changed."""
        with self._lock:
            try:
                names = self._others() if self._folder.fd >= 0 else ()
            except OSError:
                return  # the folder was removed: the other processes poll
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
            self._behind.add(name)  # its buffer is full: the process is awake, but will not see this hint
        except OSError as exc:
            self._behind.discard(name)
            if exc.errno in _GONE:  # the process has died
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _others(self) -> list[str]:
        """The names of the other processes' sockets. Reads the directory only if its mtime has changed."""
        stamp = os.fstat(self._folder.fd).st_mtime_ns
        if stamp != self._stamp:
            now = time.time_ns()
            names = os.listdir(self._folder.path)
            self._names = [name for name in names if name.startswith(self._prefix) and name != self._own]
            # A change right after this one may leave the mtime as it is: then do not cache the listing.
            self._stamp = stamp if now - stamp > _SETTLED_NS else 0
        return self._names

    def close(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = None
            self._folder.close()


class Notifier(ABC):
    """Sends hints of one store after each commit, and receives them while there are listeners."""

    def __init__(self, beside: str, namespace: str, *, like: str) -> None:
        #: The listeners of this process.
        self.hub = Hub()
        self._boxes = Mailboxes(beside, namespace, like)
        self._lock = threading.Lock()
        self._kinds: set[str] = set()
        self._name = ""
        self._box: socket.socket | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def foreign(self) -> bool:
        """Whether another process has changed the store since the last call. Runs on the listening thread."""

    @abstractmethod
    def end_checks(self) -> None:
        """Release what ``foreign`` has opened. Runs at the end of the listening thread."""

    def open_boxes(self) -> None:
        """Create the folder of the sockets. Called when the store is open."""
        with contextlib.suppress(OSError):  # without a folder, polling is enough
            if not self._stop.is_set():
                self._boxes.open()

    def announce(self, topics: set[str]) -> None:
        """Send hints for ``topics``, which a transaction of this process has changed."""
        self.hub.publish(topics)
        self._boxes.send(topics)

    def announce_all(self) -> None:
        """Send a hint to all listeners: something changed, and this process does not know what."""
        self.hub.wake_all()
        self._boxes.send(None)

    def listen_for(self, topics: Iterable[str]) -> None:
        """Receive hints about ``topics`` from other processes from now on. Starts the thread if needed."""
        kinds = {topic[0] for topic in topics}
        with self._lock:
            if kinds <= self._kinds and self._thread is not None:
                return
            self._kinds |= kinds
            with contextlib.suppress(OSError):  # without a socket, polling is enough
                if self._box is None:
                    self._box = _socket()
                if self._box is not None:
                    self._name = self._boxes.bind(self._box, "".join(sorted(self._kinds)), self._name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="windlass-wake", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread and remove the socket."""
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
        next_check = 0.0
        try:
            while not self._stop.is_set():
                now = time.monotonic()
                if now >= next_check:
                    next_check = now + CHECK_S
                    if self.foreign():
                        self.hub.wake_all()
                self._receive(max(next_check - time.monotonic(), 0))
        finally:
            self.end_checks()

    def _receive(self, timeout: float) -> None:
        """Wait for hints, at most ``timeout`` seconds, and publish all that have arrived."""
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
            self.hub.wake_all()
        else:
            self.hub.publish([hint.decode() for hint in hints if hint])


def _socket() -> socket.socket | None:
    """A new datagram socket; None if the system has none."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made
