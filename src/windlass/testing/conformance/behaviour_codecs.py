"""Signed payloads through a queue: a job whose bytes were touched fails with them, once."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import Job, JobState, SignatureError, register_codec
from windlass.backend import requests as rq
from windlass.serde.signed import SignedCodec
from windlass.testing.conformance.harness import Harness
from windlass.testing.conformance.stage import Stage

_SECRETS = {"k2": b"the second secret of the suite", "k1": b"the first secret of the suite"}


@pytest.mark.feature("W5", "W1")
async def test_a_signed_payload_and_its_result_make_the_round(harness: Harness) -> None:
    async with Stage(harness, codec=SignedCodec(_SECRETS)) as stage:

        async def handler(job: Job[Any]) -> Any:
            return {"paid": job.data["amount"]}

        await stage.work(handler)
        job = await stage.queue.add("pay", {"amount": 10})
        assert await job.result() == {"paid": 10}
        record = (await job.refresh()).record
        assert record.codec == "json+signed"
        assert record.payload.startswith(b"wl-s1.k2.")
        assert (record.result or b"").startswith(b"wl-s1.k2.")


@pytest.mark.feature("W5")
async def test_a_payload_that_was_touched_fails_its_job_and_keeps_its_bytes(harness: Harness) -> None:
    async with Stage(harness, codec=SignedCodec(_SECRETS)) as stage:
        ran: list[str] = []
        heard: list[tuple[str, str]] = []

        @stage.app.on_error
        def track(job: Job[Any], error: BaseException, final: bool) -> None:
            heard.append((job.id, str(error)))

        job = await stage.queue.add("pay", {"amount": 10})
        forged = job.record.payload.replace(b"10", b"99")
        await stage.app.store.execute(rq.ChangeJob(ref=job.ref, payload=forged))
        await stage.work(lambda job: ran.append(job.id))
        good = await stage.queue.add("pay", {"amount": 11})
        await stage.until_state(job, JobState.FAILED)
        await stage.until_state(good, JobState.COMPLETED)
        assert ran == [good.id]
        await job.refresh()
        assert (job.record.payload, job.record.reason) == (forged, "bad_payload")
        assert "its signature is wrong" in job.errors[-1].message
        assert [job_id for job_id, message in heard if "signature is wrong" in message] == [job.id]
        with pytest.raises(SignatureError):
            _ = job.data


@pytest.mark.feature("W5")
async def test_jobs_that_were_signed_with_the_old_key_run_after_the_change(harness: Harness) -> None:
    old = SignedCodec({"k1": _SECRETS["k1"]})
    async with Stage(harness, codec=old) as stage:
        job = await stage.queue.add("pay", {"amount": 10})
        assert job.record.payload.startswith(b"wl-s1.k1.")
        register_codec(SignedCodec(_SECRETS))  # what the new deploy does

        async def handler(job: Job[Any]) -> Any:
            return job.data["amount"]

        await stage.work(handler)
        assert await job.result() == 10
