"""Snapshots: once a day, list every job that a store holds, including jobs without a record in the log.

Tasks list the jobs and write rows for them. Jobs that the lake does not know are added to ``silver/jobs``,
and jobs that are alive get the state in which they were listed. A job that has ended should be in the log, so
it is added only if the lake does not know it, or does not know that it has ended. Jobs that are no longer in
the store stay in the lake, with the state in which they were last listed.

A snapshot is one commit. It carries the application transaction ``SOURCE/jobs``, whose number is the store's
time at which the snapshot began. A run that dies leaves nothing, and the next one starts again. The commit is
valid only for the version that it was based on, so that a job that was erased meanwhile is not added again.
If another commit came first, rows are merged again. The store is listed again only if that commit was an
erasure, or a snapshot of the same source.

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
from windlass.pipeline.digest import JOB_HASH, Digest, hashes, joined
from windlass.pipeline.files import FileEntry
from windlass.pipeline.lake import TRIES, Conflict, Lake, snapshot_of
from windlass.pipeline.lake_batch import LARGE, PER_MERGE, job_files
from windlass.pipeline.source import JobsOf, JobsReader, ReadOptions
from windlass.pipeline.spark_tasks import HashFile, MergeSnapshot, SnapshotJobs
from windlass.pipeline.store_requests import ask_many
from windlass.pipeline.transforms.grains import GRAIN_MS
from windlass.pipeline.workbench import Workbench

if TYPE_CHECKING:
    from windlass.pipeline.payloads import Payloads


@dataclass(frozen=True)
class Snapshot:
    """The figures of a snapshot. ``fresh``: jobs that the lake did not know."""

    source: str
    seen_ms: int
    jobs: int
    fresh: int


def is_due(lake: Lake, source: str, now_ms: int) -> bool:
    """Whether the newest snapshot was taken on an earlier day (UTC)."""
    return lake.last_snapshot(source) // GRAIN_MS["day"] < now_ms // GRAIN_MS["day"]


def take_snapshot(
    spark: SparkSession, lake: Lake, url: str, source: str, now_ms: int, payloads: Payloads | None = None
) -> Snapshot:
    """List the jobs of a store and merge them into the lake. ``now_ms`` is the store's time."""
    listing: _Listing | None = None
    for _ in range(TRIES):
        lake.refresh(schemas.SILVER_JOBS, schemas.SILVER_ERASED_JOBS)
        if listing is None or not listing.still_holds():
            listing = _Listing(Workbench(spark, lake), url, source, now_ms, payloads)
        try:
            return listing.commit()
        except Conflict:
            continue  # the loaded state of the tables is outdated
    raise lake.conflict_error()


class _Listing:
    """The jobs that a store holds now, without those that were erased in the lake."""

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
            [
                SnapshotJobs(self.lake.place, url, source, seen_ms, parts, gone, payloads)
                for parts in _shares(url)
            ]
        )
        self.files = [entry for entries, _, _ in done for entry in entries]
        self.alive = joined([alive for _, alive, _ in done])
        self.ended = joined([ended for _, _, ended in done])
        bench.traffic.note_written(self.files)
        reach("pipeline.seen")

    def _basis(self) -> tuple[int, int]:
        """What the rows depend on: the erased jobs, and the previous snapshot."""
        return self.lake.delta(schemas.SILVER_ERASED_JOBS).version(), self.lake.last_snapshot(self.source)

    def still_holds(self) -> bool:
        """Whether the rows are still valid for the current state of the lake."""
        return self._basis() == self._rests_on

    def _erased(self) -> frozenset[str]:
        rows = self.lake.delta(schemas.SILVER_ERASED_JOBS).to_pyarrow_dataset().to_table(["job_hash"])
        return frozenset(rows.column(0).to_pylist())

    def commit(self) -> Snapshot:
        """Add jobs that are new to the lake, and rewrite files that hold jobs which are still alive."""
        import numpy as np

        alive, counts = hashsets.counted(hashes(self.alive.jobs))
        ended, again = hashsets.counted(hashes(self.ended.jobs))
        candidates, held = self._known(joined([self.alive, self.ended]))
        known = _union(held)
        # Jobs for which the lake lacks a fact: that they are alive, or that they have ended.
        news = _union([alive, self._unfinished(ended, candidates, held)])
        touched = _holding(news, candidates, held)
        # A job that changed its state during the listing may have been listed twice.
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
        self.bench.traffic.note_read(found)
        return found, self.bench.run([HashFile(self.lake.place, entry, JOB_HASH) for entry in found])

    def _unfinished(self, ended: Any, candidates: list[FileEntry], held: list[Any]) -> Any:
        """Jobs that have ended but whose row does not say so, because the record is lost or seems too old."""
        files = _holding(ended, candidates, held)
        tasks = [HashFile(self.lake.place, entry, JOB_HASH, "NOT final") for entry in files]
        return ended[hashsets.is_in(ended, _union(self.bench.run(tasks)))]

    def _merged(self, touched: Sequence[FileEntry], several: Any, skipped: Any) -> list[FileEntry]:
        rows = sum(entry.rows for entry in [*touched, *self.files])
        shards = max(-(-rows // PER_MERGE), 1)
        return self.bench.run_writers(
            [
                MergeSnapshot(self.lake.place, self.files, touched, several, skipped, shard, shards)
                for shard in range(shards)
            ]
        )


def _union(parts: Sequence[Any]) -> Any:
    """The distinct hashes of all parts."""
    import numpy as np

    return hashsets.unique(np.concatenate([*parts, np.array([], np.uint64)]))


def _holding(jobs: Any, entries: Sequence[FileEntry], held: Sequence[Any]) -> list[FileEntry]:
    """Files that hold at least one of the jobs."""
    return [entry for entry, found in zip(entries, held, strict=True) if hashsets.have_common(jobs, found)]


def _shares(url: str) -> list[list[JobsOf]]:
    """What each task lists: all of a small store, or one state of one queue."""
    with ask_many(url) as ask:
        count = sum(sum(info.counts.values()) for info in ask(rq.ListQueues()))
    parts = JobsReader(ReadOptions(url, table="jobs")).parts()
    return [parts] if count <= LARGE else [[part] for part in parts]
