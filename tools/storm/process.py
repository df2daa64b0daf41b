"""One actor in a process of its own: ``python -m tools.storm.process ROLE.json``.

SIGTERM asks it to finish and end. SIGUSR1 freezes it: it stops itself (SIGSTOP) at the next point where it
holds no open transaction of the store, if it gets there in time. SIGUSR2 drops the next replies. It ends by
itself when its parent process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from tools.storm import mutants
from tools.storm.actors import FREEZE_WITHIN_S, Actor, Role
from tools.storm.journal import Journal
from tools.storm.recording import LOST_REPLIES
from tools.storm.skew import Skew, own_skew, store_ms
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.probe import Probe, install
from windlass.testing.faults import stop


def note_coordinator(probe: Probe, journal: Journal, clock: str) -> None:
    """Write to the journal whenever this process becomes the coordinator of an AMQP store."""

    def note(_point: str, _facts: dict[str, object]) -> None:
        journal.write("coordinates", at=store_ms(clock))

    probe.arm("amqp.coordinates", note, times=1_000)


def freeze_soon(probe: Probe, point: str) -> None:
    """Freeze at ``point``. A process that gets there too late, as after a pause of the store, does not."""
    last_ms = SYSTEM_CLOCK.monotonic_ms() + FREEZE_WITHIN_S * 1_000

    def freeze(point: str, facts: dict[str, object]) -> None:
        if SYSTEM_CLOCK.monotonic_ms() < last_ms:
            stop(point, facts)

    probe.arm(point, freeze)


async def _serve(role: Role) -> None:
    actor, probe = Actor(role), Probe()
    note_coordinator(probe, actor.journal, role.clock)
    install(probe)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, actor.stop)
    loop.add_signal_handler(signal.SIGUSR1, freeze_soon, probe, role.freeze_point)
    loop.add_signal_handler(signal.SIGUSR2, _lose, actor)
    watch = asyncio.create_task(_die_with(os.getppid()))
    try:
        await actor.run()
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch


def _lose(actor: Actor) -> None:
    actor.switches.lose += LOST_REPLIES


async def _die_with(parent: int) -> None:
    while True:
        await asyncio.sleep(1)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # ``full-disk`` must raise an error, not end the process
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    role = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Role)
    directory = Path(role.directory)
    Skew(directory / "skew").install(own_skew(directory, role.name))
    mutants.install(role.settings.mutant)
    asyncio.run(_serve(role))


if __name__ == "__main__":
    main()
