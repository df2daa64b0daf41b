"""The connection through which a process writes, and its transactions.

All calls that wait when a transaction begins share its commit and its flush. Each request runs in its own
savepoint, so that a request that fails rolls back only its own changes.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from windlass.backend import requests as rq
from windlass.backend.calls import Answer, StoreCall
from windlass.backend.local import joined_adds
from windlass.backend.local.flush import FlushHealth, not_flushed
from windlass.backend.local.locks import FairLock
from windlass.backend.local.modes import denied, make_file, mode_of, no_folder
from windlass.backends.sqlite import migrations, statements, sweep
from windlass.backends.sqlite.connection import (
    CHECKPOINT_PAGES,
    OneCursor,
    connect,
    is_busy,
    is_odd_text,
    prepare_file,
    read_any_text,
    to_error,
)
from windlass.backends.sqlite.database_files import DatabaseFiles
from windlass.backends.sqlite.disk import Disk, LogLostError
from windlass.backends.sqlite.notify import SqliteNotifier
from windlass.backends.sqlite.port import RequestPort
from windlass.backends.sqlite.settings import SqliteSettings
from windlass.backends.sqlite.tx import Meta, Queues, Tx, read_meta
from windlass.core.clock import SYSTEM_CLOCK, SteadyClock
from windlass.core.paths import took
from windlass.core.probe import reach
from windlass.engine import timing

T = TypeVar("T")

log = logging.getLogger("windlass.sqlite")


class SqliteSession:
    """The writing connection of a process. Only the writer's thread uses it."""

    files: DatabaseFiles

    def __init__(self, settings: SqliteSettings, wake: SqliteNotifier) -> None:
        self._settings = settings
        self._wake = wake
        self._sql = statements.load(settings.namespace)
        self._clock = SteadyClock()
        self._health = FlushHealth()
        self._meta: Meta | None = None
        self._version = -1
        #: How many times commits may have been lost after a failed flush. Readers drop their caches then.
        self.taken_back = 0
        #: Whether tables remain to be checked for STRICT, and a table that must be checked once more.
        self.sweep_due = False
        self._misfit: str | None = None
        #: Approximate number of pages written to the log since the last checkpoint.
        self._pages = 0.0

    # --- open and close ---------------------------------------------------------------------------

    def open(self) -> None:
        """Open and migrate the file, under the lock of all processes; raises ``StorageError``."""
        try:
            make_file(self._settings.path, self._settings.mode)  # SQLite's other files get the same mode
            self.lock = FairLock(self._settings.path, mode_of(self._settings.path))
            self.lock.acquire()
            try:
                self.conn = connect(self._settings, busy_ms=round(self._settings.timeout * 1000))
                prepare_file(self.conn)
                migrations.migrate(self.conn, self._settings.namespace, SYSTEM_CLOCK.now_ms())
                self.conn.execute("PRAGMA busy_timeout = 0")  # from now on the writer retries by itself
                self._disk = self.make_disk()
                self.files = DatabaseFiles(self._settings.path, self._settings.shown)
            finally:
                self.lock.release()
        except (sqlite3.Error, OSError) as exc:
            self.close()
            path = self._settings.path
            beside = [
                path,
                *(path + end for end in ("-lock", "-turn", "-wal", "-shm")),
                os.path.dirname(path),
            ]
            raise no_folder(path) or denied(beside) or to_error(exc, self._settings.shown) from exc
        self._cursor = self.conn.cursor()
        self._one = OneCursor(self.conn, self._cursor)
        self._queues = Queues(self._one, self._sql)
        self.sweep_due = sweep.is_due(self.conn, self._settings.namespace)
        self._wake.open(read_meta(self.conn, self._sql).activity)

    def make_disk(self) -> Disk:
        """Return a ``Disk`` for one thread. All of them share the state of failed flushes."""
        return Disk(self._settings.path, full=self._settings.synchronous == "full", health=self._health)

    def close(self) -> None:
        if hasattr(self, "_disk"):
            self._make_good()
            self._disk.close()
        if hasattr(self, "conn"):
            self.conn.close()
        if hasattr(self, "lock"):
            self.lock.close()

    def _make_good(self) -> None:
        """Repair the log after a failed flush, because SQLite copies it into the file on close."""
        for _ in range(2):  # the first attempt may only drop lost commits
            if self._disk.failed and self.lock.try_acquire():
                try:
                    with suppress(sqlite3.Error, OSError):
                        if self.begin():
                            self._roll_back(None)
                finally:
                    self.lock.release()

    # --- one transaction ----------------------------------------------------------------------------

    def begin(self) -> bool:
        """Begin a transaction. Returns False if another program is writing. The lock must be held."""
        try:
            self._cursor.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as exc:
            if is_busy(exc):
                return False
            raise
        if self._disk.failed:
            self._flush_again()
        return True

    def _flush_again(self) -> None:
        """Write the log again after a failed flush. The open transaction keeps other writers out of it.

        Commits may have been lost, in this process or in another one, so all cached state is dropped.
        """
        self.taken_back += 1
        self._meta = None
        self._queues.start_over()
        try:
            self._disk.rewrite()
        except BaseException as exc:
            self._roll_back(None)
            if isinstance(exc, LogLostError):
                self._disk.take_back()
            raise

    def run(self, calls: list[StoreCall[Any]]) -> tuple[list[Answer], set[str]]:
        """Carry out calls inside the open transaction and commit it. Returns the answers and the topics.

        The commit is not on the disk yet, so do not deliver the answers before ``secure`` returns.
        """
        try:
            return self._commit(lambda tx: self._run_calls(tx, calls))
        except Exception as exc:
            if is_odd_text(self.conn, exc):
                read_any_text(self.conn)
                with suppress(sqlite3.Error, OSError):  # report the first error then
                    if self.begin():
                        return self.run(calls)
            return [self.failed(call, exc) for call in calls], set()

    def _commit(self, work: Callable[[Tx], T]) -> tuple[T, set[str]]:
        """Do ``work`` in the open transaction and commit it. Returns its answer and the topics.

        If this fails, the transaction is rolled back.
        """
        tx: Tx | None = None
        done = 0
        try:
            meta = self._read_meta()
            tx = Tx(self._one, self._sql, self._queues, meta, self._clock.now_ms(meta.clock_ms))
            answer = work(tx)
            self._meta = tx.flush()
            self._pages += tx.pages
            done = self._meta.activity - meta.activity
            self._wake.own_activity += done  # before the commit, or it would look like another process's
            reach("sqlite.committing")
            self._cursor.execute("COMMIT")
        except Exception:
            self._wake.own_activity -= done
            self._roll_back(tx)
            raise
        return answer, tx.topics

    def secure(self, answers: list[Answer]) -> list[Answer]:
        """Flush the commit to the disk. Call it with the lock released, so that other processes can write.

        Returns ``answers``, or errors in their place if the flush failed or the file was replaced.
        """
        error: Exception | None = None
        try:
            reach("sqlite.committed")
            self.files.check()
        except Exception as exc:
            error = exc
        try:
            self._disk.sync()
        except OSError as exc:
            log.error("%s could not be flushed: %s", self._settings.shown, exc)
            error = not_flushed(exc, self._settings.shown)
        return answers if error is None else [self.failed(call, error) for call, _, _ in answers]

    def failed(self, call: StoreCall[Any], exc: Exception) -> Answer:
        """Return the error answer of a call. A value of a wrong type makes its table due for a check."""
        misfit = sweep.misfit_in(exc, self._settings.namespace)
        if misfit is not None:
            self._misfit, self.sweep_due = misfit, True
        return call, None, to_error(exc, self._settings.shown)

    def _read_meta(self) -> Meta:
        """Return the state of the store. The cached one is valid unless another connection has written."""
        (version,) = self._cursor.execute("PRAGMA data_version").fetchone()
        if self._meta is None or version != self._version:
            self._queues.forget()
            self._version = version
            before, self._meta = self._meta, read_meta(self.conn, self._sql)
            if before is not None and self._meta.clock_ms < before.clock_ms:
                self._queues.kept_longer.clear()
        return self._meta

    def _set_back(self, tx: Tx) -> None:
        """Adapt stored times to a clock that went back, before any request of the transaction runs."""
        step = RequestPort(tx, None)
        step.carry_out(timing.set_back, tx.meta.clock_ms)
        step.hand_over()
        self._queues.kept_longer.clear()

    def _run_calls(self, tx: Tx, calls: list[StoreCall[Any]]) -> list[Answer]:
        reach("sqlite.begun")
        if tx.now_ms < tx.meta.clock_ms:
            self._set_back(tx)
        if len(calls) == 1:
            return [(calls[0], self._run_request(tx, calls[0].request), None)]
        return joined_adds.answer_all(
            calls, partial(self._run_alone, tx), lambda: took("sqlite.adds_together")
        )

    def _run_alone(self, tx: Tx, call: StoreCall[Any], request: rq.Request[Any]) -> Answer:
        """Run a request in its own savepoint, so that a failure rolls back only this request."""
        self._cursor.execute("SAVEPOINT one")
        try:
            answer: Answer = (call, self._run_request(tx, request), None)
        except Exception as exc:
            if not self.conn.in_transaction or is_odd_text(self.conn, exc):
                raise  # SQLite rolled back everything (disk full, I/O error), or ``run`` retries
            self._cursor.execute("ROLLBACK TO one")
            answer = self.failed(call, exc)
        self._cursor.execute("RELEASE one")
        return answer

    def _run_request(self, tx: Tx, request: rq.Request[Any]) -> Any:
        step = RequestPort(tx, request.now_ms)
        try:
            value = step.answer(request)
        except BaseException:
            self._queues.rolled_back(step.made)
            raise
        step.hand_over()
        return value

    def _roll_back(self, tx: Tx | None) -> None:
        self._meta = None
        self._queues.rolled_back(tx.made if tx is not None else [])
        try:
            if self.conn.in_transaction:
                self.conn.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the next BEGIN will report it

    # --- tables that become STRICT --------------------------------------------------------------------

    def sweep(self) -> bool:
        """Check the next rows of tables that are to become STRICT, in a separate transaction.

        Returns False if another program is writing. The lock must be held.
        """
        try:
            if not self.begin():
                return False
            more, topics = self._commit(self._check_rows)
            self._misfit, self.sweep_due = None, more
            self._wake.announce(topics)
        except Exception as exc:
            if is_odd_text(self.conn, exc):
                read_any_text(self.conn)
            else:
                self.sweep_due = False  # until the store is opened again
                log.exception("%s: could not check for values of a wrong type", self._settings.shown)
        return True

    def _check_rows(self, tx: Tx) -> bool:
        """Check the next batch of rows. Returns whether there may be more."""
        # Requests adapt stored times to a clock that went back; this does not.
        tx.now_ms = max(tx.now_ms, tx.meta.clock_ms)
        if self._misfit is not None:
            sweep.again(self._one, self._settings.namespace, self._misfit)
        step = RequestPort(tx, None)
        more = sweep.batch(step, self._settings.namespace)
        step.hand_over()
        return more

    # --- the log ------------------------------------------------------------------------------------

    @property
    def upkeep_due(self) -> bool:
        """Whether a checkpoint is due. Overwriting a short log is cheaper than appending to a long one."""
        return self._pages >= CHECKPOINT_PAGES

    def checkpoint(self) -> None:
        """Copy the log into the database file, as far as open readers allow."""
        if self._disk.failed:
            return  # frames of the log may be lost
        self._pages = 0
        try:
            self.conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error:
            pass  # for example a full disk: the log keeps growing, and the next commit reports the error
