"""Every job that a store holds, into ``silver/jobs``, once a day: also those that left no record yet.

Tasks list the jobs and write what they see. Jobs that the lake does not know are added; those that are alive
have the state in which they were seen. A job that has ended is in the log by then, so it is added only when
the lake does not know it, or does not know that it has ended. Jobs that are gone stay, with the state in
which they were seen last.

One commit makes the snapshot. It carries the application transaction ``SOURCE/jobs``, whose number is the
time of the store at which the snapshot began: a run that dies leaves nothing, and the next one begins anew.
The commit is made for exactly the version that it was worked out from, so that no job that was erased
meanwhile comes back. When another commit came first, rows are merged again; the store is listed again only
when that was an erasure, or a snapshot of the same source.

Test points: ``pipeline.seen``, when jobs are listed and nothing is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from windlass.backend import requests as rq
from windlass.core.probe import reach
from windlass.pipeline import hashsets, schemas
from windlass.pipeline.batch import LARGE, PER_MERGE, job_files
from windlass.pipeline.digest import JOB_HASH, Digest, hashes, joined
from windlass.pipeline.files import FileEntry
from windlass.pipeline.lake import TRIES, Conflict, Lake, snapshot_of
from windlass.pipeline.source import JobsOf, JobsReader, ReadOptions
from windlass.pipeline.store import ask_many
from windlass.pipeline.tables import Workbench
from windlass.pipeline.transforms.grains import GRAIN_MS
from windlass.pipeline.work import HashFile, MergeSights, SeeJobs

if TYPE_CHECKING:
    from windlass.pipeline.payloads import Payloads


@dataclass(frozen=True)
class Snapshot:
    """What a snapshot found. ``fresh``: jobs that the lake did not know."""

    source: str
    seen_ms: int
    jobs: int
    fresh: int


def is_due(lake: Lake, source: str, now_ms: int) -> bool:
    """Whether the newest snapshot is of an earlier day (UTC)."""
    return lake.last_snapshot(source) // GRAIN_MS["day"] < now_ms // GRAIN_MS["day"]


def take_snapshot(
    spark: SparkSession, lake: Lake, url: str, source: str, now_ms: int, payloads: Payloads | None = None
) -> Snapshot:
    """List the jobs of a store and merge them into the lake. ``now_ms``: by the clock of the store."""
    listing: _Listing | None = None
    for _ in range(TRIES):
        lake.refresh(schemas.SILVER_JOBS, schemas.SILVER_ERASED_JOBS)
        if listing is None or not listing.still_holds():
            listing = _Listing(Workbench(spark, lake), url, source, now_ms, payloads)
        try:
            return listing.commit()
        except Conflict:
            continue  # what was read of the tables is out of date
    raise lake.always_changed()


class _Listing:
    """The jobs of a store as they are now, less those that are erased in the lake."""

    def __init__(
        self, bench: Workbench, url: str, source: str, now_ms: int, payloads: Payloads | None
    ) -> None:
        self.bench = bench
        self.lake = bench.lake
        self.source = source
        self.seen_ms = seen_ms = max(now_ms, self.lake.last_snapshot(source) + 1)
        self._rests_on = self._basis()
        gone = self._erased()
        done = bench.run(
            [SeeJobs(self.lake.place, url, source, seen_ms, parts, gone, payloads) for parts in _shares(url)]
        )
        self.files = [entry for entries, _, _ in done for entry in entries]
        self.alive = joined([alive for _, alive, _ in done])
        self.ended = joined([ended for _, _, ended in done])
        bench.ledger.note_written(self.files)
        reach("pipeline.seen")

    def _basis(self) -> tuple[int, int]:
        """What the rows depend on: the jobs that were erased, and the snapshot before this one."""
        return self.lake.delta(schemas.SILVER_ERASED_JOBS).version(), self.lake.last_snapshot(self.source)

    def still_holds(self) -> bool:
        """Whether the lake as it is now takes the rows as they are."""
        return self._basis() == self._rests_on

    def _erased(self) -> frozenset[str]:
        rows = self.lake.delta(schemas.SILVER_ERASED_JOBS).to_pyarrow_dataset().to_table(["job_hash"])
        return frozenset(rows.column(0).to_pylist())

    def commit(self) -> Snapshot:
        """Add what is new to the lake as it is, and write files anew that hold jobs which are still alive."""
        import numpy as np

        alive, counts = hashsets.counted(hashes(self.alive.jobs))
        ended, again = hashsets.counted(hashes(self.ended.jobs))
        candidates, held = self._known(joined([self.alive, self.ended]))
        known = _union(held)
        # What the lake does not know of a job: that it is alive, or that it has ended.
        news = _union([alive, self._unfinished(ended, candidates, held)])
        touched = _holding(news, candidates, held)
        # A job that changed its state meanwhile was perhaps seen twice.
        both = alive[hashsets.is_in(alive, ended)]
        twice = np.concatenate([alive[counts > 1], ended[again > 1], both])
        skipped = ended[hashsets.is_in(ended, known) & ~hashsets.is_in(ended, news)]
        several = _union([news[hashsets.is_in(news, known)], twice])
        seen = _union([alive, ended])
        files = self.files
        if len(several) or len(skipped):
            files = self._merged(touched, several, skipped)
        self.lake.commit(
            schemas.SILVER_JOBS,
            files,
            touched,
            batches={snapshot_of(self.source): self.seen_ms},
            strict=True,
        )
        return Snapshot(self.source, self.seen_ms, len(seen), int((~hashsets.is_in(seen, known)).sum()))

    def _known(self, digest: Digest) -> tuple[list[FileEntry], list[Any]]:
        """Files that may hold the jobs, and the hashes in each."""
        found = job_files(self.lake, digest)
        self.bench.ledger.note_read(found)
        return found, self.bench.run([HashFile(self.lake.place, entry, JOB_HASH) for entry in found])

    def _unfinished(self, ended: Any, candidates: list[FileEntry], held: list[Any]) -> Any:
        """Those of jobs that have ended whose row does not say so: the record is lost, or seems too old."""
        files = _holding(ended, candidates, held)
        tasks = [HashFile(self.lake.place, entry, JOB_HASH, "NOT final") for entry in files]
        return ended[hashsets.is_in(ended, _union(self.bench.run(tasks)))]

    def _merged(self, touched: Sequence[FileEntry], several: Any, skipped: Any) -> list[FileEntry]:
        rows = sum(entry.rows for entry in [*touched, *self.files])
        shards = max(-(-rows // PER_MERGE), 1)
        return self.bench.run_writers(
            [
                MergeSights(self.lake.place, self.files, touched, several, skipped, shard, shards)
                for shard in range(shards)
            ]
        )


def _union(parts: Sequence[Any]) -> Any:
    """Each hash once."""
    import numpy as np

    return hashsets.unique(np.concatenate([*parts, np.array([], np.uint64)]))


def _holding(jobs: Any, entries: Sequence[FileEntry], held: Sequence[Any]) -> list[FileEntry]:
    """Files that hold one of the jobs."""
    return [entry for entry, found in zip(entries, held, strict=True) if hashsets.have_common(jobs, found)]


def _shares(url: str) -> list[list[JobsOf]]:
    """What each task lists: all of a small store, or one state of one queue."""
    with ask_many(url) as ask:
        count = sum(sum(info.counts.values()) for info in ask(rq.ListQueues()))
    parts = JobsReader(ReadOptions(url, table="jobs")).parts()
    return [parts] if count <= LARGE else [[part] for part in parts]
