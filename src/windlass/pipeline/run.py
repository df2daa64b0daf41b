"""``windlass pipeline run``: batches from a store to a lake, once or forever.

The lake's own offsets say where to continue; Spark's checkpoints play no part. The run registers itself with
the store as an archiver, so that the log is held until its records are safely in the lake.
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
from windlass.pipeline.batch import BatchResult, OnGap, finish_batches, plan_batch, run_batch
from windlass.pipeline.lake import Lake, LakeTakenError
from windlass.pipeline.payloads import PAYLOAD_BYTES, Payloads
from windlass.pipeline.snapshot import Snapshot, is_due, take_snapshot
from windlass.pipeline.source import Positions
from windlass.pipeline.status import note_failure
from windlass.pipeline.store import settled_url, visit

_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,63}\Z")

Progress = Callable[[BatchResult], None]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where from, where to, how much at a time."""

    url: str = field(repr=False)
    lake: str
    #: Name of this store within the lake: stores that fill one lake need different ones.
    source: str = "default"
    #: Records per batch: bounds the memory and what a crash repeats.
    max_records: int = 1_000_000
    #: What to do when the log was trimmed past our offset: ``fail``, or ``skip`` and write a gap row.
    on_gap: OnGap = "fail"
    #: Seconds between looks at the log in a continuous run.
    interval: float = 10.0
    #: Once a day, list the store's jobs too, also those that left no record yet.
    snapshot: bool = True
    #: Keep arguments and results, without the values of these names and up to a size.
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
        """What is kept of arguments and results; None: nothing."""
        return Payloads(self.mask, self.payload_bytes) if self.payloads else None


class Pipeline:
    """A lake opened for writing, and the store that fills it."""

    def __init__(self, spark: SparkSession, options: RunOptions) -> None:
        self.spark = spark
        self.options = options
        self.url = settled_url(options.url)
        self.lake = Lake(options.lake)
        #: When the store was last asked, by its own clock.
        self._now_ms = 0

    def open(self) -> None:
        """Finish what an earlier run left, and register with the store as an archiver."""
        self.lake.create()
        finish_batches(self.spark, self.lake)
        self._archive()

    @property
    def archiver(self) -> str:
        """The name under which the store knows this lake."""
        return self.lake.archiver

    @property
    def done(self) -> Positions:
        """How far the lake has read this source."""
        return self.lake.offsets().get(self.options.source, {})

    def run_batch(self) -> BatchResult | None:
        """The next batch; None when there is nothing new. Why it fails is left in the lake."""
        with self._reported():
            return self._run_batch()

    def take_snapshot(self) -> Snapshot:
        """List the jobs of the store now, whenever the last time was."""
        with self._reported():
            options, now_ms = self.options, self._archive()
            kept = options.kept_payloads
            return take_snapshot(self.spark, self.lake, self.url, options.source, now_ms, kept)

    def take_daily_snapshot(self) -> Snapshot | None:
        """List the jobs of the store, unless that was done today or is not wanted.

        None also when other runs always committed first: the next look tries again.
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
        """Batches until everything that was there is in the lake."""
        results = []
        while (result := self.run_batch()) is not None:
            results.append(result)
            progress(result)
            if not result.behind:
                break
        self.take_daily_snapshot()
        return results

    def run_continuously(self, stop: threading.Event, progress: Progress = lambda result: None) -> None:
        """Batches until ``stop`` is set, looking for new records every ``interval``."""
        while not stop.is_set():
            result = self.run_batch()
            if result is not None:
                progress(result)
            if result is None or not result.behind:
                if result is None:
                    self._archive()  # an idle lake must not be forgotten by the store
                self.take_daily_snapshot()
                stop.wait(self.options.interval)

    def _archive(self) -> int:
        """Say how far the lake has read; returns the time by the clock of the store."""
        name, cursors = self.archiver, self.done

        async def say(backend: Backend) -> int:
            await backend.execute(rq.Archive(name=name, cursors=cursors))
            known = await backend.execute(rq.ListArchivers())
            return next(info.seen_ms for info in known if info.name == name)

        self._now_ms = visit(self.url, say)
        return self._now_ms
