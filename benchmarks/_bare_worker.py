"""The smallest program that starts a job after a hint: ``python -m benchmarks._bare_worker URL QUEUE``.

It has a blocking subscription, a bare FCALL that settles the last job and claims the next, and one line of
work. It renews no leases, recovers no jobs and cannot be stopped: a lower bound for W4, not a worker.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

from redis import Redis

from benchmarks._stamps import StampWriter
from windlass.backend.urls import parse_url
from windlass.backends.valkey import loader, records, sent_records
from windlass.backends.valkey.keys import Keys


def main(url: str, queue: str) -> None:
    stamps = StampWriter()
    root = Keys(parse_url(url).namespace).queue(queue)
    client: Any = Redis.from_url(url.replace("valkey://", "redis://", 1), protocol=2)
    hints: Any = client.connection_pool.get_connection()
    hints.send_command("SSUBSCRIBE", f"{root}:ready")
    ends: list[Any] = []
    for number in itertools.count():
        hints.read_response(timeout=None)
        claim_id = f"{number:032x}"
        claim = ("bare", 30_000, claim_id, 10, [(1, 10, 10, 0)])
        answer = client.execute_command(
            "FCALL", loader.function_name("work"), 1, root, "", sent_records.pack((ends, claim))
        )
        ids, stored = answer[6:8] or ([], [])
        size = len(ids)
        tokens = [f"{claim_id}.{place}" for place in range(size)]
        for record in records.leased(queue, ids, stored, tokens, records.Lease(answer[0], "bare", 0)):
            stamps.write(time.monotonic_ns() - json.loads(record.payload)["kwargs"]["asked_ns"])
        ends = [(1, [job_id.decode() for job_id in ids], tokens, [0] * size, [0] * size)] if ids else []


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(0)
