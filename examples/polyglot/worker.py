"""Work on one queue: ``python worker.py URL QUEUE COUNT``"""

import json
import os
import random
import socket
import sys
import time
from typing import Any

import pika

PERSISTENT = pika.BasicProperties(delivery_mode=2, content_type="application/json")
IDENTITY = f"{socket.gethostname()}:{os.getpid()}:{random.randbytes(4).hex()}"


def greet(name: str) -> None:
    print(f"hello {name}", flush=True)


def fail(*args: str) -> None:
    raise RuntimeError("this job always fails")


HANDLERS = {"Greet": greet, "Fail": fail}


def next_step(job: dict[str, Any], error: Exception) -> tuple[str, dict[str, Any]]:
    """Where a failed job goes, and what is reported about it there."""
    count, most = job.get("retry_count", 0), job.get("retry", 25)
    report = {"jid": job["jid"], "error_message": str(error), "error_class": type(error).__name__, "job": job}
    if count >= most:
        return "dead_jobs", {"type": "dead_job", "died_at": time.time(), "retry_count": count, **report}
    wait = count**4 + 15 + random.randrange(30 * (count + 1))
    times = {"retry_at": time.time() + wait, "failed_at": time.time()}
    return "retries", {"type": "retry", **times, "retry_count": count + 1, **report}


def beat(channel: Any, queue: str, busy: int) -> None:
    body = {
        "type": "heartbeat",
        "identity": IDENTITY,
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "tag": "polyglot",
        "concurrency": 1,
        "busy": busy,
        "beat": time.time(),
        "queues": [queue],
        "version": "1.0.0",
    }
    channel.basic_publish("", "heartbeats", json.dumps(body), PERSISTENT)


def run(channel: Any, job: dict[str, Any], queue: str) -> None:
    """Run a job; when this returns, what follows from it is confirmed by the broker."""
    started, status = time.monotonic(), "success"
    try:
        HANDLERS[job["class"]](*job["args"])
    except Exception as error:
        status = "failed"
        stream, body = next_step(job, error)
        channel.basic_publish("", stream, json.dumps(body), PERSISTENT, mandatory=True)
    metric = {
        "type": "job_metric",
        "timestamp": time.time(),
        "jid": job["jid"],
        "job_class": job["class"],
        "queue": queue,
        "duration_ms": round((time.monotonic() - started) * 1000),
        "status": status,
        "worker_identity": IDENTITY,
    }
    channel.basic_publish("", "job_metrics", json.dumps(metric), PERSISTENT)


def main(url: str, queue: str, count: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=1)
    beat(channel, queue, busy=0)
    beaten = time.monotonic()
    left = int(count)
    for method, _, body in channel.consume(f"queue.{queue}", inactivity_timeout=1):
        if time.monotonic() - beaten > 10:
            beat(channel, queue, busy=int(method is not None))
            beaten = time.monotonic()
        if method is None:
            continue
        run(channel, json.loads(body), queue)
        channel.basic_ack(method.delivery_tag)
        left -= 1
        if left == 0:
            break
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
