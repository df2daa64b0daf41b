"""One deliberate defect for each special path (``windlass.core.paths``), which the suite must notice.

A path that is taken is not yet a path that is checked. ``python -m tools.path_mutants`` runs a few tests of
the suite for each of these, once as the code is and once with the defect: the first run must pass and take
the path, the second must fail. pytest loads this module as a plugin; ``$WINDLASS_PATH_MUTANT`` names it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from windlass.core.paths import PATHS

_LOCAL = "tests/backends/test_variants.py"
_LOCAL_WHOLE = "tests/backends/test_conformance.py"
_VALKEY = "tests/backends/valkey/test_variants_valkey.py"
_VALKEY_WHOLE = "tests/backends/valkey/test_conformance_valkey.py"
_AMQP = "tests/backends/amqp/test_variants_amqp.py"
_AMQP_WHOLE = "tests/backends/amqp/test_conformance_amqp.py"


#: Tests with an idle worker on the machine's clock.
_IDLE = "found_nothing_is_told_of_the_next or one_by_one_to_an_idle"


class Mutant(NamedTuple):
    """A defect, and where it must be noticed: a test file and an expression for ``pytest -k``."""

    what: str
    apply: Callable[[], None]
    file: str
    select: str


#: By path, or by ``path@store`` for one more store that has the path.
MUTANTS: dict[str, Mutant] = {}


def _mutant(
    name: str, what: str, file: str, select: str
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def enter(apply: Callable[[], None]) -> Callable[[], None]:
        MUTANTS[name] = Mutant(what, apply, file, select)
        return apply

    return enter


def path_of(name: str) -> str:
    """The path that a mutant breaks."""
    return name.partition("@")[0]


def pytest_configure() -> None:
    """Break this process, and those that pytest-xdist starts, by the mutant that is named."""
    name = os.environ.get("WINDLASS_PATH_MUTANT", "")
    if name:
        MUTANTS[name].apply()


def _put(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute that must be there, for as long as this process lives."""
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, value)


def _changed(struct: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(struct, **fields)


# --- sqlite ---------------------------------------------------------------------------------------------


@_mutant("sqlite.add_rows", "every job gets the default priority", _LOCAL, "sqlite-own-plain and priorities")
def _sqlite_add_rows() -> None:
    from windlass.backends.sqlite import rows, writing

    whole = rows.plain_row
    _put(writing, "plain_row", lambda job, *more: whole(_changed(job, priority=0), *more))


@_mutant(
    "sqlite.adds_together", "callers get each other's replies", _LOCAL, "sqlite and together and repeated"
)
def _sqlite_adds_together() -> None:
    _swap_joined_answers()


def _swap_joined_answers() -> None:
    from windlass.backend.local import joined_adds

    whole = joined_adds.split_answers

    def swap(calls: list[Any], added: list[Any]) -> Any:
        answers = whole(calls, added)
        values = [value for _, value, _ in answers[-1:] + answers[:-1]]
        return [(call, value, error) for (call, _, error), value in zip(answers, values, strict=True)]

    _put(joined_adds, "split_answers", swap)


@_mutant("sqlite.complete", "results are not stored", _LOCAL, "sqlite-own-plain] and (result or complete)")
def _sqlite_complete() -> None:
    from windlass.backends.sqlite import writing
    from windlass.engine.effects import Kind

    whole = writing._WRITERS[Kind.COMPLETED]
    writing._WRITERS[Kind.COMPLETED] = lambda step, jobs: whole(
        step, [_changed(job, result=None) for job in jobs]
    )


@_mutant("sqlite.lease_first", "the job id is used as the task name", _LOCAL, "sqlite-own-plain] and claimed")
def _sqlite_lease_first() -> None:
    from windlass.backends.sqlite.ordered import StoredWaitingJobs

    whole = StoredWaitingJobs._job

    def confused(self: Any, row: Any, models: Any) -> Any:
        job = whole(self, row, models)
        if job is not None:
            job.task = job.id
        return job

    _put(StoredWaitingJobs, "_job", confused)


# --- file -----------------------------------------------------------------------------------------------


@_mutant("file.adds_together", "callers get each other's replies", _LOCAL, "file and together and repeated")
def _file_adds_together() -> None:
    _swap_joined_answers()


# --- amqp -----------------------------------------------------------------------------------------------


@_mutant("amqp.add_plain", "delays are ignored", _AMQP_WHOLE, "delayed_job or delay")
def _amqp_add_plain() -> None:
    from windlass.backends.amqp import backend

    _put(backend, "_is_plain", lambda new, now_ms: backend._FRESH_ID.match(new.id) is not None)


@_mutant("amqp.adds_together", "only the first add is published", _AMQP_WHOLE, "many_callers")
def _amqp_adds_together() -> None:
    from windlass.backends.amqp.plain_adds import PlainAdds

    whole = PlainAdds._publish

    def publish(self: Any, request: Any, adds: list[Any]) -> Any:
        for add in adds[1:]:
            add.confirmed.set(None)
        return whole(self, adds[0].request, adds[:1])

    _put(PlainAdds, "_publish", publish)


@_mutant("amqp.idle_consumer", "pushed messages are dropped", _AMQP_WHOLE, _IDLE)
def _amqp_bell() -> None:
    from windlass.backends.amqp.intake import Intake

    _put(Intake, "_on_idle_message", lambda self, queue, delivery: self._client.ack([delivery.tag]))


@_mutant("amqp.complete", "an expired lease is accepted", _AMQP, "lost or late or lease")
def _amqp_complete() -> None:
    from windlass.backends.amqp.consumer import Consumer

    _put(Consumer, "_surely_holds", lambda self, end, now_ms: self._holding(end) is not None)


@_mutant("amqp.offered", "an offered job never starts", _AMQP_WHOLE, _IDLE)
def _amqp_offered() -> None:
    from windlass.backends.amqp.offers import WorkerListener

    _put(WorkerListener, "_deliver_offer", lambda self, offer: offer.answered(offer.take()))


@_mutant(
    "amqp.on_caller", "what is sent on the caller's thread is lost", _AMQP_WHOLE, "test_add_answers_queued"
)
def _amqp_on_caller() -> None:
    from windlass.speedups.amqp import QuickConnection

    whole = QuickConnection._send_now

    def send(self: Any, data: list[bytes]) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            whole(self, data)

    _put(QuickConnection, "_send_now", send)


@_mutant("amqp.prefetched", "a later message is started", _AMQP_WHOLE, "busy_worker_with_one_slot")
def _amqp_prefetched() -> None:
    from windlass.backends.amqp.intake import Intake

    whole = Intake.peek
    _put(Intake, "peek", lambda self, queue, count: whole(self, queue, count + 1)[-count:])


@_mutant(
    "amqp.prefetching_consumer",
    "pushed messages are kept in reverse order",
    _AMQP_WHOLE,
    "busy_worker_with_one_slot",
)
def _amqp_tap() -> None:
    from windlass.backends.amqp.intake import Intake

    whole = Intake._on_prefetched

    def reverse(self: Any, queue: str, consumer: Any, delivery: Any) -> None:
        whole(self, queue, consumer, delivery)
        self._waiting[queue].rotate(1)

    _put(Intake, "_on_prefetched", reverse)


@_mutant(
    "amqp.direct_reply",
    "results sent to a waiting client are empty",
    _AMQP_WHOLE,
    "closed_app_that_is_entered_again",
)
def _amqp_direct_reply() -> None:
    from windlass.backends.amqp import direct_replies

    whole = direct_replies.messages
    _put(
        direct_replies,
        "messages",
        lambda told: whole((to, queue, end._replace(result=b"null")) for to, queue, end in told),
    )


# --- valkey ---------------------------------------------------------------------------------------------


def _in_lua(part: str, text: str, instead: str) -> None:
    """Change the function library before it is loaded."""
    from windlass.backends.valkey import loader

    whole = loader._texts

    def changed(folder: str) -> list[tuple[str, str]]:
        found = []
        for name, source in whole(folder):
            assert name != part or text in source, f"{part} has no {text!r} any more"
            found.append((name, source.replace(text, instead) if name == part else source))
        return found

    _put(loader, "_texts", changed)


@_mutant(
    "valkey.add_alone", "the job is missing from the counters", _VALKEY, "valkey-own-plain] and counters"
)
def _valkey_add_alone() -> None:
    _in_lua("79_add_alone", "text(1 + (marks[4] or 0))", "text(marks[4] or 0)")


@_mutant("valkey.add_plain", "priorities are ignored", _VALKEY, "valkey-own-plain] and priorit")
def _valkey_add_plain() -> None:
    from windlass.backends.valkey import sent_records

    whole = sent_records.plain_job
    _put(sent_records, "plain_job", lambda new: whole(_changed(new, priority=0)))


@_mutant(
    "valkey.add_together", "callers get each other's replies", _VALKEY, "valkey and together and repeated"
)
def _valkey_add_together() -> None:
    from windlass.backends.valkey.adds import Adder

    whole = Adder._send

    async def turn_round(self: Any, jobs: list[Any], now: str) -> list[Any]:
        return (await whole(self, jobs, now))[::-1]

    _put(Adder, "_send", turn_round)


@_mutant(
    "valkey.complete_run", "results are not stored", _VALKEY, "valkey-own-plain] and (result or complete)"
)
def _valkey_complete_run() -> None:
    from windlass.backends.valkey import settlements

    whole = settlements.completions
    _put(
        settlements,
        "completions",
        lambda index, items: whole(index, [_changed(end, result=None) for end in items]),
    )


@_mutant(
    "valkey.lease_plain", "the worker is not recorded", _VALKEY, "valkey-own-plain] and (claimed or stored)"
)
def _valkey_lease_plain() -> None:
    from windlass.backends.valkey import records

    whole = records.leased

    def forgetful(queue: str, ids: Any, stored: Any, tokens: Any, lease: Any) -> Any:
        return whole(queue, ids, stored, tokens, lease._replace(worker=""))

    _put(records, "leased", forgetful)


@_mutant("valkey.news", "published results are empty", _VALKEY_WHOLE, "valkey] and (result or wait or call)")
def _valkey_news() -> None:
    from windlass.backends.valkey import records

    whole = records._completed
    _put(records, "_completed", lambda news: [_changed(one, result=b"null") for one in whole(news)])


_HANDOFF = f"valkey] and ({_IDLE})"


@_mutant("valkey.handoff_begun", "a started job is also claimed", _VALKEY_WHOLE, _HANDOFF)
def _valkey_seat_begun() -> None:
    from windlass.backends.valkey.handoff import OfferedJob, WorkerHandoff

    whole = WorkerHandoff.accept

    def twice(self: Any, news: bytes) -> bool:
        begin = self.begin
        if begin is not None:
            self.begin = lambda record, since_ms: (
                begin(record, since_ms) and not self.offered.append(OfferedJob(record, since_ms))
            )
        try:
            return whole(self, news)
        finally:
            self.begin = begin

    _put(WorkerHandoff, "accept", twice)


@_mutant("valkey.handoff_claimed", "jobs delivered with a message are dropped", _VALKEY_WHOLE, _HANDOFF)
def _valkey_seat_claimed() -> None:
    from windlass.backends.valkey.handoff import WorkerHandoff

    def lose(self: Any) -> Any:
        self.offered = []
        return [], 0

    _put(WorkerHandoff, "take", lose)


@_mutant("valkey.handoff_assigned", "the lease of an assigned job is not stored", _VALKEY_WHOLE, _HANDOFF)
def _valkey_seat_given() -> None:
    _in_lua("79_add_alone", "redis.call('HSET', root .. ':m', id, string.char(MARK.LEAN) .. head)", "")


# A registration that has ended but stays in the server's :U is no defect that a test could notice. It is gone
# from :Z, so no job is leased under it. The next registration of that worker overwrites it. A claim ends a
# registration only while its client knows of one, and the client drops a job that it gets twice. Entries that
# are left are cleared with all others.
@_mutant(
    "valkey.handoff_registered", "the client forgets that it is registered as idle", _VALKEY_WHOLE, _HANDOFF
)
def _valkey_seat_taken() -> None:
    from windlass.backends.valkey.handoff import HandoffClaim

    whole = HandoffClaim.answered

    def forget(self: Any, turn: Any) -> None:
        whole(self, turn)
        self._handoff.registrations.clear()

    _put(HandoffClaim, "answered", forget)


# --- worker ---------------------------------------------------------------------------------------------


@_mutant("worker.lane@amqp", "the second lane does nothing", _AMQP_WHOLE, "busy_worker")
@_mutant("worker.lane", "the second lane does nothing", _VALKEY_WHOLE, "valkey] and busy_worker")
def _worker_lane() -> None:
    from windlass.worker.driver import Driver

    whole = Driver._exchange

    async def lose(self: Any, exchange: Any) -> None:
        task = asyncio.current_task()
        if task is None or task.get_name() != "windlass-lane":
            await whole(self, exchange)

    _put(Driver, "_exchange", lose)


@_mutant("worker.lease_thread", "leases are not renewed", _LOCAL_WHOLE, "sqlite and (renew or lease or live)")
def _worker_lease_thread() -> None:
    from windlass.worker.leases import LeaseKeeper

    async def idle(self: Any, store: Any) -> None:
        """Renew nothing."""

    _put(LeaseKeeper, "_renew_due", idle)


def missing() -> list[str]:
    """Paths without a mutant, and mutants without a path."""
    return sorted(set(PATHS) ^ {path_of(name) for name in MUTANTS})
