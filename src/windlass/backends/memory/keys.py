"""Unique keys in the memory store: who holds them, what an add under a held key does; and their verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from windlass.backend import limits as lrq
from windlass.backend import requests as rq
from windlass.backends.memory.journal import Table
from windlass.core import transitions, unique
from windlass.core.edges import Dependency, OnFailure
from windlass.core.job import EventType, JobRecord, NewJob
from windlass.core.outcome import AddOutcome
from windlass.core.transitions import Note, Scribe
from windlass.core.unique import UniqueHolder, Verdict

if TYPE_CHECKING:
    from windlass.backends.memory.store import MemoryStore, StoredQueue


class Keyring:
    """The unique keys of all queues."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.verbs: dict[type[Any], Callable[[Any, Scribe], Any]] = {
            lrq.GetUniqueKey: self._get,
            lrq.FreeUniqueKey: self._free,
            lrq.ListUniqueKeys: self._list,
        }

    # --- at every add and change of a job that has a key -----------------------------------------

    def answer(self, queue: StoredQueue, new: NewJob, scribe: Scribe) -> rq.Added | None:
        """The answer to an add whose key is held; None when a new job is to be made."""
        wanted = new.options.unique
        if wanted is None:
            return None
        entry = queue.keys.get(wanted.key)
        holder = queue.jobs.get(entry.job_id) if entry else None
        verdict = unique.decide(wanted, entry, holder, new.request_id, scribe.now_ms)
        if entry is None or verdict in (Verdict.NEW, Verdict.FOLLOW):
            return None
        if verdict is Verdict.DUPLICATE:
            if holder is None:
                scribe.notes.append(Note(queue.name, EventType.DEDUPLICATED, entry.job_id, new.task))
                return rq.Added(AddOutcome.DUPLICATE, None)
            scribe.note(holder, EventType.DEDUPLICATED)
            return self._about(AddOutcome.DUPLICATE, holder, scribe)
        assert holder is not None, "only a pending holder can be replaced"
        if verdict is Verdict.REPLACE:
            left = transitions.not_taken(holder, new, full=queue.groups.refuses(new) is AddOutcome.REFUSED)
            if self._store.gates.refuses_rank(holder if "group" in left else new, new):
                return rq.Added(AddOutcome.OUT_OF_ORDER, None)
            self._replace(queue, holder, new, left, scribe)
            entry = unique.entry_for(holder, wanted, scribe.now_ms)
            entry.request_id, entry.not_taken = new.request_id, left
            queue.keys[wanted.key] = entry
            self._changed(queue, wanted.key)
        answer = self._about(AddOutcome.REPLACED, holder, scribe)
        answer.not_taken = entry.not_taken
        return answer

    def _replace(
        self, queue: StoredQueue, holder: JobRecord, new: NewJob, left: tuple[str, ...], scribe: Scribe
    ) -> None:
        name = holder.options.group
        transitions.replace(holder, new, scribe, left)
        before = queue.groups.get(name) if name is not None and name != holder.options.group else None
        if before is not None:
            before.forget(holder.id)
        self._store.journal.made(holder)
        self._store.file(holder, scribe)
        if before is not None:
            self._store.gates.advance(queue, before, scribe)

    def _verdict(self, queue: StoredQueue, new: NewJob, now_ms: int) -> tuple[Verdict, str]:
        wanted = new.options.unique
        entry = queue.keys.get(wanted.key) if wanted is not None else None
        if wanted is None or entry is None:
            return Verdict.NEW, ""
        holder = queue.jobs.get(entry.job_id)
        return unique.decide(wanted, entry, holder, new.request_id, now_ms), entry.job_id

    def answered_by(self, queue: StoredQueue, new: NewJob, now_ms: int) -> str | None:
        """The job whose key will answer instead of a new job."""
        verdict, holder_id = self._verdict(queue, new, now_ms)
        return None if verdict in (Verdict.NEW, Verdict.FOLLOW) else holder_id

    def runs_before(self, queue: StoredQueue, new: NewJob, now_ms: int) -> Dependency | None:
        """The running job that a new one is kept behind (``keep_last``)."""
        verdict, holder_id = self._verdict(queue, new, now_ms)
        return Dependency(new.queue, holder_id, OnFailure.IGNORE) if verdict is Verdict.FOLLOW else None

    def _about(self, outcome: AddOutcome, holder: JobRecord, scribe: Scribe) -> rq.Added:
        view = self._store.view(holder, scribe.now_ms)
        return rq.Added(outcome, holder.state, holder.enqueued_ms, holder.due_ms, view)

    def take(self, queue: StoredQueue, job: JobRecord, now_ms: int) -> None:
        """A job that was just added holds its key from now on."""
        wanted = job.options.unique
        if wanted is not None:
            queue.keys[wanted.key] = unique.entry_for(job, wanted, now_ms)
            self._changed(queue, wanted.key)

    def _changed(self, queue: StoredQueue, key: str) -> None:
        self._store.journal.row(Table.KEY, queue.name, key)

    def take_again(self, queue: StoredQueue, job: JobRecord, now_ms: int) -> None:
        """A finished job that is retried by hand takes its key, unless somebody else has it."""
        wanted = job.options.unique
        if wanted is None or not unique.takes_key_again(job):
            return
        entry = queue.keys.get(wanted.key)
        if entry is None or not entry.is_live(now_ms):
            queue.keys[wanted.key] = unique.entry_for(job, wanted, now_ms)
            self._changed(queue, wanted.key)

    def settle(self, queue: StoredQueue, job: JobRecord, *, removed: bool = False) -> None:
        """Free the key of a job that no longer holds it."""
        wanted = job.options.unique
        if wanted is None or not unique.frees_key(job, removed=removed):
            return
        entry = queue.keys.get(wanted.key)
        if entry is not None and entry.job_id == job.id:
            del queue.keys[wanted.key]
            self._changed(queue, wanted.key)

    def set_back(self, queue: StoredQueue, from_ms: int, by_ms: int) -> None:
        """The store's time goes back: keys keep the time that they had left."""
        for key, entry in queue.keys.items():
            if entry.until_ms is not None and entry.until_ms > from_ms:
                entry.until_ms -= by_ms
                self._changed(queue, key)

    def prune(self, queue: StoredQueue, now_ms: int) -> int:
        """Forget keys that are past their time; returns how many."""
        gone = [key for key, entry in queue.keys.items() if not entry.is_live(now_ms)]
        for key in gone:
            del queue.keys[key]
            self._changed(queue, key)
        return len(gone)

    # --- verbs ------------------------------------------------------------------------------------

    def _get(self, request: lrq.GetUniqueKey, scribe: Scribe) -> UniqueHolder | None:
        entry = self._store.look(request.queue).keys.get(request.key)
        if entry is None or not entry.is_live(scribe.now_ms):
            return None
        return UniqueHolder(request.key, entry.job_id, entry.until_ms)

    def _free(self, request: lrq.FreeUniqueKey, scribe: Scribe) -> bool:
        queue = self._store.look(request.queue)
        entry = queue.keys.pop(request.key, None)
        if entry is not None:
            self._changed(queue, request.key)
        return entry is not None and entry.is_live(scribe.now_ms)

    def _list(self, request: lrq.ListUniqueKeys, scribe: Scribe) -> lrq.KeyPage:
        keys = self._store.look(request.queue).keys
        found = [
            UniqueHolder(key, keys[key].job_id, keys[key].until_ms)
            for key in sorted(keys)
            if keys[key].is_live(scribe.now_ms) and (request.cursor is None or key > request.cursor)
        ]
        page = found[: request.limit]
        return lrq.KeyPage(page, page[-1].key if len(found) > request.limit else None)
