"""Hostile ends, reports, cancels and stored records against one real worker that also has honest jobs.

One store, one worker, round after round. Each round adds honest jobs and hostile ones. A hostile job logs,
reports progress, returns or raises whatever was drawn for it; others are cancelled for odd reasons, or their
stored record is damaged behind the store's back. Whatever a hostile job does may cost that job. A finding is
an honest job that does not complete, or runs twice; a hostile one that runs without end; an answer that is
neither given nor refused by a typed error; a worker that dies, or does not close within its bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from tools.fuzz.engine import Finding, Outcome, damaged, odd_value
from tools.services import rabbitmq, valkey
from windlass import (
    Cancel,
    ConfigError,
    Job,
    JobState,
    RateLimitError,
    Retry,
    Snooze,
    Suspend,
    UnrecoverableError,
    Windlass,
    WindlassError,
    Worker,
)
from windlass.core.states import FINISHED
from windlass_conformance.damage import damage, kinds

STORES = ("memory", "sqlite", "file", "valkey", "redis", "cluster", "amqp")
#: Jobs of one round. Each hostile job is about three inputs: two reports, and an end.
HOSTILE, HONEST, CANCELLED, DAMAGED = 400, 40, 60, 2
#: Runs that a hostile job may have: it fails twice at most, and comes back once from a snooze.
_MOST_RUNS = 4
#: A round that takes longer stands still, and so does a close beyond the worker's own bound.
_ROUND_S, _GRACE_S, _CANCEL_WAIT_S = 60.0, 2.0, 1.0
_EXAMPLES = [b"a plain text", "caf\u00e9 \u202e \U0001f600".encode(), b"\x1b[31mred\x00", b"line\r\nline"]

Act = Callable[[Job[Any]], Awaitable[Any]]


# --- what is drawn ----------------------------------------------------------------------------------


def odd_text(rng: random.Random) -> str:
    """A text as file names, other programs and attackers make it."""
    kind = rng.randrange(6)
    if kind == 0:
        return "x" * rng.choice((0, 1, 2_001, 70_000))
    if kind == 1:
        return rng.choice(("\ud800", "a\udcff.txt", "\x00", "\x1b]0;owned\x07", "\u2028", "\ufeff"))
    return damaged(rng, _EXAMPLES).decode("utf-8", rng.choice(("replace", "surrogateescape")))


def odd_thing(rng: random.Random) -> Any:
    """A text or any other value, each as odd as it comes."""
    return odd_text(rng) if rng.random() < 0.5 else odd_value(rng)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def odd_error(rng: random.Random) -> BaseException:
    """An exception of an application, with attributes that look like ours."""
    kinds: list[Callable[[], BaseException]] = [
        lambda: ValueError(odd_thing(rng)),
        lambda: OSError(odd_value(rng), odd_text(rng)),
        lambda: _Unprintable(),
        lambda: UnrecoverableError(odd_thing(rng)),
        lambda: ExceptionGroup("several", [ValueError(odd_text(rng)), _Unprintable()]),
        lambda: KeyError(odd_value(rng)),
        lambda: type(rng.choice(("E", "x" * 3_000, "é")), (Exception,), {})(odd_text(rng)),
    ]
    error = rng.choice(kinds)()
    for name in ("error_class", "remote_traceback", "reason", "delay_ms", "message", "code"):
        if rng.random() < 0.2:
            with contextlib.suppress(AttributeError, TypeError):
                setattr(error, name, odd_thing(rng))
    return error


def _signal(rng: random.Random) -> BaseException:
    """What a handler raises to steer its job, with odd values; the constructor may refuse them."""
    kind, small = rng.randrange(5), rng.choice((0, 0.001, 0.01))
    if kind == 0:
        signal: BaseException = Cancel(odd_thing(rng))
    elif kind == 1:
        signal = Suspend(
            "signal" if rng.random() < 0.5 else odd_thing(rng), rng.choice((0.01, odd_value(rng)))
        )
    else:
        signal = rng.choice((Snooze, Retry, RateLimitError))(small if rng.random() < 0.6 else odd_value(rng))
    for name in ("reason", "delay_ms"):
        if rng.random() < 0.2:
            setattr(signal, name, odd_thing(rng))
    return signal


def draw(rng: random.Random) -> list[Act]:
    """What one hostile job does, one act after the other; the last one ends its run."""
    acts: list[Act] = []
    for _ in range(rng.randrange(3)):
        thing, verb = odd_thing(rng), rng.choice(("log", "update_progress", "update_data", "stream"))
        acts.append(_report(verb, thing))
    seed = rng.random()
    acts.append(rng.choice((_returns, _returns, _raises, _raises, _steers))(seed))
    return acts


def _report(verb: str, thing: Any) -> Act:
    async def act(job: Job[Any]) -> None:
        with contextlib.suppress(WindlassError, TypeError, ValueError):
            await getattr(job, verb)(thing)

    return act


def _returns(seed: float) -> Act:
    async def act(job: Job[Any]) -> Any:
        return odd_thing(random.Random(seed))

    return act


def _raises(seed: float) -> Act:
    async def act(job: Job[Any]) -> Any:
        raise odd_error(random.Random(seed))

    return act


def _steers(seed: float) -> Act:
    async def act(job: Job[Any]) -> Any:
        if job.deliveries > 1:  # once is enough
            return None
        raise _signal(random.Random(seed))

    return act


# --- the campaign -----------------------------------------------------------------------------------


class _Campaign:
    """One store, its worker, and what has been found."""

    def __init__(self, name: str, url: str, seed: int) -> None:
        self.url = url
        self.rng = random.Random(f"{seed}/{name}")
        self.outcome = Outcome(name)
        options = {"keep_completed": 500, "keep_failed": 500, "backoff": 0.01, "max_attempts": 2}
        self.app = Windlass(url, defaults=options)
        self.hostile, self.honest = self.app.queue("hostile"), self.app.queue("honest")
        self.acts: dict[str, list[Act]] = {}
        self.runs: Counter[str] = Counter()

    async def run(self, inputs: int, most_findings: int = 10) -> Outcome:
        began = time.perf_counter()
        worker = Worker(
            ["hostile", "honest"],
            url_or_app=self.app,
            concurrency=32,
            grace=_GRACE_S,
            cancel_wait=_CANCEL_WAIT_S,
            recover_every=1,
        )
        worker.register("hostile", self._do_harm)
        worker.register("honest", self._work)
        await worker.start()
        try:
            while self.outcome.inputs < inputs and len(self.outcome.findings) < most_findings:
                await self._round()
                if not worker.is_running:
                    self._find("the worker ended by itself")
                    break
        finally:
            await self._close(worker)
            self.outcome.seconds = time.perf_counter() - began
        return self.outcome

    def _find(self, what: str, given: str = "") -> None:
        self.outcome.findings.append(Finding(self.outcome.inputs, given[:500], what[:500]))

    async def _do_harm(self, job: Job[Any]) -> Any:
        self.runs[job.id] += 1
        *reports, end = self.acts.get(job.id) or [_returns(0.5)]
        for report in reports:
            await report(job)
        return await end(job)

    async def _work(self, job: Job[Any]) -> int:
        self.runs[job.id] += 1
        return int(job.data) * 2

    async def _round(self) -> None:
        self.acts.clear()
        self.runs.clear()
        try:
            async with asyncio.timeout(_ROUND_S):
                honest = await self._add()
                await self._hurt()
                await self._ends_well(honest)
                await self._look()
        except TimeoutError:
            counts = {name: await self.app.queue(name).get_job_counts() for name in ("hostile", "honest")}
            left = {f"{name} {state}": n for name in counts for state, n in counts[name].items() if n}
            self._find(f"a round did not end within {_ROUND_S:g} s: {left}")
        except Exception as error:
            self._find(f"{type(error).__name__}: {error}")

    async def _add(self) -> list[Job[Any]]:
        """Honest and hostile jobs; each hostile one runs what was drawn for its id."""
        half = HONEST // 2
        first = await self.honest.add_bulk([{"name": "honest", "data": n} for n in range(half)])
        for _ in range(HOSTILE):
            acts = draw(self.rng)
            self.outcome.inputs += len(acts)
            self.acts[f"h{self.rng.getrandbits(64):x}"] = acts
        await self.hostile.add_bulk([{"name": "hostile", "job_id": job_id} for job_id in self.acts])
        rest = await self.honest.add_bulk([{"name": "honest", "data": n} for n in range(half, HONEST)])
        return first + rest

    async def _hurt(self) -> None:
        """Cancel jobs that wait for their time, for odd reasons; damage the records of others."""
        later = await self.hostile.add_bulk([{"name": "hostile", "delay": 3_600}] * (CANCELLED + DAMAGED))
        for job in later[:CANCELLED]:
            self.outcome.inputs += 1
            reason = odd_thing(self.rng)
            try:
                await job.cancel(reason)
                self.outcome.taken += 1
            except ConfigError:
                self.outcome.refused += 1
        for job in later[CANCELLED:] if kinds(self.url) else []:
            self.outcome.inputs += 1
            kind = self.rng.choice(kinds(self.url))
            await asyncio.to_thread(damage, self.url, self.hostile.name, job.id, kind)

    async def _ends_well(self, honest: list[Job[Any]]) -> None:
        """Honest jobs complete, in one run each; hostile ones end, or wait for a time, in few."""
        for job in honest:
            if await job.result(None) != job.data * 2:
                self._find(f"honest job {job.id} has another result")
            if self.runs[job.id] != 1 or job.deliveries != 1 or job.attempts:
                self._find(f"honest job {job.id} ran {self.runs[job.id]} times, delivered {job.deliveries}")
        while not await self._is_quiet():  # noqa: ASYNC110 - nothing tells when a queue is quiet
            await asyncio.sleep(0.02)
        for job_id, runs in self.runs.items():
            if runs > _MOST_RUNS:
                self._find(f"hostile job {job_id} ran {runs} times")
        self.outcome.taken += sum(len(acts) for acts in self.acts.values())

    async def _is_quiet(self) -> bool:
        """Whether nothing of the hostile queue is about to run: what is left waits for a time or a signal."""
        counts = await self.hostile.get_job_counts()
        return not any(counts[state] for state in (JobState.WAITING, JobState.ACTIVE, JobState.PARKED))

    async def _look(self) -> None:
        """Every way to look at and clear what is there gets past what is damaged."""
        ended = await self.hostile.get_jobs([state.value for state in FINISHED], limit=50)
        for job in ended[:10]:
            _ = (job.reason, job.failed_reason, job.errors, job.state)
            await self.hostile.get_status(job.id)
        await self.hostile.search_jobs(name="h*", limit=20)
        await self.hostile.drain(delayed=True)

    async def _close(self, worker: Worker) -> None:
        before = time.perf_counter()
        bound = _GRACE_S + _CANCEL_WAIT_S + 2
        try:
            async with asyncio.timeout(bound + 10):
                await worker.close()
                took = time.perf_counter() - before
                if took > bound:
                    self._find(f"the worker took {took:.1f} s to close, {bound:g} s at most")
                await self.app.close()
        except TimeoutError:
            self._find(f"the worker did not close within {bound + 10:g} s")


def poison(name: str, url: str, inputs: int, seed: int = 1) -> Outcome:
    """A campaign of so many inputs on the store at ``url``."""
    logger = logging.getLogger("windlass")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)  # every hostile job fails, and says so
    try:
        return asyncio.run(_Campaign(f"poison-{name}", url, seed).run(inputs))
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def store_url(name: str) -> Iterator[str]:
    """The URL of a fresh store, with its server where it needs one."""
    with tempfile.TemporaryDirectory(prefix="windlass-poison-") as folder:
        match name:
            case "memory":
                yield "memory://poison"
            case "sqlite":
                yield f"sqlite:///{folder}/jobs.db?synchronous=normal"
            case "file":
                yield f"file://{folder}/jobs"
            case "amqp":
                binary = rabbitmq.rabbitmq_binary()
                if binary is None:
                    raise RuntimeError("no rabbitmq-server was found: see scripts/test for what it needs")
                with rabbitmq.running(binary) as broker:
                    yield f"{broker.url}?namespace=poison"
            case _:
                found = valkey.redis_binary() if name == "redis" else valkey.valkey_binary()
                if found is None:
                    raise RuntimeError(f"no {name} server was found: see scripts/test for what it needs")
                server: valkey.Server | valkey.ClusterServers
                if name == "cluster":
                    server = valkey.ClusterServers(found, Path(folder), replicas=False)
                else:
                    server = valkey.Server(found, Path(folder), "--appendonly", "no")
                server.start()
                try:
                    yield f"{server.url}?namespace=poison"
                finally:
                    server.stop()
