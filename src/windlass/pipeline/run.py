"""``windlass pipeline run``: batches from a store to a lake, once or continuously.

The lake's own offsets say where to continue; Spark's checkpoints are not used. The run registers with the
store as an archiver, so that the store keeps its log until the records are in the lake.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from windlass.backend import requests as rq
from windlass.backend.protocol import Backend
from windlass.core.masks import DEFAULT_MASK
from windlass.core.probe import reach
from windlass.errors import ConfigError, StorageError
from windlass.pipeline.job_snapshot import Snapshot, is_due, take_snapshot
from windlass.pipeline.lake import Lake, LakeTakenError
from windlass.pipeline.lake_batch import BatchResult, OnGap, finish_batches, plan_batch, run_batch
from windlass.pipeline.payloads import PAYLOAD_BYTES, Payloads
from windlass.pipeline.source import Positions
from windlass.pipeline.status import note_failure
from windlass.pipeline.store_requests import absolute_url, with_store

_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,63}\Z")

Progress = Callable[[BatchResult], None]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The store, the lake and the size of batches."""

    url: str = field(repr=False)
    lake: str
    #: Name of this store in the lake. Stores that fill the same lake need different names.
    source: str = "default"
    #: Maximum number of records in a batch. Bounds the memory, and the work that a crash repeats.
    max_records: int = 1_000_000
    #: What to do if the log was trimmed past our offset: ``fail``, or ``skip`` and write a gap row.
    on_gap: OnGap = "fail"
    #: Seconds between reads of the log in a continuous run.
    interval: float = 10.0
    #: Once a day, also list the store's jobs, including jobs without a record in the log.
    snapshot: bool = True
    #: Keep arguments and results, with the values of these names masked and up to a size.
    payloads: bool = False
    mask: tuple[str, ...] = DEFAULT_MASK
    payload_bytes: int = PAYLOAD_BYTES

    def __post_init__(self) -> None:
        if not _SOURCE.match(self.source):
            raise ConfigError("source", "1 to 64 letters, digits or underscores", self.source)
        if self.max_records < 1:
            raise ConfigError("max_records", "at least 1", self.max_records)
        if self.on_gap not in ("fail", "skip"):
            raise ConfigError("on_gap", "fail or skip", self.on_gap)
        if self.payload_bytes < 1:
            raise ConfigError("payload_bytes", "at least 1", self.payload_bytes)

    @property
    def kept_payloads(self) -> Payloads | None:
        """Which parts of arguments and results to keep; None: nothing."""
        return Payloads(self.mask, self.payload_bytes) if self.payloads else None


class Pipeline:
    """A lake opened for writing, and the store that fills it."""

    def __init__(self, spark: SparkSession, options: RunOptions) -> None:
        self.spark = spark
        self.options = options
        self.url = absolute_url(options.url)
        self.lake = Lake(options.lake)
        #: The time of the last request to the store, by the store's clock.
        self._now_ms = 0

    def open(self) -> None:
        """Finish the batches of earlier runs, and register with the store as an archiver."""
        self.lake.create()
        finish_batches(self.spark, self.lake)
        self._archive()

    @property
    def archiver(self) -> str:
        """The archiver name of this lake in the store."""
        return self.lake.archiver

    @property
    def done(self) -> Positions:
        """How far this source has been read into the lake."""
        return self.lake.offsets().get(self.options.source, {})

    def run_batch(self) -> BatchResult | None:
        """Run the next batch; None if there are no new records. The lake notes the reason of a failure."""
        with self._reported():
            return self._run_batch()

    def take_snapshot(self) -> Snapshot:
        """List the jobs of the store now, even if that was done today."""
        with self._reported():
            options, now_ms = self.options, self._archive()
            kept = options.kept_payloads
            return take_snapshot(self.spark, self.lake, self.url, options.source, now_ms, kept)

    def take_daily_snapshot(self) -> Snapshot | None:
        """List the jobs of the store, unless that was done today or is disabled.

        Also returns None if other runs committed first each time; the next call tries again.
        """
        options = self.options
        if not options.snapshot or not is_due(self.lake, options.source, self._now_ms):
            return None
        try:
            return self.take_snapshot()
        except LakeTakenError:
            return None

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except LakeTakenError:
            raise  # the other run continues and reports for both
        except Exception as exc:
            with suppress(StorageError):
                note_failure(self.lake, self.options.source, exc)
            raise

    def _run_batch(self) -> BatchResult | None:
        plan = plan_batch(self.url, self.done, self.options.max_records, self.options.on_gap)
        if not plan.records and not plan.gaps:
            return None
        options = self.options
        result = run_batch(self.spark, self.lake, self.url, options.source, plan, options.kept_payloads)
        reach("pipeline.committed")
        self._archive()
        return result

    def run_once(self, progress: Progress = lambda result: None) -> list[BatchResult]:
        """Run batches until all records that exist now are in the lake."""
        results = []
        while (result := self.run_batch()) is not None:
            results.append(result)
            progress(result)
            if not result.behind:
                break
        self.take_daily_snapshot()
        return results

    def run_continuously(self, stop: threading.Event, progress: Progress = lambda result: None) -> None:
        """Run batches until ``stop`` is set; reads the log every ``interval``."""
        while not stop.is_set():
            result = self.run_batch()
            if result is not None:
                progress(result)
            if result is None or not result.behind:
                if result is None:
                    self._archive()  # so that the store keeps an idle lake registered
                self.take_daily_snapshot()
                stop.wait(self.options.interval)

    def _archive(self) -> int:
        """Report to the store how far the lake has read; returns the store's time."""
        name, cursors = self.archiver, self.done

        async def say(backend: Backend) -> int:
            await backend.execute(rq.Archive(name=name, cursors=cursors))
            known = await backend.execute(rq.ListArchivers())
            return next(info.seen_ms for info in known if info.name == name)

        self._now_ms = with_store(self.url, say)
        return self._now_ms
