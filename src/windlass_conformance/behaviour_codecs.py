"""Codecs: an app reads only codecs that it accepts, and sealed bytes open only for their own job.

The attacker in these tests can write any record to the store but has no key.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from windlass import ConfigError, Job, JobState, Unique, Windlass
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import new_id
from windlass.core.job import NewJob
from windlass.errors import SignatureError
from windlass.handlers.hooks import Outgoing
from windlass.jobs import AddOutcome
from windlass.serde import Codec
from windlass.serde.encrypted import EncryptedCodec
from windlass.serde.signed import SignedCodec
from windlass_conformance import targets
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import QUEUE, Stage, eventually

_SECRETS = {"k2": b"the second secret of the suite!!", "k1": b"the first secret of the suite!!!"}
_AES = {key_id: base64.urlsafe_b64encode(secret[:32]) for key_id, secret in _SECRETS.items()}
_DAY = 86_400
Make = Callable[[], Codec]
_SEALED = [
    pytest.param(lambda: SignedCodec(_SECRETS), id="signed"),
    pytest.param(lambda: EncryptedCodec(_AES), id="encrypted"),
]
sealed = pytest.mark.parametrize("make", _SEALED)


async def _smuggle(stage: Stage, new: NewJob, **fields: Any) -> Job[Any]:
    """Write a job as an attacker with access to the store can, with any fields."""
    made = msgspec.structs.replace(new, **{"id": new_id(), "request_id": new_id(), **fields})
    await stage.app.store.execute(rq.Add(jobs=[made]))
    job = await stage.app.queue(made.queue).get_job(made.id)
    assert job is not None
    return job


async def _refused(stage: Stage, job: Job[Any], words: str) -> None:
    """Assert that the job ends as ``failed: bad_payload`` without an attempt, with its bytes and a reason."""
    before = job.record.payload
    await stage.until_state(job, JobState.FAILED)
    await job.refresh()
    assert (job.record.reason, job.record.payload) == ("bad_payload", before)
    assert words in job.errors[-1].message
    with pytest.raises((SignatureError, ConfigError)):
        _ = job.data


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
        assert record.payload.startswith(b"wl-s2.k2.")
        assert (record.result or b"").startswith(b"wl-s2.k2.")


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
        await job.refresh()
        await stage.work(lambda job: ran.append(job.id))
        good = await stage.queue.add("pay", {"amount": 11})
        await _refused(stage, job, "its signature is wrong")
        await stage.until_state(good, JobState.COMPLETED)
        assert ran == [good.id]
        assert job.record.payload == forged
        assert [job_id for job_id, message in heard if "signature is wrong" in message] == [job.id]


@sealed
@pytest.mark.feature("W5")
async def test_a_worker_with_keys_refuses_what_is_not_sealed_for_that_very_job(
    harness: Harness, make: Make
) -> None:
    async with Stage(harness, codec=make()) as stage:
        ran: list[str] = []
        first = await stage.queue.add("pay", {"amount": 10})
        new = stage.queue.prepare("pay", {"amount": 10})
        new.payload = first.record.payload
        plain = Windlass("memory://").queue(QUEUE).prepare("pay", {"amount": 1_000})
        bad = [
            (await _smuggle(stage, plain), "is not accepted by this app"),  # not signed at all
            (await _smuggle(stage, plain, codec=new.codec), "not signed or encrypted"),
            (await _smuggle(stage, new), "for another job"),  # used again
            (await _smuggle(stage, new, task="refund"), "for another job"),  # under another task
            (await _smuggle(stage, new, queue="other"), "for another job"),  # in another queue
            (await _smuggle(stage, new, codec="msgpack"), "is not accepted by this app"),
            (await _smuggle(stage, new, codec="no-such-codec"), "is not accepted by this app"),
        ]
        await stage.work(lambda job: ran.append(job.id), queues=[QUEUE, "other"])
        last = await stage.queue.add("pay", {"amount": 11})
        for job, words in bad:
            await _refused(stage, job, words)
        await stage.until_state(first, JobState.COMPLETED)
        await stage.until_state(last, JobState.COMPLETED)
        assert sorted(ran) == sorted([first.id, last.id])


@sealed
@pytest.mark.feature("W5")
async def test_a_job_of_another_key_is_refused(harness: Harness, make: Make) -> None:
    async with Stage(harness, codec=make()) as stage:
        other = b"a secret that is not the suite's"
        strange: Codec = (
            SignedCodec({"k2": other})
            if isinstance(make(), SignedCodec)
            else EncryptedCodec({"k2": base64.urlsafe_b64encode(other)})
        )
        forged = Windlass("memory://", codec=strange).queue(QUEUE).prepare("pay", {"amount": 1})
        job = await _smuggle(stage, forged, id=forged.id)
        await stage.work(lambda job: None)
        await _refused(stage, job, "another")


@pytest.mark.feature("W5")
async def test_an_app_without_keys_reads_its_four_plain_codecs_and_no_other(harness: Harness) -> None:
    async with Stage(harness) as stage:
        jobs = []
        for name in ("json", "msgpack", "json+zlib", "msgpack+zlib"):
            new = (
                Windlass("memory://", codec=name)
                .queue(QUEUE)
                .prepare("note", {"codec": name, "x": "a" * 5_000})
            )
            jobs.append(await _smuggle(stage, new))
        signed = Windlass("memory://", codec=SignedCodec(_SECRETS)).queue(QUEUE).prepare("note", 1)
        job = await _smuggle(stage, signed, id=signed.id)
        seen: list[str] = []
        await stage.work(lambda job: seen.append(job.data["codec"]))
        await _refused(stage, job, "is not accepted by this app")
        for each in jobs:
            await stage.until_state(each, JobState.COMPLETED)
        assert sorted(seen) == ["json", "json+zlib", "msgpack", "msgpack+zlib"]


@sealed
@pytest.mark.feature("W5")
async def test_codecs_that_accept_lists_are_read_as_well(harness: Harness, make: Make) -> None:
    async with Stage(harness, codec=make(), accept=["json"]) as stage:
        plain = Windlass("memory://").queue(QUEUE).prepare("note", {"from": "another language"})
        packed = Windlass("memory://", codec="msgpack").queue(QUEUE).prepare("note", 1)
        job, bad = await _smuggle(stage, plain), await _smuggle(stage, packed)

        async def handler(job: Job[Any]) -> Any:
            return job.data["from"]

        await stage.work(handler)
        assert await job.result() == "another language"
        await _refused(stage, bad, "is not accepted by this app")


@pytest.mark.feature("W5")
async def test_jobs_that_were_signed_with_the_old_key_run_after_the_change(harness: Harness) -> None:
    async with Stage(harness, codec=SignedCodec(_SECRETS)) as stage:
        before = Windlass("memory://", codec=SignedCodec({"k1": _SECRETS["k1"]})).queue(QUEUE)
        old = before.prepare("pay", {"amount": 10})
        assert old.payload.startswith(b"wl-s2.k1.")
        job = await _smuggle(stage, old, id=old.id)

        async def handler(job: Job[Any]) -> Any:
            return job.data["amount"]

        await stage.work(handler)
        assert await job.result() == 10


@pytest.mark.feature("W5")
async def test_signatures_of_older_releases_are_read_until_the_date_that_was_set(harness: Harness) -> None:
    body = b'{"kwargs":{"amount":10},"form":"object"}'  # the release before signed key id and data only
    signature = hmac.new(_SECRETS["k2"], b"wl-s1.k2." + body, "sha256").hexdigest().encode()
    old_form = b"wl-s1.k2." + signature + b"." + body
    tomorrow, yesterday = (
        datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000 + d, UTC) for d in (_DAY, -_DAY)
    )
    for until, accepted in ((tomorrow, True), (yesterday, False), (None, False)):
        codec = SignedCodec(_SECRETS, accept_unbound_until=until)
        async with Stage(harness, codec=codec) as stage:
            new = stage.queue.prepare("pay", None)
            job = await _smuggle(stage, new, payload=old_form)
            await stage.work(lambda job: None)
            if accepted:
                await stage.until_state(job, JobState.COMPLETED)
            else:
                await _refused(stage, job, "accept_unbound_until")


@sealed
@pytest.mark.feature("W5")
async def test_sealed_jobs_can_be_changed_retried_and_report(harness: Harness, make: Make) -> None:
    async with Stage(harness, codec=make()) as stage:

        async def handler(job: Job[Any]) -> Any:
            await job.update_progress({"done": job.data["amount"]})
            return job.data["amount"]

        job = await stage.queue.add("pay", {"amount": 1}, delay=60)
        await job.update_data({"amount": 2})
        assert (await job.refresh()).data == {"amount": 2}
        await job.promote()
        await stage.work(handler)
        assert await job.result() == 2
        await job.refresh()
        assert (job.progress, job.return_value) == ({"done": 2}, 2)
        await job.retry()
        await stage.until_state(job, JobState.COMPLETED)
        assert await stage.queue.get_result(job.id) == 2


@sealed
@pytest.mark.feature("W5")
async def test_a_result_that_was_moved_to_another_job_is_refused(harness: Harness, make: Make) -> None:
    async with Stage(harness, codec=make()) as stage:

        async def handler(job: Job[Any]) -> Any:
            return job.data

        await stage.work(handler)
        first, second = await stage.queue.add("pay", 1), await stage.queue.add("pay", 2)
        assert (await first.result(), await second.result()) == (1, 2)
        moved = (await second.refresh()).record
        moved.result = (await first.refresh()).record.result
        with pytest.raises(SignatureError):
            _ = Job(stage.queue, moved).return_value


@needs("unique")
@sealed
@pytest.mark.feature("W5")
async def test_sealed_data_that_replaces_that_of_a_pending_job_is_read(harness: Harness, make: Make) -> None:
    async with Stage(harness, codec=make()) as stage:
        seen: list[Any] = []
        debounce, last = Unique("once", mode="debounce", ttl=5), Unique("once", mode="keep_last")
        for before, after, delay in ((debounce, debounce, 0), (last, last, 5), (Unique("once"), last, 5)):
            first = await stage.queue.add("sync", "first", unique=before, delay=delay)
            second = await stage.queue.add("sync", "second", unique=after, delay=delay)
            assert (second.outcome, second.id) == (AddOutcome.REPLACED, first.id)
            assert (await first.refresh()).data == "second"
            worker = await stage.work(lambda job: seen.append(job.data))
            await stage.advance(6)
            await stage.until_state(first, JobState.COMPLETED)
            await worker.close()
        assert seen == ["second"] * 3


@needs("unique")
@sealed
@pytest.mark.feature("W5")
async def test_sealed_data_of_one_unique_key_is_refused_under_another(harness: Harness, make: Make) -> None:
    async with Stage(harness, codec=make()) as stage:
        new = stage.queue.prepare("sync", 1, unique=Unique("one", mode="keep_last"))
        other = stage.queue.prepare("sync", 1, unique=Unique("two", mode="keep_last"))
        job = await _smuggle(stage, other, payload=new.payload)
        await stage.work(lambda job: None)
        await _refused(stage, job, "for another job")


@needs("schedules")
@sealed
@pytest.mark.feature("W5")
async def test_jobs_of_a_schedule_run_and_its_data_stays_with_it(harness: Harness, make: Make) -> None:
    async with Stage(harness, codec=make()) as stage:
        seen: list[Any] = []
        await stage.work(lambda job: seen.append(job.data), duties=True)
        info = await stage.queue.upsert_job_scheduler("tick", {"every": 10}, {"data": {"n": 1}})
        assert info.data == {"n": 1}
        by_hand = await stage.queue.run_job_scheduler("tick")
        await stage.until_state(by_hand, JobState.COMPLETED)
        await stage.advance(10.5)
        await eventually(lambda: len(seen) == 2)  # the handler runs in a thread, which no clock drives
        assert seen == [{"n": 1}, {"n": 1}]
        template = info.record.template
        bad = await _smuggle(stage, template)  # as an ordinary job
        await _refused(stage, bad, "for another job")


@needs("schedules")
@sealed
@pytest.mark.feature("W5")
async def test_a_schedule_that_was_written_without_the_key_makes_jobs_that_are_refused(
    harness: Harness, make: Make
) -> None:
    async with Stage(harness, codec=make()) as stage:
        ran: list[str] = []
        await stage.work(lambda job: ran.append(job.id), duties=True)
        forged = Windlass("memory://", clock=stage.clock)
        forged.store = stage.app.store
        await forged.queue(QUEUE).upsert_job_scheduler("tick", {"every": 10}, {"data": {"n": 1}})
        await stage.advance(10.5)
        (job,) = await stage.queue.get_jobs()
        await _refused(stage, job, "is not accepted by this app")
        assert ran == []


@needs("signals")
@sealed
@pytest.mark.feature("W5")
async def test_signals_and_arguments_reach_a_child_process_that_has_no_key(
    harness: Harness, make: Make
) -> None:
    async with Stage(harness, codec=make()) as stage:
        ask = stage.app.task(queue=QUEUE, isolation="process")(targets.ask)
        await stage.work(process_slots=1)
        job = await ask.enqueue()
        await stage.until_state(job, JobState.SUSPENDED)
        await stage.queue.signal(job.id, "yes", 7)
        assert await job.result() == "received 7"
        double = stage.app.task(queue=QUEUE, isolation="process")(targets.double)
        assert await (await double.enqueue(21)).result() == 42


@needs("signals")
@sealed
@pytest.mark.feature("W5")
async def test_a_sealed_signal_reaches_a_child_process_that_runs_a_foreign_job(
    harness: Harness, make: Make
) -> None:
    async with Stage(harness, codec=make(), accept=["json"]) as stage:
        ask = stage.app.task(queue=QUEUE, isolation="process")(targets.ask)
        job = await _smuggle(stage, Windlass("memory://").queue(QUEUE).prepare(ask.name))
        await stage.work(process_slots=1)
        await stage.until_state(job, JobState.SUSPENDED)
        await stage.queue.signal(job.id, "yes", 7)
        assert await job.result() == "received 7"


@needs("signals")
@sealed
@pytest.mark.feature("W5")
async def test_a_signal_without_a_seal_is_refused(harness: Harness, make: Make) -> None:
    async with Stage(harness, codec=make()) as stage:
        job = await stage.queue.add("pay", 1, delay=60)
        await stage.app.store.execute(fl.Signal(ref=job.ref, name="go", data=b"1", codec="json"))
        with pytest.raises(ConfigError, match="accept"):
            _ = (await job.refresh()).signals


@needs("streams")
@sealed
@pytest.mark.feature("W5")
async def test_sealed_chunks_are_read_by_holders_of_the_key(harness: Harness, make: Make) -> None:
    async with Stage(harness, codec=make()) as stage:

        async def talk(job: Job[Any]) -> None:
            await job.stream("a", {"b": 1})

        job = await stage.queue.add("n")
        await stage.work(talk)
        await job.result()
        assert [chunk.value async for chunk in stage.queue.read_stream(job.id)] == ["a", {"b": 1}]


@needs("flows")
@sealed
@pytest.mark.feature("W5")
async def test_a_parent_reads_the_sealed_results_of_its_children(harness: Harness, make: Make) -> None:
    async with Stage(harness, codec=make()) as stage:

        async def handler(job: Job[Any]) -> Any:
            if job.name == "sum":
                return sum((await job.get_children_values()).values())
            return job.data

        children = [{"name": "part", "queue": QUEUE, "data": n} for n in (1, 2)]
        parent = await stage.queue.add("sum", children=children)
        await stage.work(handler)
        assert await parent.result() == 3


@sealed
@pytest.mark.feature("W5")
async def test_a_hook_that_gives_a_job_another_name_does_not_break_its_seal(
    harness: Harness, make: Make
) -> None:
    async with Stage(harness, codec=make()) as stage:

        @stage.app.around_enqueue
        def rename(outgoing: Outgoing) -> Any:
            for new in outgoing.jobs:
                new.task = "renamed"
            yield

        async def handler(job: Job[Any]) -> Any:
            return [job.name, job.data]

        await stage.work(handler)
        job = await stage.queue.add("pay", {"amount": 1})
        assert await job.result() == ["renamed", {"amount": 1}]
