"""Changing one job of a queue, and pausing the queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from windlass.api.queue_context import QueueContext
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backend.store import check_changed
from windlass.core.ids import check_signal_name
from windlass.core.option_values import check_flag, seconds_to_ms
from windlass.core.outcome import CancelResult, to_reason


class ChangeVerbs(QueueContext):
    """The part of ``Queue`` that changes one job, or the queue itself. ``bulk`` changes many jobs."""

    async def cancel(self, job_id: str, reason: str = "") -> CancelResult:
        """Cancel a job. Returns ``cancelled``, ``cancelling`` (its worker stops it), ``finished`` or
        ``not_found``.
        """
        refs = [self._ref(job_id)]
        return (await self.store.execute(rq.CancelJobs(refs=refs, reason=to_reason(reason))))[0]

    async def kill(self, job_id: str, reason: str = "killed") -> CancelResult:
        """Fail a job that waits for a retry, without another attempt. It can be retried by hand.

        Any other job is cancelled, with the answers of ``cancel``.
        """
        refs = [self._ref(job_id)]
        return (await self.store.execute(rq.CancelJobs(refs=refs, reason=to_reason(reason), dead=True)))[0]

    async def revoke(self, job_id: str, reason: str = "") -> CancelResult:
        """Alias of ``cancel``."""
        return await self.cancel(job_id, reason)

    async def remove(self, job_id: str, *, force: bool = False) -> None:
        """Delete a job's record. Raises ``IllegalTransitionError`` for an active job unless ``force``."""
        check_flag("force", force)
        ref = self._ref(job_id)
        result = (await self.store.execute(rq.RemoveJobs(refs=[ref], force=force)))[0]
        check_changed(ref, result, "remove", "cancel it, or force")

    async def retry(self, job_id: str) -> None:
        """Run a finished job again with all its attempts, or make a retrying job ready now."""
        ref = self._ref(job_id)
        result = (await self.store.execute(rq.RetryJobs(refs=[ref])))[0]
        check_changed(ref, result, "retry", "only finished or retrying jobs can be retried")

    async def update_result_ttl(self, job_id: str, ttl: float | timedelta) -> None:
        """Keep a completed job's result, or a failed job and its errors, for ``ttl`` from now.

        A failed job is removed after that time, but not within a minute. Otherwise ``keep_failed`` decides.
        """
        ref = self._ref(job_id)
        request = rq.SetResultTtl(ref=ref, ttl_ms=seconds_to_ms(ttl, "ttl"))
        check_changed(
            ref,
            await self.store.execute(request),
            "keep the result of",
            "only completed and failed jobs have one",
        )

    async def signal(self, job_id: str, name: str, data: Any = None) -> None:
        """Send a signal to a job. A job that is suspended on ``name`` runs again, with ``job.signals[name]``.

        A signal that comes before the suspension is kept. Raises ``IllegalTransitionError`` for a finished
        job.
        """
        check_signal_name(name)
        ref, codecs = self._ref(job_id), self.app.codecs
        value = codecs.write_signal(ref, name, data, self.app.max_payload_bytes)
        request = fl.Signal(ref=ref, name=name, data=value, codec=codecs.own.name)
        result = await self.store.execute(request)
        check_changed(ref, result, "signal", "it has ended")

    async def pause(self) -> None:
        """Stop starting jobs of this queue, on all workers. Running jobs continue."""
        await self.store.execute(rq.PauseQueue(queue=self.name, paused=True))

    async def resume(self) -> None:
        """Start jobs of this queue again after ``pause``."""
        await self.store.execute(rq.PauseQueue(queue=self.name, paused=False))

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""
        queues = await self.store.execute(rq.ListQueues())
        return any(info.name == self.name and info.paused for info in queues)
