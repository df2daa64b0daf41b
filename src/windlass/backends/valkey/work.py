"""A worker's turn: settle, claim, extend. One call for each slot that is touched; on one server that is one.

In a cluster the queues of a claim may be in several slots. The first calls go out together, with shares that
add up to at most the limit. Room that is left then goes to queues that have more jobs, in the order of the
claim, up to their caps. Each call has its own claim id, made from the claim's, so that tokens are unique.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from windlass.backend import requests as rq
from windlass.backends.valkey import records, relay, settlements
from windlass.backends.valkey.codes import EXTENDED, SETTLED
from windlass.backends.valkey.functions import Turn
from windlass.backends.valkey.session import SlotGroup, ValkeySession, together
from windlass.core import bad_records
from windlass.core.job import JobRecord
from windlass.core.outcome import Extended, Outcome, Settled, Settlement
from windlass.core.paths import took
from windlass.errors import StorageError

_COMPLETE: Final = Outcome.COMPLETE  # members of an enum are slow to look up


async def settle(session: ValkeySession, request: rq.Settle, now: str) -> rq.SettleResult:
    """End attempts and, in the same step, claim the next jobs."""
    claim = request.claim
    if not request.items and claim is None:
        return rq.SettleResult([], None)
    lines = claim.queues if claim else []
    names = [end.queue for end in request.items] + [line.name for line in lines]
    groups = session.grouped(names)
    if len(groups) == 1:
        return await _one_slot(session, groups[0], request, now)
    return await _many_slots(session, groups, request, now)


async def claim(session: ValkeySession, request: rq.Claim, now: str) -> rq.Claimed:
    """Claim the next jobs."""
    if not request.queues:
        return rq.Claimed([], await session.now_ms(now), None)
    if (offered := session.handoffs.claimed(request)) is not None:
        return offered
    result = await settle(session, rq.Settle(items=[], claim=request), now)
    assert result.claimed is not None
    return result.claimed


async def extend(session: ValkeySession, request: rq.Extend, now: str) -> list[Extended]:
    """Renew leases."""
    groups = session.grouped(lease.queue for lease in request.leases)
    answers: list[Extended] = [Extended.LOST] * len(request.leases)

    async def one(group: SlotGroup) -> None:
        items = []
        for index, at in zip(group.indexes, group.positions, strict=True):
            lease = request.leases[at]
            items.append((index, lease.id, lease.token, lease.lease_ms))
        statuses = await session.functions.extend(group.roots, now, items)
        for at, status in zip(group.positions, statuses, strict=True):
            answers[at] = EXTENDED[status]

    await together(*(one(group) for group in groups))
    return answers


# --- one slot -----------------------------------------------------------------------------------------


async def _one_slot(
    session: ValkeySession, group: SlotGroup, request: rq.Settle, now: str
) -> rq.SettleResult:
    count, claim = len(request.items), request.claim
    ends = _ends(request.items, group.indexes[:count])
    asked: Any = 0
    handoff = None
    if claim is not None:
        lines: list[tuple[int, ...]] = [
            (index, line.share, line.cap, 0)
            for index, line in zip(group.indexes[count:], claim.queues, strict=True)
        ]
        handoff = session.handoffs.prepare(claim)
        if handoff is not None:
            lines = [(*lines[0], handoff.flags)]
        asked = _claim(claim, claim.claim_id, claim.limit if handoff is None else handoff.limit, lines)
    try:
        turn = await session.functions.work(group.roots, now, ends, asked)
    except BaseException:
        if handoff is not None:
            handoff.failed()
        raise
    if handoff is not None:
        handoff.answered(turn)
    items = [SETTLED[status] for status in turn.statuses]
    left = await relay.after(session, [name.decode() for name in turn.relay], now) if turn.relay else False
    if claim is None:
        return rq.SettleResult(items, None, left)
    jobs = await _read(session, turn, group, claim, claim.claim_id, now)
    claimed = rq.Claimed(jobs, turn.now_ms, _due(turn.next_due_in_ms))
    if handoff is not None:
        claimed.jobs, claimed.held_ms = handoff.joined(jobs), handoff.held_ms
    return rq.SettleResult(items, claimed, left)


def _ends(items: list[Settlement], indexes: list[int]) -> list[Any]:
    """The ends in order; consecutive completions of a queue as one run, see ``lua/functions/work.lua``."""
    ends: list[Any] = []
    at, size = 0, len(items)
    while at < size:
        index, first, facts = indexes[at], at, items[at].facts
        while at < size and indexes[at] == index and items[at].facts is facts and _is_plain(items[at]):
            at += 1
        if at > first:
            took("valkey.complete_run")
            ends.append(settlements.completions(index, items[first:at]))
        else:
            ends.append(settlements.settlement(index, items[at]))
            at += 1
    return ends


def _is_plain(end: Settlement) -> bool:
    """Whether it is a completion that neither holds its group nor fills in options."""
    return end.outcome is _COMPLETE and not end.hold_ms and end.filled is None


def _claim(claim: rq.Claim, claim_id: str, limit: int, lines: list[Any]) -> tuple[Any, ...]:
    return (claim.worker, claim.lease_ms, claim_id, limit, lines)


def _due(next_due_in_ms: int) -> int | None:
    return None if next_due_in_ms < 0 else next_due_in_ms


async def _read(
    session: ValkeySession, turn: Turn, group: SlotGroup, claim: rq.Claim, claim_id: str, now: str
) -> list[JobRecord]:
    """Read the leased jobs. A job that cannot be read is failed, and the others are returned."""
    try:
        return _leased(turn, group, claim, claim_id)
    except StorageError:
        pass
    jobs: list[JobRecord] = []
    for number, one in enumerate(_single_jobs(turn.leased)):
        try:
            jobs += _leased(turn._replace(leased=one), group, claim, claim_id, number)
        except StorageError as exc:
            root = group.roots[abs(one[0]) - 1]
            job_id = one[1][0] if one[0] > 0 else one[1]
            await _set_aside(session, root, job_id, _token(one, f"{claim_id}.{number}"), exc, now)
    return jobs


def _token(one: list[Any], of_claim: str) -> str:
    """The token of a leased job: that of its head, which a handoff may have given, or else ``of_claim``."""
    known = bad_records.read_or_none(one[3], records.token, "the head of a job") if one[0] <= 0 else None
    return known or of_claim


def _single_jobs(leased: list[Any]) -> Iterator[list[Any]]:
    """Split an answer into answers with one job each."""
    at = 0
    while at < len(leased):
        if leased[at] > 0:
            for job_id, stored in zip(leased[at + 1], leased[at + 2], strict=True):
                yield [leased[at], [job_id], [stored]]
            at += 3
        else:
            yield leased[at : at + 6]
            at += 6


async def _set_aside(
    session: ValkeySession, root: str, job_id: bytes, token: str, why: StorageError, now: str
) -> None:
    """Fail a job that no worker can read. Its bytes stay stored."""
    name = job_id.decode("utf-8", "backslashreplace")
    bad = bad_records.stand_in(root, name, b"", why)
    end = Settlement(
        queue="", id=name, token=token, outcome=Outcome.FAIL, reason=bad.reason, error=bad.errors[0]
    )
    await session.functions.work([root], now, _ends([end], [1]), 0)


@records.wrap_unreadable
def _leased(turn: Turn, group: SlotGroup, claim: rq.Claim, claim_id: str, first: int = 0) -> list[JobRecord]:
    jobs: list[JobRecord] = []
    found, size, at = turn.leased, len(turn.leased), 0
    now_ms = turn.now_ms
    lease = records.Lease(now_ms, claim.worker, now_ms + claim.lease_ms)
    while at < size:
        index = found[at]
        if index > 0:
            name = group.names[index - 1]
            took("valkey.lease_plain")
            ids, stored = found[at + 1], found[at + 2]
            number = first + len(jobs)
            tokens = [f"{claim_id}.{number + more}" for more in range(len(ids))]
            jobs += records.leased(name, ids, stored, tokens, lease)
            at += 3
            continue
        job_id, stored, head, errors, signals = found[at + 1 : at + 6]
        job = records.job_record(group.names[-index - 1], job_id.decode(), stored, head, errors)
        job.lease_until_ms = now_ms + (job.options.lease_ms or claim.lease_ms)
        if signals:
            job.signals = records.read_signals(signals)
        jobs.append(job)
        at += 6
    return jobs


# --- several slots of a cluster -------------------------------------------------------------------------


async def _many_slots(
    session: ValkeySession, groups: list[SlotGroup], request: rq.Settle, now: str
) -> rq.SettleResult:
    count = len(request.items)
    items: list[Settled] = [Settled.GONE] * count
    lines = request.claim.queues if request.claim else []
    allowed = _cut_shares(lines, request.claim.limit if request.claim else 0)
    claims = _SlotClaims(session, request.claim, lines, now)

    async def one(number: int, group: SlotGroup) -> None:
        mine = [(at, index) for at, index in zip(group.positions, group.indexes, strict=True) if at < count]
        asked = {
            at - count: index for at, index in zip(group.positions, group.indexes, strict=True) if at >= count
        }
        ends = _ends([request.items[at] for at, _ in mine], [index for _, index in mine])
        turn = await claims.ask(group, f"{number}", asked, {at: allowed[at] for at in asked}, ends)
        for (at, _), status in zip(mine, turn.statuses, strict=True):
            items[at] = SETTLED[status]

    await together(*(one(number, group) for number, group in enumerate(groups)))
    left = False
    if claims.relay:
        left = await relay.after(session, claims.relay, now)
        claims.expect_more()  # so that jobs which were unblocked can be claimed now
    if request.claim is not None:
        await claims.fill(groups, count, request.claim.limit)
    return rq.SettleResult(items, claims.claimed() if request.claim is not None else None, left)


def _cut_shares(lines: list[rq.ClaimQueue], limit: int) -> list[int]:
    """The shares of the queues, cut in order so that their sum is at most ``limit``."""
    cut = []
    for line in lines:
        cut.append(max(min(line.share, limit), 0))
        limit -= cut[-1]
    return cut


class _SlotClaims:
    """A claim over several slots: the jobs of each queue, and the queues that have more."""

    def __init__(
        self, session: ValkeySession, claim: rq.Claim | None, lines: list[rq.ClaimQueue], now: str
    ) -> None:
        self._session = session
        self._claim = claim
        self._lines = lines
        self._now = now
        self._by_line: dict[int, list[JobRecord]] = {}
        self._jobs: list[JobRecord] = []
        self._more: set[int] = set()
        self._due: dict[str, int] = {}
        self._now_ms = 0
        self._taken: Counter[int] = Counter()
        #: Queues whose outbox has entries to relay.
        self.relay: list[str] = []

    async def ask(
        self,
        group: SlotGroup,
        part: str,
        asked: dict[int, int],
        bounds: dict[int, int],
        ends: list[Any],
    ) -> Turn:
        """Make one call to one slot.

        A line is the position of a queue in the claim. ``asked`` has the position of its root in ``group``,
        ``bounds`` the most jobs to claim from it.
        """
        claim: Any = 0
        claim_id = ""
        if self._claim is not None and asked:
            lines = [(index, bounds[line], bounds[line], self._taken[line]) for line, index in asked.items()]
            claim_id = f"{self._claim.claim_id}.{part}"
            claim = _claim(self._claim, claim_id, sum(bounds.values()), lines)
        turn = await self._session.functions.work(group.roots, self._now, ends, claim)
        self.relay += [name.decode() for name in turn.relay]
        if claim and self._claim is not None:
            jobs = await _read(self._session, turn, group, self._claim, claim_id, self._now)
            self._note(turn, group, asked, jobs)
        return turn

    def _note(self, turn: Turn, group: SlotGroup, asked: dict[int, int], jobs: list[JobRecord]) -> None:
        self._now_ms = max(self._now_ms, turn.now_ms)
        self._due[group.roots[0]] = turn.next_due_in_ms
        by_name = {group.names[index - 1]: line for line, index in asked.items()}
        for (line, _), left in zip(asked.items(), turn.left, strict=True):
            (self._more.add if left == ord("1") else self._more.discard)(line)
        for job in jobs:
            self._by_line.setdefault(by_name[job.queue], []).append(job)
            self._taken[by_name[job.queue]] += 1

    def expect_more(self) -> None:
        """Make ``fill`` ask all queues again."""
        self._more.update(range(len(self._lines)))

    async def fill(self, groups: list[SlotGroup], first: int, limit: int) -> None:
        """Claim for the room that is left: first for shares that were cut, then up to the caps, in order."""
        for bound in ("share", "cap"):
            for line, asked in enumerate(self._lines):
                room = min(getattr(asked, bound) - self._taken[line], limit - sum(self._taken.values()))
                if line in self._more and room > 0:
                    group = next(group for group in groups if first + line in group.positions)
                    index = group.indexes[group.positions.index(first + line)]
                    await self.ask(group, f"{line}{bound[0]}", {line: index}, {line: room}, [])
            self._jobs += [job for line in range(len(self._lines)) for job in self._by_line.pop(line, [])]

    def claimed(self) -> rq.Claimed:
        due = [ms for ms in self._due.values() if ms >= 0]
        return rq.Claimed(self._jobs, self._now_ms, min(due, default=None))


async def reconcile(session: ValkeySession, request: rq.Reconcile, now: str) -> int:
    """Release leases that the worker does not hold, queue by queue; return their number."""
    session.handoffs.invalidate(request.worker)
    released = 0
    left: list[str] = []
    for name in await session.queue_names():
        skip = 0
        while skip >= 0:
            root = session.keys.queue(name)
            count, skip, names = await session.functions.reconcile(
                root, now, request.worker, request.held, skip
            )
            released += count
            left += [queue.decode() for queue in names]
            await asyncio.sleep(0)
    await relay.after(session, left, now)
    return released
