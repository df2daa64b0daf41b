"""The state of a store in this process. A step is: lock, read to the end, decide, append, unlock, sync."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from typing import Any

from windlass.backend import requests as rq
from windlass.backend.calls import Answer, StoreCall, size_of
from windlass.backend.local import joined_adds
from windlass.backend.local.flush import not_flushed
from windlass.backend.local.locks import FairLock
from windlass.backend.local.modes import denied, mode_of
from windlass.backends.file import directory as dr
from windlass.backends.file import effects, readback
from windlass.backends.file.errors import DamagedLogError, to_error
from windlass.backends.file.log import Log
from windlass.backends.file.notify import FileNotifier
from windlass.backends.file.settings import FileSettings
from windlass.backends.file.store import FileStore
from windlass.core.clock import SteadyClock, moment
from windlass.core.paths import took
from windlass.core.probe import reach
from windlass.errors import StorageError, StoreReplacedError, WindlassError

_FULL = {errno.ENOSPC, errno.EDQUOT}
#: Estimated bytes of a step per item of its requests, and in addition.
_PER_ITEM = 600
_OVERHEAD = 8_192


class FileSession:
    """``acquire`` takes the lock between processes; ``mutex`` protects ``store`` and ``log`` in this one."""

    _lock: FairLock
    log: Log
    store: FileStore

    def __init__(self, settings: FileSettings, wake: FileNotifier) -> None:
        self.mutex = threading.Lock()
        # ``flock`` does not exclude threads that share a descriptor, so they take this lock first.
        self._turn = threading.Lock()
        self._flushing = threading.Lock()
        #: The state in memory differs from the log, so the log must be read again.
        self._must_reload = False
        self._settings = settings
        self.directory = settings.directory
        self._wake = wake
        self._clock = SteadyClock()
        self._was_full = False

    # --- opening and closing ----------------------------------------------------------------------

    def open(self) -> None:
        """Create the store if it does not exist, and read it. Raises ``StorageError``."""
        try:
            dr.check_posix()
            dr.prepare(self._settings.path, self.directory, self._settings.mode)
            self._open_lock()
            if dr.read_current(self.directory) is None:
                self._create()
            self._load()
        except OSError as exc:
            places = dr.places(self._settings.path, self.directory)
            raise denied(places) or to_error(exc, self._settings.shown) from exc
        self._wake.open(lambda: self.log)

    def close(self) -> None:
        with self.mutex:
            if hasattr(self, "log"):
                self.log.close()
            self.close_lock()

    def close_lock(self) -> None:
        """Close the lock files."""
        if hasattr(self, "_lock"):
            self._lock.close()

    def _open_lock(self) -> None:
        lock = FairLock(os.path.join(self.directory, "store"), mode_of(self.directory))
        self.close_lock()
        self._lock = lock

    def _create(self) -> None:
        self.acquire()
        try:
            if dr.read_current(self.directory) is None:
                dr.create(self.directory)
        finally:
            self.release()

    def _load(self) -> None:
        """Read the whole log again. Needs no lock."""
        # Compaction may remove a log between reading ``current`` and opening the log.
        for _ in range(10):
            try:
                log = Log(self.directory)
                break
            except FileNotFoundError:
                if not os.path.exists(os.path.join(self.directory, dr.CURRENT)):
                    raise
        else:
            raise StorageError(f"{self._settings.shown}: its log is gone; restore a backup")
        store = FileStore()
        log.load(store)
        self.log, self.store, self._must_reload = log, store, False

    # --- reading ------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Apply the steps of other processes. The caller holds the mutex."""
        if self._must_reload:
            self._load()
        while not self.log.is_current:
            self.log.read(self.store)
            try:
                newer = Log(self.directory)
                if newer.current.store != self.log.current.store:
                    raise DamagedLogError(newer.path, 0, "it is another store")
                newer.skip_to(self.log.number)
            except FileNotFoundError:
                continue  # overtaken by the next generation, or gone: ``is_current`` decides
            except DamagedLogError:
                self._load()  # a backup was restored, or the store was created again
                return
            self.log = newer
        self.log.read(self.store)

    def read(self, request: rq.Request[Any]) -> Any:
        """Answer a request that changes nothing. Raises ``WindlassError``."""
        with self.mutex:
            try:
                self.catch_up()
                self._check_not_replaced(self.log)
                now_ms = moment(request.now_ms, lambda: self._clock.now_ms(self.store.now_ms))
                return self.store.apply(request, now_ms)[0]
            except Exception as exc:
                raise self._to_error(exc) from exc

    # --- one step -----------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Take the lock between processes. Waits without a timeout."""
        self._turn.acquire()
        try:
            self._lock.acquire()
            try:
                while self._lock.stale:
                    self._open_lock()  # closing the old one releases it
                    self._lock.acquire()
            except FileNotFoundError:
                pass  # the directory was removed: the next read fails
        except BaseException:
            self._turn.release()
            raise

    def release(self) -> None:
        """Release the lock between processes."""
        self._lock.release()
        self._turn.release()

    def run(self, calls: list[StoreCall[Any]]) -> tuple[list[Answer], set[str], Log | None]:
        """Decide calls and append their changes to the log. The lock must be held.

        Returns the answers, the topics, and the log to pass to ``finish`` before the calls are answered
        (None: nothing was appended).
        """
        with self.mutex:
            try:
                self.catch_up()
                self.log.cut_torn_tail()
                if self.log.health.failed:
                    self.log.flush_again()
                reach("file.locked")
                return self._decide(calls)
            except Exception as exc:
                return [self.failed(call, exc) for call in calls], set(), None

    def _decide(self, calls: list[StoreCall[Any]]) -> tuple[list[Answer], set[str], Log | None]:
        store, journal = self.store, self.store.journal
        last_ms, now_ms = store.now_ms, self._clock.now_ms(store.now_ms)
        store.now_ms = now_ms
        topics: set[str] = set()
        before = journal.changes
        try:
            if now_ms < last_ms:
                store.set_back(last_ms, now_ms)
            run = partial(self._answer, now_ms=now_ms, topics=topics)
            answers = joined_adds.answer_all(calls, run, lambda: took("file.adds_together"))
            if journal.changes == before:
                return answers, topics, None
            body = effects.encode(store.take_step())
            reach("file.decided")
            self._append(body)
        except Exception as exc:
            self._must_reload = True  # memory has changes that are not in the log
            self._load()
            if len(calls) == 1 or isinstance(exc, OSError):
                return [self.failed(call, exc) for call in calls], set(), None
            return self._decide_separately(calls)
        reach("file.appended")
        return answers, topics, self.log

    def _answer(
        self, call: StoreCall[Any], request: rq.Request[Any], now_ms: int, topics: set[str]
    ) -> Answer:
        """Decide a request for a call, and add to ``topics``. Raises if it fails after its first change."""
        changes = self.store.journal.changes
        try:
            value, touched = self._apply(request, now_ms)
        except Exception as exc:
            if self.store.journal.changes != changes:
                raise
            return self.failed(call, exc)
        topics |= touched
        return call, value, None

    def _apply(self, request: rq.Request[Any], now_ms: int) -> tuple[Any, set[str]]:
        size = readback.check(request)
        if self._was_full:
            self._check_room(size + _PER_ITEM * size_of(request) + _OVERHEAD)
        return self.store.apply(request, moment(request.now_ms, lambda: now_ms))

    def _decide_separately(self, calls: list[StoreCall[Any]]) -> tuple[list[Answer], set[str], Log | None]:
        """Run each call in a step of its own, because one of them failed the step of all."""
        answers: list[Answer] = []
        topics: set[str] = set()
        for call in calls:
            call_answers, touched, _ = self._decide([call])
            answers += call_answers
            topics |= touched
        return answers, topics, self.log

    def _append(self, body: bytes) -> None:
        try:
            self.log.append(body)
            self._was_full = False
        except OSError as exc:
            self._was_full = exc.errno in _FULL
            raise

    def _check_room(self, size: int) -> None:
        """Raise ``OSError`` if the disk has too little space for a step.

        Called only after the disk was full: undoing a failed step costs as much as opening the store.
        """
        found = os.fstatvfs(self.log.fd)
        if found.f_bavail * found.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, log: Log) -> None:
        """Make everything durable that was appended to ``log`` so far. Needs no lock. Raises ``OSError``."""
        reach("file.syncing")
        if self._settings.synchronous == "full":
            with self._flushing:  # of two flushes at once, the kernel reports an error only to the first
                log.flush()
        reach("file.synced")

    def finish(self, answers: list[Answer], log: Log | None) -> list[Answer]:
        """Sync ``log``, and return the answers to deliver.

        If the sync fails, or the store was replaced, every call fails: its change may not be durable.
        """
        if log is None:
            return answers
        try:
            self.sync(log)
            self._check_not_replaced(log)
        except OSError as exc:
            error = exc if isinstance(exc, StorageError) else not_flushed(exc, self._settings.shown)
            return [self.failed(call, error) for call, _, _ in answers]
        except Exception as exc:
            return [self.failed(call, exc) for call, _, _ in answers]
        return answers

    def _check_not_replaced(self, log: Log) -> None:
        if not log.counts:
            raise StoreReplacedError(self._settings.shown, log.path)

    def failed(self, call: StoreCall[Any], exc: Exception) -> Answer:
        return call, None, self._to_error(exc)

    def _to_error(self, exc: Exception) -> WindlassError:
        if isinstance(exc, FileNotFoundError):
            return StoreReplacedError(self._settings.shown, exc.filename or self.directory)
        return to_error(exc, self._settings.shown)
